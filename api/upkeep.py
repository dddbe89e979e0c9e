"""What the service does by itself: it prepares the database, however late that comes, then reaps
and removes studies that were deleted and models that are no longer wanted.

API and database start in any order; until the database is prepared, requests get the reason why
it is not.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TypeVar

import anyio.to_thread

from api.doorbell import Doorbell, heard
from hpo.errors import HpoError, Unavailable
from storage.store import Store

logger = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.2, 5.0
# Between two looks for old events; while there are some, each round drops a bite of them.
PRUNE_SECONDS = 60.0


class Upkeep:
    """Keeps one store prepared and reaped."""

    def __init__(self, store: Store, doorbell: Doorbell, *, reap_seconds: float) -> None:
        self._store, self._doorbell, self._reap_seconds = store, doorbell, reap_seconds
        self._chores: list[tuple[str, Callable[[], object]]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._haste = asyncio.Event()
        self._obstacle: HpoError | None = Unavailable("The service is starting; try again.")

    def check_prepared(self) -> None:
        """Raises Unavailable or SchemaMismatch while the database is not prepared."""
        obstacle = self._obstacle
        if obstacle is not None:
            raise type(obstacle)(str(obstacle), **obstacle.facts)

    def add_chore(self, what: str, chore: Callable[[], object]) -> None:
        """Something else to be done now and then, in words that follow "cannot"."""
        self._chores.append((what, chore))

    def hurry(self) -> None:
        """Begins the next round now, with the studies to delete. May be called from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._haste.set)

    async def keep(self) -> None:
        """Runs until it is cancelled."""
        self._haste, self._loop = asyncio.Event(), asyncio.get_running_loop()
        await self._prepare()
        prune_at = time.monotonic()
        while True:
            await heard(self._haste, self._reap_seconds)
            self._haste.clear()
            await self._attempt("delete studies", self._store.deleting.purge)
            if time.monotonic() >= prune_at:
                more = await self._attempt("prune the events", self._store.events.prune)
                prune_at = time.monotonic() + (0.0 if more else PRUNE_SECONDS)
            if await self._attempt("reap", self._store.claims.reap):
                self._doorbell.ring()
            for what, chore in self._chores:
                await self._attempt(what, chore)
            await self._attempt("remove old models", self._store.models.sweep)

    async def _prepare(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while self._obstacle is not None:
            await self._attempt("prepare the database", self._prepare_once)
            if self._obstacle is not None:
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        logger.info("the database is ready")

    def _prepare_once(self) -> None:
        try:
            self._store.prepare()
        except HpoError as error:
            self._obstacle = error
            raise
        self._obstacle = None

    async def _attempt(self, what: str, call: Callable[[], T]) -> T | None:
        """A failure is logged and tried again later: it must not end the upkeep."""
        working = asyncio.ensure_future(anyio.to_thread.run_sync(call))
        try:
            return await asyncio.shield(working)
        except HpoError as error:
            logger.warning("cannot %s: %s", what, error)
        except Exception:
            logger.exception("cannot %s", what)
        finally:
            await asyncio.wait([working])  # when cancelled: the store must not be closed in use
        return None
