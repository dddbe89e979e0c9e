"""What every request passes first: its host, the size and kind of its body, a net for bugs."""

from __future__ import annotations

import re

from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import internal, problem
from api.routes import path_of

MAX_BODY_BYTES = 1024 * 1024
# A model that a worker sends is neither small nor JSON; its route takes what was offered.
MODEL_PATH = re.compile(r"/v1/studies/[^/]+/trials/[^/]+/model")
# A whole study; the limit is a setting.
IMPORT_PATH = "/v1/studies/import"
MAX_IMPORT_BYTES = 256 * 1024**2


class Gate:
    """Refuses bodies that are too large or no JSON; turns an unhandled error into a problem.

    With `hosts` it also refuses requests that name another host: a page anywhere may have its
    name lead to this machine, and its scripts would reach a service that may ask for no token.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: frozenset[str] | None = None,
        max_import_bytes: int = MAX_IMPORT_BYTES,
    ) -> None:
        self._app, self._hosts = app, hosts
        self._max_import_bytes = max_import_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        host, limit = _host(headers), self._limit_of(scope)
        if self._hosts is not None and host not in self._hosts:
            detail = f"This service is not {host!r}; start it with --allow-host {host} if it is."
            await problem("misdirected", detail)(scope, receive, send)
        elif _is_model(scope):
            await self._pass(scope, receive, send)
        elif _declared_length(headers) > limit:
            await problem("too_large", _too_large(limit))(scope, receive, send)
        elif _has_body(headers) and _takes_json(scope) and not _is_json(headers):
            detail = "The body must be JSON; send Content-Type: application/json."
            await problem("media_type", detail)(scope, receive, send)
        else:
            await self._pass(scope, _limited(receive, limit), send)

    def _limit_of(self, scope: Scope) -> int:
        return self._max_import_bytes if path_of(scope) == IMPORT_PATH else MAX_BODY_BYTES

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:
            if started:  # half an answer is out; only a broken connection tells the client so
                raise
            await internal(error)(scope, receive, send)


def _too_large(limit: int) -> str:
    return f"The body must be {limit} bytes at most."


def _limited(receive: Receive, limit: int) -> Receive:
    """Counts a body that did not declare its length."""
    n_bytes = 0

    async def counted() -> Message:
        nonlocal n_bytes
        message = await receive()
        n_bytes += len(message.get("body", b""))
        if n_bytes > limit:
            raise HTTPException(413, _too_large(limit))
        return message

    return counted


def _is_model(scope: Scope) -> bool:
    return scope["method"] == "PUT" and MODEL_PATH.fullmatch(path_of(scope)) is not None


def _takes_json(scope: Scope) -> bool:
    """Whether a body must be JSON; a model's path has methods for others, and 405 for the rest."""
    path = path_of(scope)
    is_model = MODEL_PATH.fullmatch(path) is not None
    return path.startswith("/v1/") and (scope["method"] == "POST" or not is_model)


def _host(headers: Headers) -> str:
    """The name in the Host header, without the port."""
    host = headers.get("host", "")
    name, _, port = host.rpartition(":")
    return (name if port.isdecimal() and name else host).strip("[]").lower()


def _declared_length(headers: Headers) -> int:
    length = headers.get("content-length", "0")
    return int(length) if length.isdecimal() else 0


def _has_body(headers: Headers) -> bool:
    return "transfer-encoding" in headers or _declared_length(headers) > 0


def _is_json(headers: Headers) -> bool:
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    return media_type == "application/json" or (
        media_type.startswith("application/") and media_type.endswith("+json")
    )
