"""What a fuzzed request is spared: answers that stay open on purpose, and its own token's end."""

from __future__ import annotations

from typing import Any

import schemathesis

TOKEN_NAME = "fuzzer"


@schemathesis.hook
def filter_case(context: schemathesis.HookContext, case: schemathesis.Case) -> bool:
    """Keeps the token that the requests themselves need."""
    return (case.method, (case.path_parameters or {}).get("name")) != ("DELETE", TOKEN_NAME)


@schemathesis.hook
def before_call(
    context: schemathesis.HookContext, case: schemathesis.Case, kwargs: dict[str, Any]
) -> None:
    """Streams end when the past is told; claims, asks and long polls do not wait."""
    if case.operation.path.endswith("/events") and case.query.get("until", "ended") == "ended":
        case.query = {**case.query, "until": "now"}
    for fields in (case.query, case.body):
        if isinstance(fields, dict) and _is_long(fields.get("wait_seconds")):
            fields["wait_seconds"] = 0


def _is_long(seconds: Any) -> bool:
    """Whether the service would wait, rather than refuse the number."""
    try:
        return not isinstance(seconds, bool) and 0 < float(seconds) <= 60
    except (TypeError, ValueError):
        return False
