"""optuna-dashboard behind the service's own routes: its pages live at /dashboard.

It gets every path that no route of ours takes, because its page asks for /static and /api at
the root of the site. It writes, so only reading goes through unless writes are allowed; who may
read is the rule of `api.access`, as for every path. The pages are made in a process of their own.
"""

from __future__ import annotations

from pathlib import Path

import anyio.to_thread
from starlette.types import ASGIApp, Receive, Scope, Send

from api.dashboard_process import DashboardProcess
from api.dashboard_server import N_DELETED
from api.errors import ReadOnly, problem
from api.prefix import Prefixed
from api.relay import Relay
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


class Dashboard:
    """The ASGI app behind all paths that are not the service's own."""

    def __init__(self, store: Store, upkeep: Upkeep, *, writes: bool) -> None:
        self._store, self._upkeep, self._writes = store, upkeep, writes
        self._prefixed = Prefixed(self._serve)
        self.process = DashboardProcess(store, writes=writes)
        self._relay: Relay | None = None
        upkeep.add_chore("end the idle dashboard", self.process.end_if_idle)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
            return
        if scope["method"] not in READING and not self._writes:
            raise ReadOnly()
        self._upkeep.check_prepared()
        await self._prefixed(scope, receive, send)

    async def close(self) -> None:
        """Ends the process that serves the pages."""
        if self._relay is not None:
            await self._relay.close()
        await anyio.to_thread.run_sync(self.process.close)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self.process.in_use():
            relay = await self._relay_to(await anyio.to_thread.run_sync(self.process.socket_path))
            headers = {N_DELETED: str(self._store.deleting.n_purged)}
            await relay.send_on(scope, receive, send, **headers)

    async def _relay_to(self, path: Path) -> Relay:
        relay = self._relay
        if relay is None or relay.socket_path != path:
            self._relay = Relay(path)
            if relay is not None:
                await relay.close()
            return self._relay
        return relay


def _is_dashboards(path: str) -> bool:
    return path in ("", "/") or f"{path}/".startswith(PATHS)


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
