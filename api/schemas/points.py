"""Points to be tried, and what users say of a trial that they exclude."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, ConfigDict, Field

from api.schemas.base import Body, Bool, JsonAttributes, Name, Reply, Text, json_document
from storage.enqueueing import Point

MAX_POINTS = 1000
Extend = Annotated[
    Bool, Field(description="Raise n_trials where the budget has no room; an ended study goes on.")
]


class PointBody(Body):
    """One point; parameters that are left out are sampled when the trial starts."""

    params: Annotated[dict[Name, Any], Field(max_length=1000), AfterValidator(json_document)]
    user_attrs: JsonAttributes = Field(default_factory=dict)

    def to_point(self) -> Point:
        return Point(params=self.params, user_attrs=self.user_attrs)


class EnqueueBody(Body):
    """Points in the order in which they are to be tried."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        json_schema_extra={
            "examples": [{"points": [{"params": {"lr": 0.01, "optimizer": "adam"}}]}]
        }
    )

    points: Annotated[list[PointBody], Field(min_length=1, max_length=MAX_POINTS)]
    extend: Extend = False


class RequeueBody(Body):
    """May be left out."""

    extend: Extend = False


class ExcludeBody(Body):
    """Why the result is wrong, for those who come later."""

    reason: Annotated[Text, Field(max_length=2000)] = ""


class EnqueuedReply(Reply):
    """The numbers of the new trials, in the order of the points."""

    study: str
    numbers: list[int]
