"""The query of a stream of events, and an event as it travels."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from api.schemas.base import Query, Reply, spelled
from hpo.errors import InvalidField
from hpo.events import EventKind
from storage.events import Cursor, StoredEvent

CURSOR = "0|[0-9]{1,18}-[0-9]{1,18}"


def _cursor(text: str) -> str:
    try:
        Cursor.parse(text)
    except InvalidField as error:
        raise ValueError(error.message) from None
    return text


class EventQuery(Query):
    """Which events to tell, from where on, and when to end the stream.

    `after` is the id of the last event seen, or 0 for all that are kept; without it, and without
    a Last-Event-ID, the stream begins now. `until=now` ends it when the past is told,
    `until=ended` when the study has ended. Other streams stay open.
    """

    after: Annotated[str, Field(max_length=40), AfterValidator(_cursor), spelled(CURSOR)] | None = (
        None
    )
    kinds: Annotated[list[EventKind], Field(default_factory=list)]
    until: Literal["now", "ended"] | None = None


class EventReply(Reply):
    """What the `data` of an event hold; its `event` is the kind, its `id` the place."""

    kind: str
    study: str | None
    number: int | None
    created_at: dt.datetime
    data: dict[str, Any]

    @classmethod
    def of(cls, event: StoredEvent) -> EventReply:
        return cls.taken_from(event, study=event.study_name)
