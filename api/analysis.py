"""What came out of a study so far; excluded trials are left out, or marked in whole columns."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from api.errors import problems
from api.schemas.analysis import (
    HistoryQuery,
    HistoryReply,
    ImportancesQuery,
    ImportancesReply,
    ParetoReply,
    PruningReply,
)
from api.schemas.overview import ColumnsQuery, ColumnsReply, CurvesQuery, CurvesReply
from api.service import StoreDep, StudyName

router = APIRouter(prefix="/studies/{study}", tags=["analysis"])


@router.get(
    "/importances",
    summary="How much each parameter matters for reaching the best trials",
    responses=problems("not_found", "too_few_trials"),
)
def get_importances(
    study: StudyName, query: Annotated[ImportancesQuery, Query()], store: StoreDep
) -> ImportancesReply:
    return ImportancesReply.of(study, store.analysis.importances(study, index=query.value))


@router.get(
    "/history", summary="The best value so far", responses=problems("not_found", "conflict")
)
def get_history(
    study: StudyName, query: Annotated[HistoryQuery, Query()], store: StoreDep
) -> HistoryReply:
    found = store.analysis.history(study, course=query.by, limit=query.limit)
    return HistoryReply.of(study, found)


@router.get(
    "/pareto",
    summary="The trials that no other one beats in every objective",
    responses=problems("not_found"),
)
def get_pareto(study: StudyName, store: StoreDep) -> ParetoReply:
    return ParetoReply.of(study, store.analysis.pareto(study))


@router.get("/pruning", summary="What pruning did and spared", responses=problems("not_found"))
def get_pruning(study: StudyName, store: StoreDep) -> PruningReply:
    return PruningReply.of(study, store.analysis.pruning(study))


@router.get(
    "/columns",
    summary="All trials with values and parameters, in columns",
    responses=problems("not_found"),
)
def get_columns(
    study: StudyName, query: Annotated[ColumnsQuery, Query()], store: StoreDep
) -> ColumnsReply:
    return ColumnsReply.of(
        study, store.overview.columns(study, after=query.after, limit=query.limit)
    )


@router.get(
    "/curves",
    summary="The newest curves, and the line that the pruner compares them with",
    responses=problems("not_found"),
)
def get_curves(
    study: StudyName, query: Annotated[CurvesQuery, Query()], store: StoreDep
) -> CurvesReply:
    found = store.overview.curves(study, limit=query.limit, max_points=query.max_points)
    return CurvesReply.of(study, found)
