"""What a fuzzed request is spared: answers that stay open on purpose, and its own token's end."""

from __future__ import annotations

from typing import Any

import schemathesis

LONGEST_SECONDS = 0.05
TOKEN_NAME = "fuzzer"


@schemathesis.hook
def map_query(context: schemathesis.HookContext, query: dict[str, Any]) -> dict[str, Any]:
    """Streams end when the past is told, long polls soon."""
    is_stream = context.operation is not None and context.operation.path.endswith("/events")
    if is_stream and (query or {}).get("until", "ended") == "ended":
        return {**(query or {}), "until": "now"}
    return _hurried(query)


@schemathesis.hook
def map_body(context: schemathesis.HookContext, body: Any) -> Any:
    """Claims and asks wait little."""
    return _hurried(body)


@schemathesis.hook
def filter_case(context: schemathesis.HookContext, case: schemathesis.Case) -> bool:
    """Keeps the token that the requests themselves need."""
    return (case.method, case.path_parameters.get("name")) != ("DELETE", TOKEN_NAME)


def _hurried(fields: Any) -> Any:
    seconds = fields.get("wait_seconds") if isinstance(fields, dict) else None
    if isinstance(seconds, int | float) and LONGEST_SECONDS < seconds <= 60:
        return {**fields, "wait_seconds": LONGEST_SECONDS}
    return fields
