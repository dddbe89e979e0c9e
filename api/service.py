"""What the endpoints work with: the store once it is prepared, the doorbell, the upkeep."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Annotated, cast

from fastapi import Depends, Request

from api.access import Guard
from api.doorbell import Doorbell
from api.feed import Feed
from api.figures import DeviceHistory
from api.lookout import Lookout
from api.metrics import Metrics
from api.upkeep import Upkeep
from hpo.errors import NotFound
from hpo.study import STUDY_NAME
from storage.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class Service:
    """The parts of one running service.

    Sampling takes 100 ms and more, so few claims look for work at once (`claim_slots`) and the
    other threads are left to reports.
    """

    store: Store
    doorbell: Doorbell
    lookout: Lookout
    upkeep: Upkeep
    guard: Guard
    metrics: Metrics
    feed: Feed
    devices: DeviceHistory = field(default_factory=DeviceHistory)
    claim_slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(4))
    # A study that comes in takes many times its length of memory while it is read.
    import_slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))

    def close(self) -> None:
        """Lets nobody wait any more; called on the event loop when the service stops."""
        self.doorbell.close()
        self.feed.close()


async def get_service(request: Request) -> Service:
    return cast(Service, request.app.state.service)


ServiceDep = Annotated[Service, Depends(get_service)]


async def get_store(service: ServiceDep) -> Store:
    """The store; raises Unavailable or SchemaMismatch while the database is not prepared."""
    service.upkeep.check_prepared()
    return service.store


async def get_prepared(service: ServiceDep) -> Service:
    """The service once its database is prepared; raises as `get_store` does."""
    service.upkeep.check_prepared()
    return service


async def get_doorbell(service: ServiceDep) -> Doorbell:
    return service.doorbell


async def get_metrics(service: ServiceDep) -> Metrics:
    return service.metrics


StoreDep = Annotated[Store, Depends(get_store)]
PreparedDep = Annotated[Service, Depends(get_prepared)]
DoorbellDep = Annotated[Doorbell, Depends(get_doorbell)]
MetricsDep = Annotated[Metrics, Depends(get_metrics)]


async def study_name(study: str) -> str:
    """A name that no study can have never reaches the database."""
    if not STUDY_NAME.fullmatch(study):
        raise NotFound(f"There is no study {study!r}.")
    return study


StudyName = Annotated[str, Depends(study_name)]
