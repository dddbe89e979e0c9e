"""What a request passes before its route: whose it is, whether that role may, how many wait.

A browser that is not logged in is led to the login page; everybody else gets a problem document.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from starlette.datastructures import Headers, QueryParams
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from api.access import (
    ANYBODY,
    READING,
    Guard,
    Unauthorized,
    bearer_of,
    check_role,
    check_same_site,
    rule_of,
)
from api.errors import problem_of
from api.routes import Route, path_of, root_of
from hpo.errors import HpoError

# Requests that stay open: claims, event streams, and whatever is told to wait.
MAX_WAITING = 1000
WAITING = frozenset({"/v1/claims"})


class TooMany(HpoError):
    """Too many requests wait here at the same time; try again in a moment."""

    code = "too_many"


@dataclass(kw_only=True)
class Crowd:
    """Counts the requests that wait in this process."""

    max_waiting: int = MAX_WAITING
    n_waiting: int = 0

    @property
    def is_full(self) -> bool:
        return self.n_waiting >= self.max_waiting

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """Counts one more inside the block."""
        self.n_waiting += 1
        try:
            yield
        finally:
            self.n_waiting -= 1


class Entrance:
    """Lets a request through to the app, or answers it."""

    def __init__(
        self,
        app: ASGIApp,
        guard: Guard,
        *,
        crowd: Crowd,
        origins: frozenset[str] = frozenset(),
    ) -> None:
        self._app, self._guard, self._origins = app, guard, origins
        self._crowd = crowd

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            await self._check(scope)
        except HpoError as error:
            await refusal_of(scope, error)(scope, receive, send)
            return
        if not is_waiting(scope):
            await self._app(scope, receive, send)
        elif self._crowd.is_full:
            await problem_of(TooMany())(scope, receive, send)
        else:
            with self._crowd.one_more():
                await self._app(scope, receive, send)

    async def _check(self, scope: Scope) -> None:
        check_same_site(scope, self._origins)
        rule = rule_of(scope["hpo.route"], scope["method"], path_of(scope))
        if rule != ANYBODY:
            caller = scope["hpo.caller"] = await self._guard.caller(scope)
            check_role(caller, rule)


def is_waiting(scope: Scope) -> bool:
    """Whether the answer may stay open on purpose."""
    route: Route | None = scope["hpo.route"]
    if route is None:
        return False
    return (
        can_wait(route, {})
        or "wait_seconds" in QueryParams(scope["query_string"])
        or "text/event-stream" in Headers(scope=scope).get("accept", "")
    )


def can_wait(route: Route, operation: Mapping[str, Any]) -> bool:
    """Whether the answers of a route may stay open, by its path and its parameters."""
    asked = {parameter["name"] for parameter in operation.get("parameters", ())}
    return (
        route.template in WAITING or route.template.endswith("/events") or "wait_seconds" in asked
    )


def refusal_of(scope: Scope, error: HpoError) -> Response:
    """The answer to a request that may not pass."""
    if isinstance(error, Unauthorized):
        if _is_page(scope):
            asked = path_of(scope) or "/"
            if query := scope["query_string"].decode("latin-1"):
                asked = f"{asked}?{query}"
            return RedirectResponse(f"{root_of(scope)}/login?next={quote(asked, safe='/')}", 303)
        response = problem_of(error)
        fault = f', error="{error.facts["error"]}"' if "error" in error.facts else ""
        response.headers["WWW-Authenticate"] = f'Bearer realm="hpo"{fault}'
        return response
    return problem_of(error)


def _is_page(scope: Scope) -> bool:
    """Whether a person looks for a page; a token in a header is a program's."""
    headers = Headers(scope=scope)
    asks = scope["method"] in READING and "text/html" in headers.get("accept", "")
    return asks and bearer_of(headers) is None
