"""Waiting for a study to come into a state, holding neither a thread nor a connection."""

from __future__ import annotations

import time

import anyio.to_thread
from fastapi import Request

from api.doorbell import heard
from api.schemas.studies import StudyWait
from api.service import Service
from hpo.events import EventKind
from storage.events import Cursor
from storage.records import StudyRecord

# What may change the state of a study.
TURNS = frozenset({EventKind.STUDY_STATE, EventKind.STUDY_DELETED})
LOOK_AGAIN_SECONDS = 5.0


async def waited(service: Service, name: str, query: StudyWait, request: Request) -> StudyRecord:
    """The study, as soon as it stands as asked, or when the time is over. Raises NotFound."""
    get = service.store.studies.get
    if not query.wait_seconds:
        return await anyio.to_thread.run_sync(get, name)
    give_up_at = time.monotonic() + query.wait_seconds
    async with service.feed.listening() as cursor:
        while True:
            study = await anyio.to_thread.run_sync(get, name)
            is_over = time.monotonic() >= give_up_at or service.feed.is_closed
            if is_over or query.is_met(study.state) or await request.is_disconnected():
                return study
            look_at = min(give_up_at, time.monotonic() + LOOK_AGAIN_SECONDS)
            cursor = await _turned(service, str(study.uuid), cursor, look_at)


async def _turned(service: Service, uuid: str, cursor: Cursor, look_at: float) -> Cursor:
    """Waits until the study has turned or it is time to look; answers how far it has read."""
    while True:
        move = service.feed.next_move()
        events, cursor = await service.feed.after(cursor, uuid)
        if any(event.study_uuid == uuid and event.kind in TURNS for event in events):
            return cursor
        left = look_at - time.monotonic()
        if service.feed.is_closed or (not events and not await heard(move, max(left, 0.0))):
            return cursor
