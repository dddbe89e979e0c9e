"""Events as they happen: server-sent events that go on where a listener has stopped."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse
from fastapi.sse import EventSourceResponse, format_sse_event
from starlette.types import Scope

from api.doorbell import heard
from api.errors import problems
from api.schemas.events import EventQuery, EventReply
from api.service import PreparedDep, Service, StudyName
from hpo.errors import InvalidField, NotFound, Unavailable
from hpo.events import EventKind
from hpo.study import StudyState
from storage.events import Cursor, StoredEvent

router = APIRouter(tags=["events"])

# A silent stream says so, and looks whether its token was revoked meanwhile.
KEEP_ALIVE_SECONDS = 5.0
# A proxy must neither keep nor gather what is to arrive at once.
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
RESET = {
    "type": "object",
    "properties": {"kind": {"const": EventKind.RESET}, "data": {"type": "object"}},
    "required": ["kind", "data"],
}
# What stands in `data` is JSON itself; `end` has an empty object.
EVENT = {
    "type": "object",
    "properties": {
        "event": {"type": "string", "enum": list(EventKind)},
        "id": {"type": "string"},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {
                "anyOf": [EventReply.model_json_schema(), RESET, {"maxProperties": 0}]
            },
        },
    },
    "required": ["event", "data"],
}
STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Server-sent events, whose data are JSON",
        "content": {"text/event-stream": {"schema": EVENT}},
    }
}
LastEventId = Annotated[
    str | None,
    Header(alias="Last-Event-ID", description="Where a listener goes on, as browsers send it."),
]


@router.get(
    "/events",
    summary="What happens to all studies and workers, as it happens",
    response_class=StreamingResponse,  # EventSourceResponse is for routes that yield
    responses={**STREAM, **problems()},
)
async def all_events(
    query: Annotated[EventQuery, Query()],
    request: Request,
    service: PreparedDep,
    last_event_id: LastEventId = None,
) -> EventSourceResponse:
    if query.until == "ended":
        raise InvalidField("until", 'may be "ended" for the events of one study only')
    pieces = _Listener(service, query, request.scope).pieces(last_event_id)
    return EventSourceResponse(pieces, headers=HEADERS)


@router.get(
    "/studies/{study}/events",
    summary="What happens to a study, as it happens",
    response_class=StreamingResponse,  # EventSourceResponse is for routes that yield
    responses={**STREAM, **problems("not_found")},
)
async def study_events(
    study: StudyName,
    query: Annotated[EventQuery, Query()],
    request: Request,
    service: PreparedDep,
    last_event_id: LastEventId = None,
) -> EventSourceResponse:
    record = await anyio.to_thread.run_sync(service.store.studies.get, study)
    listener = _Listener(service, query, request.scope, study, str(record.uuid))
    return EventSourceResponse(listener.pieces(last_event_id), headers=HEADERS)


class _Listener:
    """One open stream: which events it tells, and when it ends."""

    def __init__(
        self,
        service: Service,
        query: EventQuery,
        scope: Scope,
        study: str | None = None,
        uuid: str | None = None,
    ) -> None:
        self._service, self._feed, self._scope = service, service.feed, scope
        self._after = query.after
        self._study, self._uuid = study, uuid
        self._kinds, self._until = frozenset(query.kinds), query.until
        self._is_told = False  # all that was asked for

    async def pieces(self, last_event_id: str | None) -> AsyncIterator[bytes]:
        """The stream. It breaks off when the database is away, and the listener comes back.

        It also breaks off when the token is revoked, and nobody comes back.
        """
        with contextlib.suppress(Unavailable):
            async with self._feed.listening() as head:
                after = last_event_id if self._after is None else self._after
                cursor, is_known = await self._place(after, head)
                # An id without data: who is cut off now knows where to go on.
                yield _listening(cursor) if is_known else _reset(cursor)
                end = head if self._until == "now" else None
                if self._until == "ended" and await self._has_ended():
                    end = head
                async for piece in self._told(cursor, end):
                    yield piece
                if self._is_told:
                    yield format_sse_event(event=EventKind.END, data_str="{}")

    async def _told(self, cursor: Cursor, end: Cursor | None) -> AsyncIterator[bytes]:
        """The events beyond a place, up to `end` if there is one."""
        while not self._feed.is_closed and await self._service.guard.still_knows(self._scope):
            move = self._feed.next_move()
            before = cursor
            events, cursor = await self._feed.after(before, self._uuid)
            for event in events:
                if end is not None and event.cursor > end:
                    break
                if self._is_mine(event):
                    yield _piece(event)
                if self._is_last(event):
                    end = event.cursor
            if end is not None and cursor >= end:
                self._is_told = True
                return
            if cursor == before and not await heard(move, KEEP_ALIVE_SECONDS):
                yield format_sse_event(id=str(cursor), comment="still here")

    async def _place(self, after: str | None, head: Cursor) -> tuple[Cursor, bool]:
        """Where the stream begins, and whether nothing was missed before it."""
        if after is None:
            return head, True
        try:
            cursor = Cursor.parse(after)
        except InvalidField:  # a header may hold anything
            return head, False
        is_known = await anyio.to_thread.run_sync(self._service.store.events.knows, cursor)
        return (cursor, True) if is_known else (head, False)

    async def _has_ended(self) -> bool:
        assert self._study is not None
        try:
            study = await anyio.to_thread.run_sync(self._service.store.studies.get, self._study)
        except NotFound:
            return True
        return study.state.is_ended

    def _is_mine(self, event: StoredEvent) -> bool:
        if self._uuid is not None and event.study_uuid != self._uuid:
            return False
        return not self._kinds or event.kind in self._kinds

    def _is_last(self, event: StoredEvent) -> bool:
        if self._uuid is None or event.study_uuid != self._uuid:
            return False
        if event.kind == EventKind.STUDY_DELETED:
            return True
        has_turned = event.kind == EventKind.STUDY_STATE
        return self._until == "ended" and has_turned and StudyState(event.data["state"]).is_ended


def _piece(event: StoredEvent) -> bytes:
    data = EventReply.of(event).model_dump_json()
    return format_sse_event(event=event.kind, id=str(event.cursor), data_str=data)


def _listening(cursor: Cursor) -> bytes:
    return format_sse_event(id=str(cursor), comment="listening")


def _reset(cursor: Cursor) -> bytes:
    message = "Events were missed, or the id is not of this service; look at the studies anew."
    data = json.dumps({"kind": EventKind.RESET, "data": {"message": message}})
    return format_sse_event(event=EventKind.RESET, id=str(cursor), data_str=data)
