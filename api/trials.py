"""Trials: list, show, log, enqueue, and what users change of one."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from api.errors import problems
from api.idempotency import IdempotencyKey, fingerprint
from api.schemas.base import MAX_INT
from api.schemas.points import EnqueueBody, EnqueuedReply, ExcludeBody, RequeueBody
from api.schemas.trials import LogPage, LogQuery, TrialPage, TrialQuery, TrialReply
from api.service import DoorbellDep, StoreDep, StudyName
from storage.enqueueing import Request

router = APIRouter(prefix="/studies/{study}/trials", tags=["trials"])

Number = Annotated[int, Path(ge=0, le=MAX_INT)]


@router.get(
    "", summary="Trials, by ascending number or another order", responses=problems("not_found")
)
def list_trials(
    study: StudyName, query: Annotated[TrialQuery, Query()], store: StoreDep
) -> TrialPage:
    return TrialPage.of(
        store.trials.page(
            study,
            states=query.state,
            wanted=query.to_filter(),
            order=query.to_order(),
            limit=query.limit,
            after=query.after,
            curves=query.curves,
        )
    )


@router.post(
    "",
    summary="Enqueue points: parameters to be tried next",
    status_code=201,
    responses=problems("not_found", "conflict", "idempotency_key_reused"),
)
def enqueue_points(
    study: StudyName,
    body: EnqueueBody,
    store: StoreDep,
    doorbell: DoorbellDep,
    key: IdempotencyKey = None,
) -> EnqueuedReply:
    request = Request(key=key, fingerprint=fingerprint(body, study=study), extend=body.extend)
    points = [point.to_point() for point in body.points]
    numbers = store.enqueueing.enqueue(study, points, request)
    doorbell.ring()
    return EnqueuedReply(study=study, numbers=numbers)


@router.get(
    "/{number}",
    summary="A trial with its curve and attempts",
    responses=problems("not_found"),
)
def get_trial(study: StudyName, number: Number, store: StoreDep) -> TrialReply:
    return TrialReply.of(store.trials.get(study, number))


@router.get(
    "/{number}/log", summary="What a trial's attempts wrote", responses=problems("not_found")
)
def get_log(
    study: StudyName, number: Number, query: Annotated[LogQuery, Query()], store: StoreDep
) -> LogPage:
    if query.tail is not None:
        tail = store.logs.tail(study, number, n_lines=query.tail, attempt=query.attempt)
        return LogPage.of(tail)
    return LogPage.of(
        store.logs.page(study, number, after=query.after, limit=query.limit, attempt=query.attempt)
    )


@router.post(
    "/{number}/cancel",
    summary="End one trial; its study goes on",
    responses=problems("not_found", "conflict", "trial_finished"),
)
def cancel_trial(
    study: StudyName, number: Number, store: StoreDep, doorbell: DoorbellDep
) -> TrialReply:
    store.trial_changes.cancel(study, number)
    doorbell.ring()  # max_parallel_trials may have room now
    return TrialReply.of(store.trials.get(study, number))


@router.post(
    "/{number}/requeue",
    summary="Enqueue the parameters of a trial that has ended once more",
    status_code=201,
    responses=problems("not_found", "conflict", "idempotency_key_reused"),
)
def requeue_trial(
    study: StudyName,
    number: Number,
    store: StoreDep,
    doorbell: DoorbellDep,
    body: RequeueBody | None = None,
    key: IdempotencyKey = None,
) -> EnqueuedReply:
    body = body or RequeueBody()
    mark = fingerprint(body, study=study, number=number)
    new = store.enqueueing.requeue(
        study, number, Request(key=key, fingerprint=mark, extend=body.extend)
    )
    doorbell.ring()
    return EnqueuedReply(study=study, numbers=[new])


@router.post(
    "/{number}/exclude",
    summary="Take a finished trial out of best, history and analysis",
    responses=problems("not_found", "conflict"),
)
def exclude_trial(
    study: StudyName, number: Number, store: StoreDep, body: ExcludeBody | None = None
) -> TrialReply:
    store.trial_changes.exclude(study, number, (body or ExcludeBody()).reason)
    return TrialReply.of(store.trials.get(study, number))


@router.post(
    "/{number}/include",
    summary="Take an excluded trial in again",
    responses=problems("not_found", "conflict"),
)
def include_trial(study: StudyName, number: Number, store: StoreDep) -> TrialReply:
    store.trial_changes.include(study, number)
    return TrialReply.of(store.trials.get(study, number))
