"""What runs in the dashboard's own process: optuna-dashboard on a socket that it was given."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio.to_thread
import uvicorn
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from storage.artifacts import Artifacts
from storage.optuna_storage import cached_beside

# It holds the interpreter while it works; more threads would only take turns.
THREADS = 4
# How many studies the service had deleted when it sent a request on.
N_DELETED = "x-hpo-deleted"


class _Pages:
    """optuna-dashboard as an ASGI app.

    It caches by Optuna's ids, which SQLite uses again: a new one after each deleted study.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make, self._building = make, threading.Lock()
        self._built: tuple[str, Any] = ("", None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        n_deleted = Headers(scope=scope).get(N_DELETED, "0")
        built_at, app = self._built
        if app is None or built_at != n_deleted:
            app = await anyio.to_thread.run_sync(self._build, n_deleted)
        await app(scope, receive, send)

    def _build(self, n_deleted: str) -> ASGIApp:
        with self._building:
            if self._built[1] is None or self._built[0] != n_deleted:
                self._built = n_deleted, self._make()
            app: ASGIApp = self._built[1]
            return app


class _Server(uvicorn.Server):
    """Leaves signals to us: there is nothing to wait for."""

    capture_signals = staticmethod(contextlib.nullcontext)  # type: ignore[assignment]  # takes nothing


def serve_dashboard(url: str, *, fd: int, artifacts: Path | None, writes: bool) -> None:
    """Serves on an open socket until SIGTERM."""
    listening = socket.socket(fileno=fd)
    signal.signal(signal.SIGTERM, lambda *_: _leave(Path(listening.getsockname())))

    def make() -> Any:
        import optuna_dashboard
        from a2wsgi import WSGIMiddleware

        storage = cached_beside(url, writes=writes)
        store = None if artifacts is None else Artifacts(artifacts)
        return WSGIMiddleware(optuna_dashboard.wsgi(storage, artifact_store=store), workers=THREADS)

    config = uvicorn.Config(_Pages(make), lifespan="off", log_config=None, access_log=False)
    _Server(config).run(sockets=[listening])


def _leave(socket_path: Path) -> None:
    shutil.rmtree(socket_path.parent, ignore_errors=True)
    os._exit(0)  # threads that work on a page would be waited for
