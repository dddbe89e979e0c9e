"""What workers say about the trials that they hold: claims, reports, outcomes, logs."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar
from uuid import UUID

from pydantic import AfterValidator, ConfigDict, Field

from api.schemas.base import (
    WHOLE,
    Body,
    Finite,
    Index,
    JsonAttributes,
    Name,
    Number,
    Output,
    Reply,
    Seconds,
    Text,
)
from api.schemas.space import ParameterBody
from api.schemas.workers import Device, Token
from hpo.numbers import strict
from hpo.space import Choice
from hpo.study import MAX_DIRECTIONS, Direction, StudyState, ValueRule
from hpo.trial import Decision, Failure, Measurement, Reason, TrialState, Verdict
from storage.records import Asked, AskRequest, Claimed, ClaimRequest, LogChunk, Settled

MAX_CHUNK_BYTES = 64 * 1024

# Above 0 a constraint is violated, as in Optuna.
Constraints = Annotated[dict[Name, Finite], Field(default_factory=dict, max_length=100)]
Attributes = Annotated[JsonAttributes, Field(default_factory=dict)]


class ClaimBody(Body):
    """A free slot asks for a trial; asking again with the same `claim_key` gets the same one."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "worker_id": "6f1a6b0e-31d7-4b39-a5d5-3a7c2f4f9d10",
                    "claim_key": "6f1a6b0e-0-17",
                    "device": "cuda:0",
                    "wait_seconds": 20,
                }
            ]
        }
    )

    worker_id: UUID
    claim_key: Annotated[Text, Field(min_length=1, max_length=128)]
    device: Device
    wait_seconds: Annotated[Seconds, Field(le=60)] = 20.0

    def to_request(self) -> ClaimRequest:
        return ClaimRequest(worker_id=self.worker_id, claim_key=self.claim_key, device=self.device)


class ClaimReply(Reply):
    """A trial under a lease; every later call about it shows the token.

    The worker ends the attempt when `seconds_left` are over, or when for `no_progress_seconds`
    it has not reported; null sets no limit.
    """

    study: str
    study_uuid: UUID
    objective: str | None
    direction: Direction
    number: int
    attempt: int
    token: str
    params: dict[str, Any]
    space_declared: bool
    settings: dict[str, Any]
    seed: int
    max_steps: int | None
    value_rule: ValueRule
    keep_models: int
    lease_seconds: float
    seconds_left: float | None
    no_progress_seconds: float | None

    @classmethod
    def of(cls, claimed: Claimed) -> ClaimReply:
        definition = claimed.definition
        return cls.taken_from(
            claimed,
            study=claimed.study_name,
            objective=definition.objective,
            direction=definition.direction,
            space_declared=definition.space is not None,
            settings=strict(dict(definition.settings)),
            max_steps=definition.max_steps,
            value_rule=definition.value_rule,
            keep_models=definition.keep_models,
            no_progress_seconds=definition.budget.no_progress_seconds,
        )


class AskBody(Body):
    """A program asks for trials; each report renews their leases for `lease_seconds`."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        json_schema_extra={"examples": [{"count": 1, "worker": "shell", "lease_seconds": 600}]}
    )

    count: Annotated[int, Field(strict=True, ge=1, le=100), WHOLE] = 1
    worker: Name = "ask"
    lease_seconds: Annotated[Seconds, Field(ge=10, le=86400)] = 600.0
    wait_seconds: Annotated[Seconds, Field(le=60)] = 0.0

    def to_request(self, key: str | None, fingerprint: str) -> AskRequest:
        return AskRequest(
            worker=self.worker,
            count=self.count,
            lease_seconds=self.lease_seconds,
            key=key,
            fingerprint=fingerprint,
        )


class AskReply(Reply):
    """Trials under leases, or why there are none: `state` is the study's."""

    trials: list[ClaimReply]
    state: StudyState
    reason: str | None

    @classmethod
    def of(cls, asked: Asked) -> AskReply:
        trials = [ClaimReply.of(claimed) for claimed in asked.trials]
        return cls(trials=trials, state=asked.state, reason=asked.reason)


class LeaseBody(Body):
    """Every call about a trial shows the token of its lease."""

    token: Token


class StartBody(LeaseBody):
    """The attempt begins after this step; null begins at step 0."""

    resumed_from_step: Index | None = None


class SuggestBody(LeaseBody):
    """The objective asks for a parameter that the study does not declare."""

    name: Name
    parameter: ParameterBody


class SuggestReply(Reply):
    value: Any

    @classmethod
    def of(cls, choice: Choice) -> SuggestReply:
        return cls(value=choice)


class ReportBody(LeaseBody):
    """The objective's value after a step; steps count from 0."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "token": "w1Zr0c",
                    "step": 3,
                    "value": 0.91,
                    "elapsed_seconds": 12.5,
                    "metrics": {"train_loss": 0.31},
                }
            ]
        }
    )

    step: Index
    value: Number
    elapsed_seconds: Seconds = 0.0
    metrics: Annotated[dict[Name, Number], Field(default_factory=dict)]
    user_attrs: Attributes
    constraints: Constraints

    def to_measurement(self) -> Measurement:
        return Measurement(
            step=self.step,
            value=self.value,
            elapsed_seconds=self.elapsed_seconds,
            metrics=self.metrics,
        )


class DecisionReply(Reply):
    """The verdict on a report, with the numbers behind it."""

    verdict: Verdict
    reason: Reason | None
    evidence: dict[str, Any]

    @classmethod
    def of(cls, decision: Decision) -> DecisionReply:
        return cls.taken_from(decision, evidence=strict(dict(decision.evidence)))


class CompleteBody(LeaseBody):
    """The trial's value; null takes it from the reports by the study's value rule.

    A study with several directions needs `values` instead, one for each.
    """

    value: Number | None = None
    values: Annotated[list[Number], Field(min_length=1, max_length=MAX_DIRECTIONS)] | None = None
    user_attrs: Attributes
    constraints: Constraints


class PruneBody(LeaseBody):
    user_attrs: Attributes
    constraints: Constraints


class FailBody(LeaseBody):
    """Why the attempt failed; the reason decides whether the trial is tried again."""

    reason: Reason
    message: Output = ""
    traceback: Output = ""
    user_attrs: Attributes
    constraints: Constraints

    def to_failure(self) -> Failure:
        return Failure(reason=self.reason, message=self.message, traceback=self.traceback)


class SettledReply(Reply):
    """What became of the trial."""

    state: TrialState
    awaiting_attempt: bool
    reason: Reason | None

    @classmethod
    def of(cls, settled: Settled) -> SettledReply:
        return cls.taken_from(settled)


def _of_chunk_size(text: str) -> str:
    if len(text.encode()) > MAX_CHUNK_BYTES:
        raise ValueError(f"must be {MAX_CHUNK_BYTES} bytes of UTF-8 at most")
    return text


class ChunkBody(Body):
    """A piece of a child's output; `sequence` counts from 0 in its attempt."""

    sequence: Index
    text: Annotated[Output, AfterValidator(_of_chunk_size)]


class LogBody(LeaseBody):
    chunks: Annotated[list[ChunkBody], Field(max_length=1000)]

    def to_chunks(self) -> list[LogChunk]:
        return [LogChunk(sequence=chunk.sequence, text=chunk.text) for chunk in self.chunks]
