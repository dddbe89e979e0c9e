"""What may be changed of a study while it stands."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import (
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)

from api.faults import fault_of
from api.schemas.base import Body, Count, LimitSeconds, located
from api.schemas.study_create import Notes, Priority, StudyCreate, Tags

# Has no null: it can be changed and not lifted. Only what a request names is ever read.
_LEFT_OUT = Field(default_factory=int)


def _sentence(error: dict[str, Any]) -> str:
    fault = fault_of(error)
    is_fixed = fault.field in StudyCreate.model_fields.keys() - StudyAmend.model_fields.keys()
    return "cannot be changed; clone the study" if is_fixed else fault.message


class StudyAmend(Body):
    """The budget, the priority and the labels; what is left out stays, null lifts a limit."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        json_schema_extra={"examples": [{"n_trials": 40}, {"timeout_seconds": None}]}
    )

    n_trials: Annotated[Count, _LEFT_OUT]
    max_parallel_trials: Count | None = None
    max_failed_trials: Count | None = None
    timeout_seconds: LimitSeconds | None = None
    trial_timeout_seconds: LimitSeconds | None = None
    no_progress_seconds: LimitSeconds | None = None
    priority: Annotated[Priority, _LEFT_OUT]
    tags: Annotated[Tags, Field(default_factory=list)]
    notes: Annotated[Notes, Field(default_factory=str)]

    @model_validator(mode="wrap")
    @classmethod
    def _refuse_what_is_fixed(
        cls, document: Any, handler: ModelWrapValidatorHandler[StudyAmend]
    ) -> StudyAmend:
        try:
            return handler(document)
        except ValidationError as error:
            located((fault["loc"], _sentence(dict(fault))) for fault in error.errors())
            raise

    @property
    def changes(self) -> dict[str, Any]:
        """What the request names."""
        return {name: getattr(self, name) for name in self.model_fields_set}
