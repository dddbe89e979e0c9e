"""The ASGI app: REST under /v1, health, /docs, and optuna-dashboard for every other path."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import anyio.to_thread
from fastapi import FastAPI

from api import ask, claims, events, health, objectives, studies, trials, workers
from api.dashboard import Dashboard, no_route
from api.docs import add_docs
from api.doorbell import Doorbell
from api.errors import Problem, add_error_handlers
from api.feed import Feed
from api.gate import Gate
from api.service import Service
from api.upkeep import Upkeep
from hpo.version import __version__
from storage.store import Store

DESCRIPTION = """\
Launch studies, read their trials, and run workers. Non-finite numbers travel as the strings
`"NaN"`, `"Infinity"` and `"-Infinity"`. Every error is a problem document (RFC 9457) with a
stable `code`. The dashboard is at [/dashboard](/dashboard).
"""

ROUTERS = (
    studies.router,
    trials.router,
    objectives.router,
    workers.router,
    claims.router,
    claims.on_trial,
    ask.router,
    events.router,
)


class _App(FastAPI):
    def openapi(self) -> dict[str, Any]:
        """Adds the schema that `api.errors.problems` refers to."""
        document = super().openapi()
        schema = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        document["components"]["schemas"].update(schema.pop("$defs"), Problem=schema)
        return document


def create_app(
    store: Store,
    *,
    dashboard_writes: bool = False,
    reap_seconds: float = 5.0,
    hosts: frozenset[str] | None = None,
) -> FastAPI:
    """The service on a store, which it prepares, reaps and closes; `hosts` are its own names.

    Long polls and streams end early once `app.state.service` is closed; `api.server` does so when
    the process is told to stop, because a lifespan ends only after all requests have.
    """
    doorbell = Doorbell()
    upkeep = Upkeep(store, doorbell, reap_seconds=reap_seconds)
    feed = Feed(store)
    service = Service(store=store, doorbell=doorbell, upkeep=upkeep, feed=feed)
    dashboard = Dashboard(store, upkeep, writes=dashboard_writes)

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        doorbell.bind()
        feed.bind()
        keeping = asyncio.create_task(upkeep.keep())
        try:
            yield
        finally:
            service.close()
            keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeping
            await feed.ended()
            dashboard.close()
            await anyio.to_thread.run_sync(store.close)

    app = _App(
        title="hpo",
        summary="A self-hosted hyperparameter optimization service",
        description=DESCRIPTION,
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        # /dashboard/ must not be sent to and fro between us and the dashboard.
        redirect_slashes=False,
    )
    app.state.service = service
    for router in ROUTERS:
        app.include_router(router, prefix="/v1")
    app.include_router(health.router)
    add_docs(app)
    app.router.default = no_route(dashboard)
    app.add_middleware(Gate, hosts=hosts)
    add_error_handlers(app)
    return app
