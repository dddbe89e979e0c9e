"""The ASGI app: REST under /v1, health, /docs, the console at /, optuna-dashboard elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import anyio.to_thread
from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from api import (
    analysis,
    ask,
    claims,
    events,
    health,
    login,
    models,
    objectives,
    operations,
    session,
    studies,
    tokens,
    transfer,
    trials,
    workers,
)
from api.access import Guard
from api.dashboard import Dashboard, no_route
from api.docs import add_docs
from api.doorbell import Doorbell
from api.entrance import Crowd, Entrance
from api.errors import add_error_handlers
from api.feed import Feed
from api.gate import MAX_IMPORT_BYTES, Gate
from api.lookout import Lookout
from api.metrics import Metrics
from api.observing import Observer
from api.openapi import DESCRIPTION, TAGS, App
from api.pages import add_console
from api.routes import Routes
from api.service import Service
from api.upkeep import Upkeep
from hpo.errors import HpoError
from hpo.version import __version__
from storage.store import Store

ALLOWED_HEADERS = ("Idempotency-Key", "If-Match", "Last-Event-ID", "X-Request-ID")

# The first are asked most, and routes are tried in their order.
ROUTERS = (
    claims.on_trial,
    claims.router,
    workers.router,
    studies.router,
    trials.router,
    analysis.router,
    objectives.router,
    tokens.router,
    session.router,
    models.router,
    models.sending,
    ask.router,
    events.router,
    transfer.router,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """Who gets in, and from where.

    `hosts` are the service's own names, `root_path` the prefix that a proxy has for it, `origins`
    the sites whose pages may read it. With `may_be_open` everybody may do everything until the
    first token is made; `own_token` is that of a worker which was started beside this service.
    """

    hosts: frozenset[str] | None = None
    root_path: str = ""
    origins: frozenset[str] = frozenset()
    may_be_open: bool = True
    own_token: str | None = None


def create_app(
    store: Store,
    *,
    dashboard_writes: bool = False,
    reap_seconds: float = 5.0,
    access: Access | None = None,
    max_import_bytes: int = MAX_IMPORT_BYTES,
) -> FastAPI:
    """The service on a store, which it prepares, reaps and closes.

    Long polls and streams end early once `app.state.service` is closed; `api.server` does so when
    the process is told to stop, because a lifespan ends only after all requests have.
    """
    access, crowd, doorbell = access or Access(), Crowd(), Doorbell()
    upkeep = Upkeep(store, doorbell, reap_seconds=reap_seconds)
    dashboard = Dashboard(store, upkeep, writes=dashboard_writes)
    service = Service(
        store=store,
        doorbell=doorbell,
        lookout=Lookout(doorbell, lambda requests: store.claims.callable_claims(requests)),
        upkeep=upkeep,
        feed=Feed(store),
        guard=Guard(store, upkeep, may_be_open=access.may_be_open, own_token=access.own_token),
        metrics=Metrics(store, n_waiting=lambda: crowd.n_waiting),
    )
    app = App(
        title="hpo",
        summary="A self-hosted hyperparameter optimization service",
        description=DESCRIPTION.format(root=access.root_path),
        version=__version__,
        openapi_tags=[{"name": name} for name in TAGS],
        lifespan=_lifespan_of(service, dashboard),
        docs_url=None,
        redoc_url=None,
        # /dashboard/ must not be sent to and fro between us and the dashboard.
        redirect_slashes=False,
    )
    app.state.service = service
    for router in ROUTERS:
        app.include_router(router, prefix="/v1")
    for router in (health.router, operations.router, login.router):
        app.include_router(router)
    add_docs(app)
    add_console(app)
    app.router.default = no_route(dashboard)
    _add_layers(app, service, crowd, access, max_import_bytes)
    add_error_handlers(app)
    return app


def _lifespan_of(
    service: Service, dashboard: Dashboard
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    service.upkeep.add_chore("note which tokens were used", service.guard.note_uses)

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        service.doorbell.bind()
        service.feed.bind()
        service.store.watch_statements(service.metrics.note_statement)
        keeping = asyncio.create_task(service.upkeep.keep())
        try:
            yield
        finally:
            service.close()
            keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeping
            await service.feed.ended()
            await dashboard.close()
            with contextlib.suppress(HpoError):
                await anyio.to_thread.run_sync(service.guard.note_uses)
            await anyio.to_thread.run_sync(service.store.close)

    return lifespan


def _add_layers(
    app: FastAPI, service: Service, crowd: Crowd, access: Access, max_import_bytes: int
) -> None:
    """From the inside out: the one that is added last sees a request first."""
    app.add_middleware(Entrance, guard=service.guard, crowd=crowd, origins=access.origins)
    app.add_middleware(Gate, hosts=access.hosts, max_import_bytes=max_import_bytes)
    if access.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=sorted(access.origins),
            allow_methods=["GET", "POST", "PATCH", "PUT", "DELETE"],
            allow_headers=["Authorization", "Content-Type", *ALLOWED_HEADERS],
            expose_headers=["ETag", "Location", "Retry-After", "X-Request-ID"],
        )
    app.add_middleware(
        Observer,
        find_routes=lambda: Routes(app.routes),
        metrics=service.metrics,
        root_path=access.root_path,
    )
