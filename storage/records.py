"""What storage answers: frozen values, all times aware UTC. No row or session leaves this room."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from uuid import UUID

from hpo.objective import Descriptor
from hpo.space import Choice
from hpo.study import StudyDefinition, StudyState, ValueRule
from hpo.trial import Reason, TrialState, Verdict

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Page(Generic[T]):
    """Part of a list; `next` is the `after` of the following page, None on the last one."""

    items: Sequence[T]
    next: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelOffer:
    """A model that an attempt has: `step` is None when nobody said of which one it is."""

    step: int | None
    sha256: str
    size_bytes: int
    suffix: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelRecord(ModelOffer):
    """The stored model of a trial, by Optuna's name of its file."""

    study_name: str
    number: int
    artifact_id: str

    @property
    def file_name(self) -> str:
        return f"{self.study_name}-{self.number}{self.suffix}"


@dataclass(frozen=True, kw_only=True, slots=True)
class BestTrial:
    """The COMPLETE trial with the best finite value; ties go to the smaller number."""

    number: int
    value: float
    params: Mapping[str, Choice]
    model: ModelRecord | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RankedTrial(BestTrial):
    """A best trial and the step that reported its value; None where the objective returned it."""

    step: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class BestOfStudy(RankedTrial):
    """The best trial, how trials get their values, and the best of those that were pruned.

    The value of a pruned trial is its last one, so it may look better than the best.
    """

    value_rule: ValueRule
    best_pruned: RankedTrial | None


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyRecord:
    """A study with what became of it so far.

    `counts` has every trial state; `awaiting_attempt` of the RUNNING ones wait to be claimed
    again. `blocked` says why no registered worker can serve a study that has work left,
    `models_blocked` why no models are stored though the study keeps some.
    """

    uuid: UUID
    definition: StudyDefinition
    state: StudyState
    reason: str | None
    blocked: str | None
    models_blocked: str | None
    n_started: int
    counts: Mapping[TrialState, int]
    awaiting_attempt: int
    best: BestTrial | None
    created_at: dt.datetime
    ended_at: dt.datetime | None
    archived_at: dt.datetime | None
    version: str  # changes with all that users change of it, and not with the trials


@dataclass(frozen=True, kw_only=True, slots=True)
class CurvePoint:
    """The value of one step: the last attempt's."""

    step: int
    value: float
    attempt: int | None = None
    elapsed_seconds: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    verdict: Verdict | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptRecord:
    """One run of a trial's code by one worker."""

    attempt: int
    worker_id: UUID
    worker_name: str
    device: str
    started_at: dt.datetime
    ended_at: dt.datetime | None
    resumed_from_step: int | None
    outcome: str | None  # complete, pruned, failed, stopped, released; None while it runs
    reason: Reason | None
    message: str
    traceback: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Exclusion:
    """Why a finished trial is left out of best, history and analysis, and since when."""

    reason: str
    excluded_at: dt.datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialRecord:
    """One trial; `value` is None where the study has several, which `values` holds.

    `curve` and `attempts` are empty where a list leaves them out.

    `prune` holds the step, the value, the median and the number of trials compared of the
    verdict that ended a pruned trial; `enqueued` the parameters that somebody asked for.
    """

    number: int
    state: TrialState
    params: Mapping[str, Choice]
    user_attrs: Mapping[str, Any]
    reason: Reason | None
    message: str
    attempt: int
    awaiting_attempt: bool
    worker_name: str | None
    device: str | None
    last_step: int | None
    last_value: float | None
    prune: Mapping[str, Any] | None
    started_at: dt.datetime | None
    ended_at: dt.datetime | None
    value: float | None = None
    values: Sequence[float] = ()
    constraints: Mapping[str, float] = field(default_factory=dict)
    enqueued: Mapping[str, Choice] | None = None
    exclusion: Exclusion | None = None
    model: ModelRecord | None = None
    curve: Sequence[CurvePoint] = ()
    attempts: Sequence[AttemptRecord] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialsPage:
    """Part of a list of trials; `next` is the `after` of the following page in the same order."""

    items: Sequence[TrialRecord]
    next: int | str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Claimed:
    """A trial under a lease: what a worker needs to run it."""

    study_name: str
    study_uuid: UUID
    definition: StudyDefinition
    number: int
    attempt: int
    token: str
    params: Mapping[str, Choice]
    seed: int
    lease_seconds: float
    seconds_left: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimRequest:
    """A free slot asks for a trial; the same `claim_key` gets the same trial again.

    One who asks without being a registered worker gives a name and the length of the lease.
    """

    worker_id: UUID
    claim_key: str
    device: str
    worker_name: str | None = None
    lease_seconds: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class AskRequest:
    """A program asks for trials; with the same `key` it gets the same ones again."""

    worker: str
    count: int
    lease_seconds: float
    key: str | None = None
    fingerprint: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """Trials for a program; `reason` says why there are none."""

    trials: Sequence[Claimed]
    state: StudyState
    reason: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    """The right to write to a trial, as its worker shows it."""

    study_name: str
    number: int
    token: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Remarks:
    """What a worker says of a trial beside its values; a constraint above 0 is violated."""

    user_attrs: Mapping[str, Any] = field(default_factory=dict)
    constraints: Mapping[str, float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.user_attrs or self.constraints)


@dataclass(frozen=True, kw_only=True, slots=True)
class Settled:
    """What became of the trial when its lease ended."""

    state: TrialState
    awaiting_attempt: bool
    reason: Reason | None


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseTimes:
    """How long a lease lasts, and how often its worker should renew it."""

    lease_seconds: float = 60.0
    heartbeat_seconds: float = 10.0

    def __post_init__(self) -> None:
        if not 0 < 3 * self.heartbeat_seconds <= self.lease_seconds:
            raise ValueError(
                "lease_seconds must be at least 3 times heartbeat_seconds, got "
                f"{self.lease_seconds} and {self.heartbeat_seconds}"
            )

    @property
    def reap_seconds(self) -> float:
        """How often to look for expired leases; a look that comes a lease late postpones all."""
        return min(5.0, self.heartbeat_seconds)


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerRegistration:
    """What a worker process says of itself when it starts."""

    id: UUID
    name: str
    version: str
    slots: int
    devices: Sequence[str]
    allow: Sequence[str]
    objectives: Mapping[str, Descriptor]


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerRecord:
    """A registered worker process; `id` is a UUID of its process."""

    id: UUID
    name: str
    version: str
    slots: int
    devices: Sequence[str]
    allow: Sequence[str]
    objectives: Mapping[str, Descriptor]
    registered_at: dt.datetime
    last_seen_at: dt.datetime
    is_alive: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldTrial:
    """A trial that a worker runs at the moment, on one of its devices."""

    study_name: str
    number: int
    attempt: int
    device: str
    since: dt.datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class LogChunk:
    """A piece of a child's output; `sequence` counts from 0 in its attempt."""

    sequence: int
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LogLine:
    """A stored piece of a log; `id` orders the pieces of a trial."""

    id: int
    attempt: int
    sequence: int
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """An objective that registered workers offer."""

    objective: str
    descriptor: Descriptor
    n_workers: int
