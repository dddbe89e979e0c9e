"""The feed: one reader of the events for all who listen to this process.

It polls while somebody listens, and keeps the newest events; a listener has no queue, only its
place, so a slow one costs nothing: what is no longer kept here, it reads from the database.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence

import anyio.to_thread

from api.doorbell import Doorbell, heard
from hpo.errors import HpoError
from storage.events import BEGINNING, Cursor, StoredEvent
from storage.store import Store

logger = logging.getLogger(__name__)

KEPT_EVENTS = 2_000
PAGE = 500
# Other API processes write, too.
LOOK_AGAIN_SECONDS = (0.5, 1.0)
# An event is readable when all transactions that began before it have ended.
SOON_SECONDS = 0.05
RETRY_SECONDS = 2.0


class Feed:
    """The newest events in this process, for as long as somebody listens."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._news, self._moved = Doorbell(), Doorbell()
        self._listeners = 0
        self._reading: asyncio.Task[None] | None = None
        self._readers: set[asyncio.Task[None]] = set()  # also one that is about to end
        self._kept: list[StoredEvent] = []
        self._floor = self._head = BEGINNING  # what is kept lies between these places

    def bind(self) -> None:
        """Attaches the feed to the running loop, and to what this process writes."""
        self._news.bind()
        self._moved.bind()
        self._store.events.on_news(self._news.ring)

    def close(self) -> None:
        """Ends all streams; called on the event loop when the service stops."""
        self._news.close()
        self._moved.close()
        self._end_reading()

    async def ended(self) -> None:
        """Returns when nothing is being read any more, so that the store can be closed."""
        if self._readers:
            await asyncio.wait(self._readers)

    @property
    def is_closed(self) -> bool:
        return self._moved.is_closed

    @property
    def n_listeners(self) -> int:
        return self._listeners

    @property
    def is_reading(self) -> bool:
        """Whether the database is polled."""
        return self._reading is not None

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[Cursor]:
        """Keeps the feed reading; answers the place that was the newest just now."""
        self._listeners += 1
        try:
            head = await anyio.to_thread.run_sync(self._store.events.head)
            if self._reading is None and not self.is_closed:
                self._floor = self._head = head
                self._reading = asyncio.create_task(self._read())
                self._readers.add(self._reading)
                self._reading.add_done_callback(self._readers.discard)
            yield head
        finally:
            self._listeners -= 1
            if not self._listeners:
                self._end_reading()

    async def after(
        self, cursor: Cursor, study_uuid: str | None
    ) -> tuple[Sequence[StoredEvent], Cursor]:
        """Events beyond a place, a page at most, and the place that has been reached.

        None means that there are none up to the place where the feed is.
        """
        floor = self._floor
        if cursor >= floor:
            start = bisect_right(self._kept, cursor, key=lambda event: event.cursor)
            found: Sequence[StoredEvent] = self._kept[start : start + PAGE]
            return found, found[-1].cursor if found else cursor
        found = await anyio.to_thread.run_sync(
            lambda: self._store.events.after(cursor, study_uuid=study_uuid, limit=PAGE)
        )
        last = found[-1].cursor if found else cursor
        # A page that is not full has told all up to where the feed had begun before it was read.
        return found, last if len(found) == PAGE else max(last, floor)

    @property
    def head(self) -> Cursor:
        """The place up to which the feed has read."""
        return self._head

    def next_move(self) -> asyncio.Event:
        """Set when there are more events, or the service stops. Take it before `after`."""
        return self._moved.next_ring()

    def _end_reading(self) -> None:
        # Not cancelled: the thread that reads would go on with a store that is being closed.
        self._reading = None
        self._news.ring()
        self._kept = []
        self._floor = self._head

    async def _read(self) -> None:
        me, pause = asyncio.current_task(), 0.0
        while self._reading is me:
            ring = self._news.next_ring()
            try:
                n_found = await self._read_once()
            except HpoError as error:
                logger.warning("events: %s", error)
                n_found, pause = 0, RETRY_SECONDS
            except Exception:
                logger.exception("events")
                n_found, pause = 0, RETRY_SECONDS
            if n_found < PAGE:
                is_heard = await heard(ring, pause or random.uniform(*LOOK_AGAIN_SECONDS))
                pause = 0.0
                if is_heard:
                    await asyncio.sleep(SOON_SECONDS)

    async def _read_once(self) -> int:
        found = await anyio.to_thread.run_sync(
            lambda: self._store.events.after(self._head, limit=PAGE)
        )
        if found and self._reading is asyncio.current_task():
            self._kept.extend(found)
            self._head = found[-1].cursor
            surplus = len(self._kept) - KEPT_EVENTS
            if surplus > 0:
                self._floor = self._kept[surplus - 1].cursor
                del self._kept[:surplus]
            self._moved.ring()
        return len(found)
