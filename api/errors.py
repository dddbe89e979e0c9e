"""Every error leaves as an RFC 9457 problem document with a stable `code`.

`STATUSES` is the whole table of codes. What a driver or a bug says stays in the log.
"""

from __future__ import annotations

import http
import json
import logging
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException

from api.faults import Fault, fault_of
from api.request_ids import REQUEST_ID
from api.routes import path_of, routes_of
from hpo.errors import HpoError
from hpo.numbers import strict

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_SECONDS = 2
TRY_AGAIN = frozenset({429, 503})

STATUSES = {
    "not_found": 404,
    "no_completed_trial": 404,
    "study_exists": 409,
    "lease_lost": 409,
    "trial_finished": 409,
    "step_reported": 409,
    "idempotency_key_reused": 409,
    "too_few_trials": 409,
    "precondition_failed": 412,
    "model_refused": 409,
    "version_mismatch": 409,
    "conflict": 409,
    "invalid": 422,
    "too_large": 413,
    "media_type": 415,
    "misdirected": 421,
    "read_only": 403,
    "unauthorized": 401,
    "forbidden": 403,
    "cross_site": 403,
    "too_many": 429,
    "method_not_allowed": 405,
    "unavailable": 503,
    "schema_mismatch": 503,
    "internal": 500,
}
# What the framework raises by itself.
CODES = {400: "invalid", 404: "not_found", 405: "method_not_allowed", 413: "too_large"}


class FieldError(BaseModel):
    """One field of the request that is not valid, by its path in the document."""

    field: str
    message: str


class Problem(BaseModel):
    """RFC 9457, application/problem+json; more members may carry the facts of the case."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [
                {
                    "type": "about:blank",
                    "title": "Unprocessable Content",
                    "status": 422,
                    "detail": "space.lr.low: low must not be above high, got 2.0 and 1.0",
                    "code": "invalid",
                    "errors": [
                        {
                            "field": "space.lr.low",
                            "message": "low must not be above high, got 2.0 and 1.0",
                        }
                    ],
                }
            ]
        },
    )

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str
    errors: list[FieldError] = []
    request_id: str | None = None


class InvalidRequest(HpoError, ValueError):
    """The request has faults; each names its field."""

    code = "invalid"

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__(
            "; ".join(f"{fault.field}: {fault.message}" for fault in faults),
            errors=[{"field": fault.field, "message": fault.message} for fault in faults],
        )


class ReadOnly(HpoError):
    """The dashboard only shows; start the service with dashboard writes allowed to change this."""

    code = "read_only"


def problem(code: str, detail: str, **facts: Any) -> Response:
    """A problem document as a response."""
    status = STATUSES[code]
    members: dict[str, Any] = {
        "type": "about:blank",
        "title": http.HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "code": code,
    }
    if request_id := REQUEST_ID.get():
        members["request_id"] = request_id
    # ASCII, so that a lone surrogate quoted from a request is escaped rather than fatal.
    content = json.dumps(strict(members | facts | members), allow_nan=False, default=str)
    headers = {"Retry-After": str(RETRY_AFTER_SECONDS)} if status in TRY_AGAIN else None
    return Response(content, status, headers, MEDIA_TYPE)


def problem_of(error: HpoError) -> Response:
    """The problem document of an error of the house."""
    if error.code not in STATUSES:
        return internal(error)
    return problem(error.code, str(error), **error.facts)


def internal(error: BaseException) -> Response:
    """A bug: its text may hold anything, so it goes to the log and nowhere else."""
    logger.error("unhandled error", exc_info=error)
    return problem("internal", "The service failed at this request; its log says why.")


async def _on_hpo_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HpoError)
    return problem_of(error)


async def _on_invalid_request(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return problem_of(InvalidRequest([fault_of(fault) for fault in error.errors()]))


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = CODES.get(error.status_code, "internal")
    if code == "invalid":  # FastAPI's answer to a body that it could not read
        return problem_of(InvalidRequest([Fault("body", "is not JSON that can be read")]))
    if code == "method_not_allowed":
        detail = f"{request.method} is not possible here."
    else:
        detail = str(error.detail)
    response = problem(code, detail)
    response.headers.update(error.headers or {})
    if code == "method_not_allowed":  # the framework names those of the first route of the path
        response.headers["Allow"] = ", ".join(_methods_of(request))
    return response


def _methods_of(request: Request) -> list[str]:
    """What may be asked of the path of this request, over all of its routes."""
    path = path_of(request.scope)
    found = [r.methods for r in routes_of(request.app.routes) if r.pattern.match(path)]
    return sorted(frozenset[str]().union(*found))


def add_error_handlers(app: FastAPI) -> None:
    """Makes `app` answer with problem documents."""
    app.add_exception_handler(HpoError, _on_hpo_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)
    app.add_exception_handler(HTTPException, _on_http_exception)


def problems(*codes: str) -> dict[int | str, dict[str, Any]]:
    """What a route says of its errors in the OpenAPI document; all may be away or invalid."""
    found: dict[int | str, dict[str, Any]] = {}
    for code in (*codes, "invalid", "unavailable", "schema_mismatch"):
        entry = found.setdefault(
            STATUSES[code],
            {
                "description": "",
                "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
            },
        )
        entry["description"] += f", `{code}`" if entry["description"] else f"Code `{code}`"
    return found
