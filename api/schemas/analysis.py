"""Analysis in replies and queries."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any

from pydantic import Field

from api.schemas.base import Number, Query, Reply
from hpo.search import Importances
from hpo.study import MAX_DIRECTIONS, Direction
from storage.analysis import Course, History, ParetoFront
from storage.pruning_report import PruningReport


class ImportanceReply(Reply):
    parameter: str
    importance: float


class ImportancesReply(Reply):
    """Shares that add up to 1, the largest first; all 0 when no parameter varied."""

    study: str
    evaluator: str
    n_trials: int
    importances: list[ImportanceReply]

    @classmethod
    def of(cls, study: str, found: Importances) -> ImportancesReply:
        shares = [
            ImportanceReply(parameter=name, importance=share)
            for name, share in found.by_parameter.items()
        ]
        return cls(study=study, evaluator="ped_anova", n_trials=found.n_trials, importances=shares)


class ImportancesQuery(Query):
    """`value`: for which of the study's values, counted from 0."""

    value: Annotated[int, Field(ge=0, lt=MAX_DIRECTIONS)] = 0


class HistoryQuery(Query):
    by: Course = Course.NUMBER
    limit: Annotated[int, Field(ge=2, le=1000)] = 500


class ImprovementReply(Reply):
    number: int
    value: float
    ended_at: dt.datetime | None


class HistoryReply(Reply):
    """Each trial that was better than all before it; thinned evenly beyond `limit`."""

    study: str
    direction: Direction
    n_improvements: int
    improvements: list[ImprovementReply]

    @classmethod
    def of(cls, study: str, found: History) -> HistoryReply:
        items = [ImprovementReply.taken_from(item) for item in found.improvements]
        return cls.taken_from(found, study=study, improvements=items)


class ParetoTrialReply(Reply):
    number: int
    values: list[float]
    params: dict[str, Any]


class ParetoReply(Reply):
    """The trials that no other one beats in every objective; with one objective, the best."""

    study: str
    directions: list[Direction]
    trials: list[ParetoTrialReply]

    @classmethod
    def of(cls, study: str, found: ParetoFront) -> ParetoReply:
        trials = [ParetoTrialReply.taken_from(trial) for trial in found.trials]
        return cls(study=study, directions=list(found.directions), trials=trials)


class NearestPrunedReply(Reply):
    """`gap` is how much worse it was at that step than the best trial; negative: it was ahead."""

    number: int
    step: int
    value: Number
    best_number: int
    best_value: Number
    gap: Number


class PruningReply(Reply):
    """What pruning spared, in steps; `by_reason` tells `pruner` from other causes of a prune.

    `max_steps` is the study's, or the longest curve of a complete trial; null: nobody knows.
    """

    study: str
    n_pruned: int
    n_complete: int
    by_reason: dict[str, int]
    max_steps: int | None
    done_steps: int
    saved_steps: int | None
    share: float | None
    nearest: NearestPrunedReply | None

    @classmethod
    def of(cls, study: str, found: PruningReport) -> PruningReply:
        nearest = None if found.nearest is None else NearestPrunedReply.taken_from(found.nearest)
        return cls.taken_from(found, study=study, nearest=nearest)
