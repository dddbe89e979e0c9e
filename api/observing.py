"""What is known of every request when it is over: its id, its route, its time, who asked.

The line in the log and the figures name the route's template and never the query, in which
something secret may stand. Locations get the prefix of a proxy here, whoever wrote them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import cached_property
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.metrics import Metrics
from api.request_ids import HEADER, REQUEST_ID, request_id_of
from api.routes import NO_TEMPLATE, Route, Routes, root_of

logger = logging.getLogger("hpo.access")

CLOSED = 499  # the client left before the answer began; nginx's word for it


class Observer:
    """The outermost of our layers; `find_routes` is called with the first request."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        find_routes: Callable[[], Routes],
        metrics: Metrics,
        root_path: str = "",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._app, self._find_routes = app, find_routes
        self._metrics, self._root_path, self._clock = metrics, root_path, clock

    @cached_property
    def _routes(self) -> Routes:
        return self._find_routes()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._root_path:
            _put_under(scope, self._root_path)
        request_id = request_id_of(Headers(scope=scope).get(HEADER))
        scope["hpo.route"] = self._routes.find(scope)
        began_at, status = self._clock(), CLOSED

        async def observed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers[HEADER] = request_id
                if location := headers.get("location"):
                    headers["location"] = _from_outside(scope, location)
            await send(message)

        token = REQUEST_ID.set(request_id)
        try:
            await self._app(scope, receive, observed)
        finally:
            self._note(scope, status, self._clock() - began_at)
            REQUEST_ID.reset(token)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route: Route | None = scope["hpo.route"]
        template = NO_TEMPLATE if route is None else route.template
        self._metrics.note_request(scope["method"], template, status, seconds)
        if logger.isEnabledFor(logging.INFO):
            caller = scope.get("hpo.caller")
            facts = {
                "method": scope["method"],
                "route": template,
                "code": status,
                "milliseconds": round(seconds * 1000, 1),
                "token": caller.name if caller is not None else None,
            }
            logger.info(
                "%(method)s %(route)s %(code)d %(milliseconds).1f ms %(token)s",
                facts,
                extra={"facts": facts},
            )


def _put_under(scope: Scope, root: str) -> None:
    """Makes the path begin with the prefix, as ASGI wants it, also when the proxy cut it off."""
    scope["root_path"] = root
    if not f"{scope['path']}/".startswith(f"{root}/"):
        scope["path"] = root + scope["path"]
        scope["raw_path"] = root.encode() + (scope.get("raw_path") or b"")


def _from_outside(scope: Scope, location: str) -> str:
    """A location of ours as a client behind the proxy reaches it: a path with the prefix."""
    parts, root = urlsplit(location), root_of(scope)
    if parts.netloc and parts.netloc != Headers(scope=scope).get("host"):
        return location
    path = parts._replace(scheme="", netloc="").geturl()
    return path if path == root or path.startswith(f"{root}/") else root + path
