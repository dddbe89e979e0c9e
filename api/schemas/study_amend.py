"""What may be changed of a study while it stands."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field

from api.schemas.base import Body, Count, LimitSeconds
from api.schemas.study_create import Priority

# Has no null: it can be changed and not lifted. Only what a request names is ever read.
_LEFT_OUT = Field(default_factory=int)


class StudyAmend(Body):
    """Fields of the budget, and the priority; what is left out stays, null lifts a limit."""

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

    @property
    def changes(self) -> dict[str, Any]:
        """What the request names."""
        return {name: getattr(self, name) for name in self.model_fields_set}
