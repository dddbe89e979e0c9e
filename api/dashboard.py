"""optuna-dashboard behind the service's own routes: its pages live at /dashboard.

It gets every path that no route of ours takes, because its page asks for /static and /api at
the root of the site. It writes, so only reading goes through unless writes are allowed; who may
read is the rule of `api.access`, as for every path.
"""

from __future__ import annotations

import threading
from typing import Any

import anyio.to_thread
from starlette.types import ASGIApp, Receive, Scope, Send

from api.errors import ReadOnly, problem
from api.prefix import Prefixed
from api.routes import path_of
from api.upkeep import Upkeep
from storage.store import Store

READING = {"GET", "HEAD", "OPTIONS"}
# What optuna-dashboard 0.21 answers to.
PATHS = (
    "/dashboard/",
    "/api/",
    "/static/",
    "/csv/",
    "/artifacts/",
    "/favicon.ico/",
    "/incompatible-rdb-schema/",
)
# The dashboard holds the interpreter while it works; few threads leave the others to the service.
THREADS = 4


class Dashboard:
    """The ASGI app behind all paths that are not the service's own."""

    def __init__(self, store: Store, upkeep: Upkeep, *, writes: bool) -> None:
        self._store, self._upkeep, self._writes = store, upkeep, writes
        self._prefixed = Prefixed(self._serve)
        self._building = threading.Lock()
        self._app: Any = None  # a2wsgi.WSGIMiddleware, which loads with the first request
        # It caches by Optuna's ids, which SQLite uses again: a new one after each deleted study.
        self._n_deleted = -1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
            return
        if scope["method"] not in READING and not self._writes:
            raise ReadOnly()
        self._upkeep.check_prepared()
        await self._prefixed(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_stale = self._n_deleted != self._store.deleting.n_purged
        app = await anyio.to_thread.run_sync(self._build) if is_stale else self._app
        await app(_with_accept_encoding(scope), receive, send)

    def close(self) -> None:
        """Ends the threads of the dashboard."""
        if self._app is not None:
            self._app.executor.shutdown(wait=False)

    def _build(self) -> ASGIApp:
        with self._building:
            n_deleted = self._store.deleting.n_purged
            if self._n_deleted != n_deleted:
                self._app, self._n_deleted = _wsgi_as_asgi(self._store), n_deleted
            app: ASGIApp = self._app
            return app


def _wsgi_as_asgi(store: Store) -> Any:
    import optuna_dashboard
    from a2wsgi import WSGIMiddleware

    wsgi = optuna_dashboard.wsgi(store.dashboard_storage(), artifact_store=store.artifacts)
    return WSGIMiddleware(wsgi, workers=THREADS)


def _with_accept_encoding(scope: Scope) -> Scope:
    """The dashboard answers 500 for a file when a client does not send this header."""
    if any(name == b"accept-encoding" for name, _ in scope["headers"]):
        return scope
    return {**scope, "headers": [*scope["headers"], (b"accept-encoding", b"identity")]}


def _is_dashboards(path: str) -> bool:
    return f"{path}/".startswith(PATHS)


def no_route(dashboard: Dashboard) -> ASGIApp:
    """What answers where no route matches: the dashboard on its own paths, a problem elsewhere."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        path = path_of(scope)
        if scope["type"] == "http" and not _is_dashboards(path):
            response = problem("not_found", f"There is nothing at {path}.")
            await response(scope, receive, send)
        else:
            await dashboard(scope, receive, send)

    return answer
