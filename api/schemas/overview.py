"""A study at one look, in columns."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from api.schemas.base import MAX_INT, Query, Reply
from hpo.numbers import strict
from hpo.search.percentiles import Thresholds
from hpo.study import Direction
from hpo.trial import Reason, TrialState
from storage.overview import Curve, Curves, TrialColumns


class ColumnsQuery(Query):
    limit: Annotated[int, Field(ge=1, le=20_000)] = 10_000
    after: Annotated[int, Field(ge=0, le=MAX_INT)] | None = None


class ColumnsReply(Reply):
    """Trials by ascending number; each column has an entry for each of them.

    `values` has a column for each direction, `params` one for each name, with null where a trial
    has none. `left_out` are numbers of trials that are no results: excluded, or infeasible.
    """

    study: str
    directions: list[Direction]
    numbers: list[int]
    states: list[TrialState]
    values: list[list[float | None]]
    params: dict[str, list[Any]]
    left_out: list[int]
    next: int | None

    @classmethod
    def of(cls, study: str, found: TrialColumns) -> ColumnsReply:
        return cls.taken_from(
            found, study=study, params=strict({name: list(c) for name, c in found.params.items()})
        )


class CurvesQuery(Query):
    """So many curves of running trials and of others, with so many points each at most."""

    limit: Annotated[int, Field(ge=1, le=500)] = 100
    max_points: Annotated[int, Field(ge=2, le=2000)] = 300


class ThresholdsReply(Reply):
    """What a median or percentile pruner compares a running trial's best value with, by step.

    It does so from `first_step` on, once `n_startup_trials` have completed; `n_complete` have.
    """

    pruner: str
    percentile: float
    n_startup_trials: int
    n_complete: int
    first_step: int
    steps: list[int]
    values: list[float]
    n_trials: list[int]

    @classmethod
    def of(cls, found: Thresholds) -> ThresholdsReply:
        return cls.taken_from(found)


class CurveReply(Reply):
    """What a trial has reported; `prune` holds the numbers behind the verdict that ended it."""

    number: int
    state: TrialState
    is_best: bool
    reason: Reason | None
    prune: dict[str, Any] | None
    steps: list[int]
    values: list[float]

    @classmethod
    def of(cls, curve: Curve) -> CurveReply:
        return cls.taken_from(
            curve, prune=None if curve.prune is None else strict(dict(curve.prune))
        )


class CurvesReply(Reply):
    """Curves of running trials, of those that ended last and of the best, by number.

    `thresholds` is null for pruners that do not compare with one value for each step.
    """

    study: str
    thresholds: ThresholdsReply | None
    trials: list[CurveReply]

    @classmethod
    def of(cls, study: str, found: Curves) -> CurvesReply:
        return cls(
            study=study,
            thresholds=None if found.thresholds is None else ThresholdsReply.of(found.thresholds),
            trials=[CurveReply.of(curve) for curve in found.trials],
        )
