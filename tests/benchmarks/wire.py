"""HTTP by hand, as little of it as the service speaks: the clients must not be what is measured."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

HOST = "127.0.0.1"


class Refused(Exception):
    """The service answered with a problem."""

    def __init__(self, status: int, problem: Any) -> None:
        super().__init__(f"{status}: {problem}")
        self.status = status
        self.code = problem.get("code") if isinstance(problem, dict) else None


class Wire:
    """One connection that is kept alive, for one request at a time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, document: Mapping[str, Any]) -> Any:
        """The answer as JSON, None when there is nothing to say. Raises Refused."""
        return await self._ask("POST", path, json.dumps(document).encode())

    async def get(self, path: str) -> Any:
        """The answer as JSON. Raises Refused."""
        return await self._ask("GET", path, b"")

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _ask(self, method: str, path: str, body: bytes) -> Any:
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {HOST}:{self._port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        request = head.encode() + body
        if self._streams is not None:
            try:
                return await self._once(request)
            except (ConnectionError, asyncio.IncompleteReadError):
                self.close()  # the server ends what was idle; each of our requests may be repeated
        self._streams = await asyncio.open_connection(HOST, self._port)
        return await self._once(request)

    async def _once(self, request: bytes) -> Any:
        assert self._streams is not None
        reader, writer = self._streams
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head[9:12])
        length = _length(head)
        body = await reader.readexactly(length) if length else b""
        answer = json.loads(body) if body else None
        if status >= 400:
            raise Refused(status, answer)
        return answer


def _length(head: bytes) -> int:
    _, found, rest = head.lower().partition(b"content-length:")
    return int(rest.partition(b"\r\n")[0]) if found else 0
