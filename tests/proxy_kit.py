"""A reverse proxy as teams have one: it serves a prefix, takes it off, and says where it stands."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


@contextmanager
def proxied(target: str, prefix: str, *, scheme: str = "http") -> Iterator[str]:
    """The address at which a service answers under a prefix; its own paths have none."""
    client = httpx2.AsyncClient(base_url=target, trust_env=False, timeout=30)

    async def forward(request: Request) -> Response:
        path = request.url.path.removeprefix(prefix) or "/"
        headers = {**request.headers, "x-forwarded-proto": scheme}
        asked = client.build_request(
            request.method,
            f"{path}?{request.url.query}" if request.url.query else path,
            headers=headers,
            content=await request.body(),
        )
        answer = await client.send(asked, stream=True)
        body = b"".join([chunk async for chunk in answer.aiter_raw()])
        await answer.aclose()
        response = Response(body, answer.status_code)
        for name, value in answer.headers.multi_items():
            if name.lower() not in HOP_BY_HOP:
                response.headers.append(name, value)
        return response

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with client:
            yield

    app = Starlette(
        lifespan=lifespan,
        routes=[
            Route(prefix, forward, methods=METHODS),
            Route(f"{prefix}/{{path:path}}", forward, methods=METHODS),
        ],
    )
    with served(app) as address:
        yield f"{address}{prefix}"


@contextmanager
def served(app: Any) -> Iterator[str]:
    """The address of an app on a free port of the loopback address."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical"))
    thread = threading.Thread(target=server.run)
    thread.start()
    await_fact(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def await_fact(is_so: Callable[[], bool], seconds: float = 30.0) -> None:
    give_up_at = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < give_up_at
        time.sleep(0.02)
