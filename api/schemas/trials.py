"""Trials and their logs in replies and queries."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any

from pydantic import Field

from api.schemas.base import MAX_INT, Query, Reply
from api.schemas.models import ModelReply
from hpo.numbers import strict
from hpo.trial import Reason, TrialState, Verdict
from storage.records import AttemptRecord, CurvePoint, LogLine, Page, TrialRecord


class CurvePointReply(Reply):
    step: int
    value: float
    attempt: int | None
    elapsed_seconds: float | None
    metrics: dict[str, float]
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


class TrialReply(Reply):
    """A trial; lists leave `attempts` empty, and `curve` too unless they were asked for curves."""

    number: int
    state: TrialState
    value: float | None
    params: dict[str, Any]
    user_attrs: dict[str, Any]
    reason: Reason | None
    message: str
    attempt: int
    awaiting_attempt: bool
    worker: str | None
    device: str | None
    last_step: int | None
    last_value: float | None
    prune: dict[str, Any] | None
    started_at: dt.datetime | None
    ended_at: dt.datetime | None
    model: ModelReply | None
    curve: list[CurvePointReply]
    attempts: list[AttemptReply]

    @classmethod
    def of(cls, record: TrialRecord) -> TrialReply:
        return cls.taken_from(
            record,
            user_attrs=strict(dict(record.user_attrs)),
            worker=record.worker_name,
            prune=None if record.prune is None else strict(dict(record.prune)),
            model=ModelReply.or_none(record.model),
            curve=[CurvePointReply.of(point) for point in record.curve],
            attempts=[AttemptReply.of(attempt) for attempt in record.attempts],
        )


class TrialPage(Reply):
    """Ascending numbers; `next` goes into `after` of the next request."""

    items: list[TrialReply]
    next: int | None

    @classmethod
    def of(cls, page: Page[TrialRecord]) -> TrialPage:
        return cls(items=[TrialReply.of(record) for record in page.items], next=page.next)


class TrialQuery(Query):
    state: Annotated[list[TrialState], Field(default_factory=list)]
    limit: Annotated[int, Field(ge=1, le=500)] = 50
    after: Annotated[int, Field(ge=0, le=MAX_INT)] | None = None
    curves: bool = False


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
    limit: Annotated[int, Field(ge=1, le=1000)] = 1000
    after: Annotated[int, Field(ge=0, le=MAX_INT)] | None = None
