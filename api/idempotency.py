"""The Idempotency-Key header: a request that is sent again with its key gets its first answer."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Header
from pydantic import BaseModel

from api.schemas.base import Name
from storage.requests import fingerprint_of

IdempotencyKey = Annotated[
    Name | None,
    Header(
        alias="Idempotency-Key",
        description="Sent again within 24 hours, the same request gets its first answer and does "
        "nothing twice. A new one for each request that is meant.",
    ),
]


def fingerprint(body: BaseModel, **path: Any) -> str:
    """Of a request as it was sent, with what its path says."""
    return fingerprint_of({"body": body.model_dump(exclude_unset=True), **path})
