"""The id of the request that is being answered, for its log lines and its problem document."""

from __future__ import annotations

import re
import uuid
from contextvars import ContextVar

HEADER = "X-Request-ID"
SANE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=@-]{0,127}")

REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)


def request_id_of(given: str | None) -> str:
    """The id that came with the request if it may stand in a log line, or else a new one."""
    return given if given is not None and SANE.fullmatch(given) else uuid.uuid4().hex
