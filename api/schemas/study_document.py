"""The document of a whole study, format 1: what an export writes and an import reads."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any, ClassVar, Literal
from uuid import UUID

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field

from api.schemas.base import (
    MAX_ATTRIBUTE_NAME,
    Count,
    Index,
    JsonAttributes,
    JsonObject,
    Number,
    Seconds,
    Text,
    json_document,
)
from hpo.numbers import strict
from hpo.study import StudyDefinition, StudyState
from hpo.trial import Reason, TrialState, Verdict
from storage.documents import definition_to_request
from storage.records import AttemptRecord, CurvePoint, Exclusion
from storage.transfer import StudyCopy, TrialCopy

ShortText = Annotated[Text, Field(max_length=200)]
DeviceName = Annotated[Text, Field(max_length=64)]
OptunaName = Annotated[Text, Field(max_length=MAX_ATTRIBUTE_NAME)]
Params = Annotated[dict[OptunaName, Any], AfterValidator(json_document)]
Outcome = Literal["complete", "pruned", "failed", "stopped", "released"]


class _Part(BaseModel):
    """Goes both ways: strict JSON out, nothing unknown in."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", ser_json_inf_nan="strings")


class PointDocument(_Part):
    """One step of a curve: the value, and what the last attempt said of it."""

    step: Index
    value: Number
    attempt: Count | None = None
    elapsed_seconds: Seconds | None = None
    metrics: dict[ShortText, Number] = Field(default_factory=dict)
    verdict: Verdict | None = None

    @classmethod
    def of(cls, point: CurvePoint) -> PointDocument:
        return cls.model_construct(**{name: getattr(point, name) for name in cls.model_fields})

    def to_point(self) -> CurvePoint:
        return CurvePoint(**dict(self))


class AttemptDocument(_Part):
    """One run of a trial's code by one worker."""

    attempt: Count
    worker_id: UUID
    worker_name: ShortText
    device: DeviceName
    started_at: AwareDatetime
    ended_at: AwareDatetime | None = None
    resumed_from_step: Index | None = None
    outcome: Outcome | None = None
    reason: Reason | None = None
    message: Text = ""
    traceback: Text = ""

    @classmethod
    def of(cls, record: AttemptRecord) -> AttemptDocument:
        return cls.model_construct(**{name: getattr(record, name) for name in cls.model_fields})

    def to_record(self) -> AttemptRecord:
        return AttemptRecord(**dict(self))


class ExclusionDocument(_Part):
    """Why a trial is left out of the results, and since when."""

    reason: Text
    excluded_at: AwareDatetime

    def to_exclusion(self) -> Exclusion:
        return Exclusion(reason=self.reason, excluded_at=self.excluded_at)


class TrialDocument(_Part):
    """A trial: parameters by value and with Optuna's distributions, values, curve, attempts.

    `is_counted` is null for a trial that another Optuna program made. `told` is the verdict that
    ended it, `system_attrs` what its sampler and pruner go on from.
    """

    number: Index
    state: TrialState
    params: Params = Field(default_factory=dict)
    distributions: dict[OptunaName, JsonObject] = Field(default_factory=dict)
    values: list[Number] = Field(default_factory=list)
    curve: list[PointDocument] = Field(default_factory=list)
    user_attrs: JsonAttributes = Field(default_factory=dict)
    system_attrs: JsonAttributes = Field(default_factory=dict)
    constraints: dict[ShortText, Number] = Field(default_factory=dict)
    is_counted: bool | None = None
    reason: Reason | None = None
    message: Text = ""
    told: JsonAttributes | None = None
    attempt: Index = 0
    attempts: list[AttemptDocument] = Field(default_factory=list)
    enqueued: Params | None = None
    exclusion: ExclusionDocument | None = None
    started_at: AwareDatetime | None = None
    ended_at: AwareDatetime | None = None

    @classmethod
    def of(cls, trial: TrialCopy) -> TrialDocument:
        fields = {name: getattr(trial, name) for name in cls.model_fields}
        return cls.model_construct(
            **{
                **fields,
                "values": list(trial.values),
                "curve": [PointDocument.of(point) for point in trial.curve],
                "attempts": [AttemptDocument.of(record) for record in trial.attempts],
                "user_attrs": strict(dict(trial.user_attrs)),
                "system_attrs": strict(dict(trial.system_attrs)),
                "exclusion": trial.exclusion
                and ExclusionDocument(
                    reason=trial.exclusion.reason, excluded_at=trial.exclusion.excluded_at
                ),
            }
        )

    def to_copy(self) -> TrialCopy:
        return TrialCopy(
            **{
                **dict(self),
                "curve": [point.to_point() for point in self.curve],
                "attempts": [attempt.to_record() for attempt in self.attempts],
                "exclusion": self.exclusion and self.exclusion.to_exclusion(),
            }
        )


class StudyHead(_Part):
    """All of the document but its trials; `study` is a request that would create the study."""

    format: Literal[1] = 1
    hpo: ShortText | None = None
    exported_at: AwareDatetime | None = None
    study: dict[str, Any]
    state: StudyState
    reason: Text | None = None
    created_at: AwareDatetime
    ended_at: AwareDatetime | None = None
    archived_at: AwareDatetime | None = None
    ran_seconds: Seconds = 0.0

    @classmethod
    def of(cls, copy: StudyCopy, *, version: str, now: dt.datetime) -> StudyHead:
        names = ("state", "reason", "created_at", "ended_at", "archived_at", "ran_seconds")
        return cls(
            hpo=version,
            exported_at=now,
            study=definition_to_request(copy.definition),
            **{name: getattr(copy, name) for name in names},
        )


class StudyDocument(StudyHead):
    """A whole study, as `GET /v1/studies/{study}/export` answers it."""

    trials: list[TrialDocument]

    def to_copy(self, definition: StudyDefinition) -> StudyCopy:
        """The study without its trials, under the definition that `study` was found to be."""
        return StudyCopy(
            definition=definition,
            state=self.state,
            reason=self.reason,
            created_at=self.created_at,
            ended_at=self.ended_at,
            archived_at=self.archived_at,
            ran_seconds=self.ran_seconds,
        )
