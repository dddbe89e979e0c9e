"""Trials: list, show, log."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from api.errors import problems
from api.schemas.base import MAX_INT
from api.schemas.trials import LogPage, LogQuery, TrialPage, TrialQuery, TrialReply
from api.service import StoreDep, StudyName

router = APIRouter(prefix="/studies/{study}/trials", tags=["trials"])

Number = Annotated[int, Path(ge=0, le=MAX_INT)]


@router.get("", summary="Trials, by ascending number", responses=problems("not_found"))
def list_trials(
    study: StudyName, query: Annotated[TrialQuery, Query()], store: StoreDep
) -> TrialPage:
    return TrialPage.of(
        store.trials.page(
            study, states=query.state, limit=query.limit, after=query.after, curves=query.curves
        )
    )


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
    return LogPage.of(store.logs.page(study, number, after=query.after, limit=query.limit))
