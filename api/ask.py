"""Ask and tell: trials for any program. What it tells goes to the routes that workers use."""

from __future__ import annotations

import time

import anyio.to_thread
from fastapi import APIRouter, Request

from api.doorbell import heard
from api.errors import problems
from api.idempotency import IdempotencyKey, fingerprint
from api.lookout import LOOK_AGAIN_SECONDS
from api.schemas.claims import AskBody, AskReply
from api.service import PreparedDep, Service, StudyName
from storage.records import Asked, AskRequest

router = APIRouter(prefix="/studies/{study}", tags=["worker protocol"])


@router.post(
    "/ask",
    summary="Trials of a study without an objective, for any program to try",
    responses=problems("not_found", "conflict", "idempotency_key_reused"),
)
async def ask(
    study: StudyName,
    body: AskBody,
    request: Request,
    service: PreparedDep,
    key: IdempotencyKey = None,
) -> AskReply:
    # However long it may wait, it asks for the same.
    asked = body.model_copy(update={"wait_seconds": 0.0})
    wanted = body.to_request(key, fingerprint(asked, study=study))
    return AskReply.of(await _ask(study, wanted, body.wait_seconds, request, service))


async def _ask(
    study: str, wanted: AskRequest, wait_seconds: float, request: Request, service: Service
) -> Asked:
    """Looks until there is a trial, the study has ended, or the time is over."""
    give_up_at = time.monotonic() + wait_seconds
    while True:
        ring = service.doorbell.next_ring()
        async with service.claim_slots:
            asked = await anyio.to_thread.run_sync(service.store.claims.ask, study, wanted)
        left = give_up_at - time.monotonic()
        is_over = left <= 0 or asked.state.is_ended or service.doorbell.is_closed
        if asked.trials or is_over or await request.is_disconnected():
            return asked
        await heard(ring, min(left, max(LOOK_AGAIN_SECONDS)))
