"""What every request passes first: its host, the size and kind of its body, a net for bugs."""

from __future__ import annotations

import re

from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import internal, problem

MAX_BODY_BYTES = 1024 * 1024
MODEL_PATH = re.compile(r"/v1/studies/[^/]+/trials/[^/]+/model")


class Gate:
    """Refuses bodies that are too large or no JSON; turns an unhandled error into a problem.

    A model that a worker sends is neither small nor JSON: it has a limit of its own.

    With `hosts` it also refuses requests that name another host: a page anywhere may have its
    name lead to this machine, and its scripts would reach a service that has no login.
    """

    def __init__(
        self, app: ASGIApp, hosts: frozenset[str] | None = None, *, max_model_bytes: int = 0
    ) -> None:
        self._app, self._hosts, self._max_model_bytes = app, hosts, max_model_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        host, is_model = _host(headers), _is_model(scope)
        max_bytes = self._max_model_bytes if is_model else MAX_BODY_BYTES
        if self._hosts is not None and host not in self._hosts:
            detail = f"This service is not {host!r}; start it with --allow-host {host} if it is."
            await problem("misdirected", detail)(scope, receive, send)
        elif _declared_length(headers) > max_bytes:
            await problem("too_large", _too_large(max_bytes))(scope, receive, send)
        elif not is_model and _must_be_json(scope, headers) and not _is_json(headers):
            detail = "The body must be JSON; send Content-Type: application/json."
            await problem("media_type", detail)(scope, receive, send)
        else:
            await self._pass(scope, _limited(receive, max_bytes), send)

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


def _limited(receive: Receive, max_bytes: int) -> Receive:
    """Counts a body that did not declare its length."""
    n_bytes = 0

    async def counted() -> Message:
        nonlocal n_bytes
        message = await receive()
        n_bytes += len(message.get("body", b""))
        if n_bytes > max_bytes:
            raise HTTPException(413, _too_large(max_bytes))
        return message

    return counted


def _too_large(max_bytes: int) -> str:
    return f"The body must be {max_bytes} bytes at most."


def _is_model(scope: Scope) -> bool:
    return scope["method"] == "PUT" and MODEL_PATH.fullmatch(scope["path"]) is not None


def _must_be_json(scope: Scope, headers: Headers) -> bool:
    return _has_body(headers) and str(scope["path"]).startswith("/v1/")


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
