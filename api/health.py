"""Whether the process lives, and whether it can serve."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter

from api.errors import problems
from api.schemas.base import Reply
from api.service import StoreDep

router = APIRouter(tags=["health"])


class Health(Reply):
    state: Literal["ok", "ready"]


@router.get("/healthz", summary="Whether the process lives")
async def healthz() -> Health:
    return Health(state="ok")


@router.get("/readyz", summary="Whether the service can serve", responses=problems())
def readyz(store: StoreDep) -> Health:
    store.check()
    return Health(state="ready")
