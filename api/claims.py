"""Claims, and what a worker says about the trial that it holds.

A claim waits on the event loop: it holds neither a thread nor a connection until it is called.
"""

from __future__ import annotations

import time
from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Depends, Request, Response

from api.errors import problems
from api.quick import QuickRoute
from api.schemas.claims import (
    ClaimBody,
    ClaimReply,
    CompleteBody,
    DecisionReply,
    FailBody,
    LeaseBody,
    LogBody,
    PruneBody,
    ReportBody,
    SettledReply,
    StartBody,
    SuggestBody,
    SuggestReply,
)
from api.service import DoorbellDep, MetricsDep, PreparedDep, Service, StoreDep, StudyName
from api.trials import Number
from storage.records import Claimed, Lease

router = APIRouter(tags=["worker protocol"])

PATIENT_SECONDS = 5.0


@router.post(
    "/claims",
    summary="Take a trial, waiting for one if need be",
    response_model=ClaimReply,
    responses={204: {"description": "No work within wait_seconds"}, **problems("not_found")},
)
async def claim(body: ClaimBody, request: Request, service: PreparedDep) -> ClaimReply | Response:
    claimed = await _claim(body, request, service)
    service.metrics.note_claim(was_granted=claimed is not None)
    return Response(status_code=204) if claimed is None else ClaimReply.of(claimed)


async def _claim(body: ClaimBody, request: Request, service: Service) -> Claimed | None:
    """Looks for work until there is some, the time is over, or nobody waits for the answer."""
    give_up_at = time.monotonic() + body.wait_seconds
    wanted, lookout = body.to_request(), service.lookout
    is_patient = body.wait_seconds >= PATIENT_SECONDS
    while True:
        ring = service.doorbell.next_ring()
        async with service.claim_slots:
            if await request.is_disconnected():
                return None
            # Who can wait for the next look of all need not begin with one of its own.
            if not (is_patient and lookout.has_nothing_for(wanted.worker_id)):
                claimed = await anyio.to_thread.run_sync(service.store.claims.claim, wanted)
                if claimed is not None:
                    return claimed
        left = give_up_at - time.monotonic()
        if left <= 0 or service.doorbell.is_closed:
            return None
        if not ring.is_set() and not await lookout.called(wanted, left):
            return None
        is_patient = False


async def _lease_of(study: StudyName, number: Number) -> tuple[str, int]:
    return study, number


TrialOf = Annotated[tuple[str, int], Depends(_lease_of)]
on_trial = APIRouter(
    prefix="/studies/{study}/trials/{number}", tags=["worker protocol"], route_class=QuickRoute
)

HELD = problems("not_found", "lease_lost", "trial_finished")


def _lease(trial: TrialOf, body: LeaseBody) -> Lease:
    study, number = trial
    return Lease(study_name=study, number=number, token=body.token)


@on_trial.post("/start", summary="The attempt begins", status_code=204, responses=HELD)
def start(trial: TrialOf, body: StartBody, store: StoreDep) -> None:
    store.claims.start(_lease(trial, body), body.resumed_from_step)


@on_trial.post("/renew", summary="Keep the lease", status_code=204, responses=HELD)
def renew(trial: TrialOf, body: LeaseBody, store: StoreDep) -> None:
    store.claims.keep(_lease(trial, body))


@on_trial.post("/suggest", summary="A parameter that the study does not declare", responses=HELD)
def suggest(trial: TrialOf, body: SuggestBody, store: StoreDep) -> SuggestReply:
    return SuggestReply.of(
        store.claims.suggest(_lease(trial, body), body.name, body.parameter.to_parameter())
    )


@on_trial.post(
    "/report",
    summary="A measurement; the answer is the verdict",
    responses=problems("not_found", "lease_lost", "trial_finished", "step_reported"),
)
def report(trial: TrialOf, body: ReportBody, store: StoreDep, metrics: MetricsDep) -> DecisionReply:
    decision = store.claims.report(
        _lease(trial, body), body.to_measurement(), body.user_attrs, body.constraints
    )
    metrics.note_verdict(decision.verdict)
    return DecisionReply.of(decision)


@on_trial.post(
    "/complete",
    summary="The trial has a value",
    responses=problems("not_found", "lease_lost", "trial_finished", "invalid_result"),
)
def complete(
    trial: TrialOf, body: CompleteBody, store: StoreDep, doorbell: DoorbellDep
) -> SettledReply:
    settled = store.claims.complete(
        _lease(trial, body), body.values or body.value, body.user_attrs, body.constraints
    )
    doorbell.ring()
    return SettledReply.of(settled)


@on_trial.post("/prune", summary="The trial was pruned", responses=HELD)
def prune(trial: TrialOf, body: PruneBody, store: StoreDep, doorbell: DoorbellDep) -> SettledReply:
    settled = store.claims.prune(_lease(trial, body), body.user_attrs, body.constraints)
    doorbell.ring()
    return SettledReply.of(settled)


@on_trial.post("/fail", summary="The attempt failed", responses=HELD)
def fail(trial: TrialOf, body: FailBody, store: StoreDep, doorbell: DoorbellDep) -> SettledReply:
    settled = store.claims.fail(
        _lease(trial, body), body.to_failure(), body.user_attrs, body.constraints
    )
    doorbell.ring()
    return SettledReply.of(settled)


@on_trial.post("/release", summary="Give the trial back", responses=HELD)
def release(
    trial: TrialOf, body: LeaseBody, store: StoreDep, doorbell: DoorbellDep
) -> SettledReply:
    settled = store.claims.release(_lease(trial, body))
    doorbell.ring()
    return SettledReply.of(settled)


@on_trial.post("/log", summary="Pieces of the attempt's output", status_code=204, responses=HELD)
def append_log(trial: TrialOf, body: LogBody, store: StoreDep) -> None:
    store.logs.append(_lease(trial, body), body.to_chunks())
