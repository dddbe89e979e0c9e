"""Workers: register, beat, list."""

from __future__ import annotations

from uuid import UUID

from fastapi import APIRouter

from api.errors import problems
from api.schemas.workers import (
    Heartbeat,
    HeartbeatReply,
    LeaseTimesReply,
    WorkerList,
    WorkerRegister,
    WorkerReply,
)
from api.service import PreparedDep, StoreDep

router = APIRouter(prefix="/workers")


@router.post(
    "",
    summary="Register a worker process",
    tags=["worker protocol"],
    responses=problems("version_mismatch"),
)
def register(body: WorkerRegister, store: StoreDep) -> LeaseTimesReply:
    return LeaseTimesReply.of(store.workers.register(body.to_registration()))


@router.get("", summary="Registered workers", tags=["workers"], responses=problems())
def list_workers(service: PreparedDep) -> WorkerList:
    held = service.store.workers.held()
    return WorkerList(
        items=[
            WorkerReply.of(worker, held.get(worker.id, ()), service.devices.of(worker.id))
            for worker in service.store.workers.page()
        ]
    )


@router.post(
    "/{id}/heartbeat",
    summary="Renew the leases that it holds",
    tags=["worker protocol"],
    responses=problems("not_found"),
)
def heartbeat(id: UUID, body: Heartbeat, service: PreparedDep) -> HeartbeatReply:
    store = service.store
    lost = store.claims.renew(id, body.tokens)
    service.devices.note(id, [device.to_figures() for device in body.devices])
    return HeartbeatReply(lost=lost, deleted=list(map(UUID, store.deleting.lately())))
