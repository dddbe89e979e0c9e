"""Trials and their logs in replies and queries."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any

from pydantic import Field

from api.schemas.base import MAX_INT, Number, Query, Reply
from api.schemas.models import ModelReply
from hpo.numbers import strict
from hpo.trial import Reason, TrialState, Verdict
from storage.records import (
    AttemptRecord,
    CurvePoint,
    Exclusion,
    LogLine,
    Page,
    TrialRecord,
    TrialsPage,
)
from storage.trial_order import SortBy, TrialFilter, TrialOrder


class CurvePointReply(Reply):
    step: int
    value: Number
    attempt: int | None
    elapsed_seconds: float | None
    metrics: dict[str, Number]
    verdict: Verdict | None

    @classmethod
    def of(cls, point: CurvePoint) -> CurvePointReply:
        return cls.taken_from(point)


class AttemptReply(Reply):
    attempt: int
    worker: str
    device: str
    started_at: dt.datetime
    ended_at: dt.datetime | None
    resumed_from_step: int | None
    outcome: str | None
    reason: Reason | None
    message: str
    traceback: str

    @classmethod
    def of(cls, record: AttemptRecord) -> AttemptReply:
        return cls.taken_from(record, worker=record.worker_name)


class ExclusionReply(Reply):
    reason: str
    excluded_at: dt.datetime

    @classmethod
    def of(cls, exclusion: Exclusion) -> ExclusionReply:
        return cls.taken_from(exclusion)


class TrialReply(Reply):
    """A trial; `value` is null where the study has several directions, see `values`.

    Lists leave `attempts` empty, and `curve` too unless they were asked for curves. `enqueued`
    holds the parameters that somebody asked for, `exclusion` says why a trial is left out of
    best, history and analysis.
    """

    number: int
    state: TrialState
    value: Number | None
    values: list[Number]
    params: dict[str, Any]
    user_attrs: dict[str, Any]
    constraints: dict[str, Number]
    reason: Reason | None
    message: str
    attempt: int
    awaiting_attempt: bool
    worker: str | None
    device: str | None
    last_step: int | None
    last_value: Number | None
    prune: dict[str, Any] | None
    started_at: dt.datetime | None
    ended_at: dt.datetime | None
    enqueued: dict[str, Any] | None
    exclusion: ExclusionReply | None
    model: ModelReply | None
    curve: list[CurvePointReply]
    attempts: list[AttemptReply]

    @classmethod
    def of(cls, record: TrialRecord) -> TrialReply:
        return cls.taken_from(
            record,
            user_attrs=strict(dict(record.user_attrs)),
            values=list(record.values),
            constraints=dict(record.constraints),
            worker=record.worker_name,
            prune=None if record.prune is None else strict(dict(record.prune)),
            enqueued=None if record.enqueued is None else strict(dict(record.enqueued)),
            exclusion=None if record.exclusion is None else ExclusionReply.of(record.exclusion),
            model=ModelReply.or_none(record.model),
            curve=[CurvePointReply.of(point) for point in record.curve],
            attempts=[AttemptReply.of(attempt) for attempt in record.attempts],
        )


class TrialPage(Reply):
    """`next` goes into `after` of the next request, in the same order."""

    items: list[TrialReply]
    next: int | str | None

    @classmethod
    def of(cls, page: TrialsPage) -> TrialPage:
        return cls(items=[TrialReply.of(record) for record in page.items], next=page.next)


class TrialQuery(Query):
    """Trials without a value, a start or an end come last in the order of these, either way."""

    state: Annotated[list[TrialState], Field(default_factory=list)]
    excluded: bool | None = None
    awaiting_attempt: bool | None = None
    min_value: Annotated[float, Field(allow_inf_nan=False)] | None = None
    max_value: Annotated[float, Field(allow_inf_nan=False)] | None = None
    sort: SortBy = SortBy.NUMBER
    descending: bool = False
    limit: Annotated[int, Field(ge=1, le=500)] = 50
    after: Annotated[str, Field(max_length=100)] | None = None
    curves: bool = False

    def to_filter(self) -> TrialFilter:
        return TrialFilter(
            excluded=self.excluded,
            awaiting_attempt=self.awaiting_attempt,
            min_value=self.min_value,
            max_value=self.max_value,
        )

    def to_order(self) -> TrialOrder:
        return TrialOrder(by=self.sort, descending=self.descending)


class LogLineReply(Reply):
    id: int
    attempt: int
    sequence: int
    text: str

    @classmethod
    def of(cls, line: LogLine) -> LogLineReply:
        return cls.taken_from(line)


class LogPage(Reply):
    """Pieces of a trial's log in the order in which they came."""

    items: list[LogLineReply]
    next: int | None

    @classmethod
    def of(cls, page: Page[LogLine]) -> LogPage:
        return cls(items=[LogLineReply.of(line) for line in page.items], next=page.next)


class LogQuery(Query):
    """`tail` asks for the last lines; then there are no further pages."""

    limit: Annotated[int, Field(ge=1, le=1000)] = 1000
    after: Annotated[int, Field(ge=0, le=MAX_INT)] | None = None
    attempt: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None
    tail: Annotated[int, Field(ge=1, le=10_000)] | None = None
