"""Studies in replies and queries."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import Field

from api.errors import FieldError
from api.schemas.base import MAX_INT, Body, Bool, Query, Reply, Text
from api.schemas.models import ModelReply
from api.schemas.space import space_reply
from api.schemas.study_create import Tag
from hpo.numbers import strict
from hpo.study import (
    MAX_TAGS,
    Algorithm,
    Direction,
    OnFault,
    StudyDefinition,
    StudyState,
    ValueRule,
)
from hpo.trial import TrialState
from storage.records import BestOfStudy, BestTrial, Page, StudyRecord
from storage.studies import Filter

# What is known of a study beside its definition.
PROGRESS = (
    "uuid",
    "state",
    "reason",
    "blocked",
    "models_blocked",
    "n_started",
    "counts",
    "awaiting_attempt",
    "created_at",
    "ended_at",
    "archived_at",
)


class BestReply(Reply):
    """The COMPLETE trial with the best finite value."""

    number: int
    value: float
    params: dict[str, Any]
    model: ModelReply | None

    @classmethod
    def of(cls, best: BestTrial) -> BestReply:
        return cls.taken_from(best, model=ModelReply.or_none(best.model))


class RankedTrialReply(BestReply):
    """A best trial and the step that reported its value; null where the objective returned it."""

    step: int | None

    @classmethod
    def of(cls, best: BestTrial) -> RankedTrialReply:
        return cls.taken_from(best, model=ModelReply.or_none(best.model))


class BestOfStudyReply(BestReply):
    """The best trial, and apart from it the best of those that were pruned."""

    study: str
    step: int | None
    value_rule: ValueRule
    best_pruned: RankedTrialReply | None

    @classmethod
    def of_study(cls, study: str, best: BestOfStudy) -> BestOfStudyReply:
        return cls.taken_from(
            best,
            study=study,
            model=ModelReply.or_none(best.model),
            best_pruned=best.best_pruned and RankedTrialReply.of(best.best_pruned),
        )


class BudgetReply(Reply):
    n_trials: int
    max_parallel_trials: int | None
    max_failed_trials: int | None
    timeout_seconds: float | None
    trial_timeout_seconds: float | None
    no_progress_seconds: float | None


class StudyReply(Reply):
    """A study and what became of it so far.

    With several directions, `direction` and `best` are null: see `directions` and `/pareto`.
    """

    name: str
    uuid: UUID
    state: StudyState
    reason: str | None
    blocked: str | None
    models_blocked: str | None
    objective: str | None
    direction: Direction | None
    directions: list[Direction]
    space: dict[str, dict[str, Any]] | None
    settings: dict[str, Any]
    sampler: dict[str, Any]
    pruner: dict[str, Any]
    seed: int
    metric: str | None
    metrics: list[str]
    max_steps: int | None
    value_rule: ValueRule
    max_attempts: int
    retry_backoff_seconds: float
    on_diverged: OnFault
    on_out_of_memory: OnFault
    keep_models: int
    replicates: str | None
    priority: int
    tags: list[str]
    notes: str
    budget: BudgetReply
    n_started: int
    counts: dict[TrialState, int]
    awaiting_attempt: int
    best: BestReply | None
    created_at: dt.datetime
    ended_at: dt.datetime | None
    archived_at: dt.datetime | None

    @classmethod
    def of(cls, record: StudyRecord) -> StudyReply:
        definition = record.definition
        progress = {name: getattr(record, name) for name in PROGRESS}
        return cls.taken_from(
            definition,
            **progress,
            direction=None if definition.is_multi_objective else definition.direction,
            directions=list(definition.directions),
            metrics=list(definition.metrics),
            tags=list(definition.tags),
            space=space_reply(definition.space),
            settings=strict(dict(definition.settings)),
            sampler=_algorithm_reply(definition.sampler),
            pruner=_algorithm_reply(definition.pruner),
            budget=BudgetReply.taken_from(definition.budget),
            best=None if record.best is None else BestReply.of(record.best),
        )


class StudyDraftReply(Reply):
    """A study that a document would make, with what comes from the objective and from defaults."""

    name: str
    objective: str | None
    directions: list[Direction]
    metrics: list[str]
    n_trials: int
    max_steps: int | None
    space: dict[str, dict[str, Any]] | None
    settings: dict[str, Any]
    sampler: dict[str, Any]
    pruner: dict[str, Any]

    @classmethod
    def of(cls, definition: StudyDefinition) -> StudyDraftReply:
        return cls.taken_from(
            definition,
            directions=list(definition.directions),
            metrics=list(definition.metrics),
            n_trials=definition.budget.n_trials,
            space=space_reply(definition.space),
            settings=strict(dict(definition.settings)),
            sampler=_algorithm_reply(definition.sampler),
            pruner=_algorithm_reply(definition.pruner),
        )


class StudyCheckReply(Reply):
    """Every fault of a study document; without one, the study that it would make.

    `exists`: the same study is there already, and creating it would find it again.
    """

    errors: list[FieldError]
    exists: bool = False
    study: StudyDraftReply | None = None

    @classmethod
    def faulty(cls, faults: Iterable[tuple[str, str]]) -> StudyCheckReply:
        return cls(errors=[FieldError(field=field, message=said) for field, said in faults])


class StudyPage(Reply):
    """Newest first; `next` goes into `after` of the next request."""

    items: list[StudyReply]
    next: int | None

    @classmethod
    def of(cls, page: Page[StudyRecord]) -> StudyPage:
        return cls(items=[StudyReply.of(record) for record in page.items], next=page.next)


class StudyQuery(Query):
    """Studies in one of these states that have every `tag`; archived ones when asked for."""

    state: Annotated[list[StudyState], Field(default_factory=list)]
    tag: Annotated[list[Tag], Field(default_factory=list, max_length=MAX_TAGS)]
    name_prefix: Annotated[Text, Field(max_length=200)] = ""
    archived: Literal["false", "true", "any"] = "false"
    limit: Annotated[int, Field(ge=1, le=500)] = 50
    after: Annotated[int, Field(ge=0, le=MAX_INT)] | None = None

    def to_filter(self) -> Filter:
        return Filter(
            states=self.state,
            tags=self.tag,
            name_prefix=self.name_prefix,
            archived=None if self.archived == "any" else self.archived == "true",
        )


class StudyCancel(Body):
    """How a study is cancelled: its trials end at their next report, or `now`."""

    now: Bool = False


class StudyDelete(Query):
    """With `force` also a study that has not ended: its trials end at once."""

    force: bool = False


class StudyWait(Query):
    """With `wait_seconds` the answer waits for one of these states; none means: has ended."""

    wait_seconds: Annotated[float, Field(ge=0, le=60, allow_inf_nan=False)] = 0.0
    state: Annotated[list[StudyState], Field(default_factory=list)]

    def is_met(self, state: StudyState) -> bool:
        return state in self.state if self.state else state.is_ended


def _algorithm_reply(algorithm: Algorithm) -> dict[str, Any]:
    return {"name": algorithm.name, **strict(dict(algorithm.options))}
