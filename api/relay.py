"""Requests that another process of ours answers, sent on over its socket and streamed back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx2
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from hpo.errors import Unavailable

# Of one connection, RFC 9110 7.6.1; the length of a body is told anew.
HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# Who asks was decided here; what they have shown for it goes no further.
SECRETS = frozenset({"authorization", "cookie"})
TIMEOUT = httpx2.Timeout(120.0, connect=5.0)
LIMITS = httpx2.Limits(max_connections=32)


class Relay:
    """A client of the process that listens on one socket."""

    def __init__(self, socket_path: Path) -> None:
        self.socket_path = socket_path
        transport = httpx2.AsyncHTTPTransport(uds=str(socket_path), limits=LIMITS)
        self._client = httpx2.AsyncClient(transport=transport, timeout=TIMEOUT)

    async def close(self) -> None:
        await self._client.aclose()

    async def send_on(self, scope: Scope, receive: Receive, send: Send, **headers: str) -> None:
        """Answers a request with what the process says. Raises Unavailable when it says nothing."""
        request = self._client.build_request(
            scope["method"],
            _url_of(scope),
            headers=[*_headers_of(scope), *headers.items()],
            content=await Request(scope, receive).body(),
        )
        try:
            response = await self._client.send(request, stream=True)
        except httpx2.TimeoutException:
            raise Unavailable("The dashboard has not answered in time; try again.") from None
        except httpx2.TransportError:
            raise Unavailable("The dashboard's process has ended; try again.") from None
        try:
            await _stream_back(response, send)
        finally:
            await response.aclose()


def _url_of(scope: Scope) -> httpx2.URL:
    path = quote(scope["path"]).encode()
    query = scope["query_string"]
    target = path + b"?" + query if query else path
    return httpx2.URL(scheme="http", host="dashboard", raw_path=target)


def _headers_of(scope: Scope) -> Iterator[tuple[str, str]]:
    """The request's own, so that the pages name themselves as their reader does."""
    headers = Headers(scope=scope)
    for name, value in headers.items():
        if name not in HOP_BY_HOP | SECRETS | {"content-length", "x-forwarded-proto"}:
            yield name, value
    if "accept-encoding" not in headers:  # the dashboard answers 500 for a file without
        yield "accept-encoding", "identity"
    yield "x-forwarded-proto", scope["scheme"]


async def _stream_back(response: httpx2.Response, send: Send) -> None:
    headers = [
        (name.lower(), value)
        for name, value in response.headers.raw
        if name.lower().decode("latin-1") not in HOP_BY_HOP
    ]
    await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
    async for piece in response.aiter_raw():
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
