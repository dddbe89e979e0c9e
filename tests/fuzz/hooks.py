"""What a fuzzed request is spared: answers that stay open on purpose, and its own token's end.

A delete is waited for, so that what comes after it meets a study that is gone.
"""

from __future__ import annotations

import time
from typing import Any

import requests
import schemathesis

TOKEN_NAME = "fuzzer"
DELETED_SECONDS = 15.0


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
    if case.operation.path == "/v1/claims" and isinstance(case.body, dict):
        case.body.setdefault("wait_seconds", 0)
    for fields in (case.query, case.body):
        if isinstance(fields, dict) and _is_long(fields.get("wait_seconds")):
            fields["wait_seconds"] = 0


@schemathesis.hook
def after_call(
    context: schemathesis.HookContext, case: schemathesis.Case, response: schemathesis.Response
) -> None:
    """202 says that the study will be gone; only then is it one that was deleted."""
    if case.method != "DELETE" or response.status_code != 202:
        return
    request = response.request
    url = str(request.url).partition("?")[0]
    give_up_at = time.monotonic() + DELETED_SECONDS
    while time.monotonic() < give_up_at:
        found = requests.get(url, headers=request.headers, timeout=DELETED_SECONDS)
        if found.status_code == 404:
            return
        time.sleep(0.02)
    raise AssertionError(f"{url} is still there after {DELETED_SECONDS:.0f} s")


def _is_long(seconds: Any) -> bool:
    """Whether the service would wait, rather than refuse the number."""
    try:
        return not isinstance(seconds, bool) and 0 < float(seconds) <= 60
    except (TypeError, ValueError):
        return False
