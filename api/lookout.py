"""Looks for work on behalf of all claims that wait: one statement a second, not one for each."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import anyio.to_thread

from api.doorbell import Doorbell, heard
from hpo.errors import HpoError
from storage.records import ClaimRequest

# Another API process may have made the work, so there is a look without a ring now and then.
LOOK_AGAIN_SECONDS = (0.75, 1.25)
FRESH_SECONDS = 2 * max(LOOK_AGAIN_SECONDS)
# Rings that come together are one.
PAUSE_SECONDS = 0.02

Look = Callable[[Sequence[ClaimRequest]], Collection[str]]


@dataclass(eq=False)
class _Waiter:
    request: ClaimRequest
    is_called: asyncio.Event = field(default_factory=asyncio.Event)
    error: HpoError | None = None


class Lookout:
    """Calls as many of the claims that wait as there are trials; lives on the event loop."""

    def __init__(self, doorbell: Doorbell, look: Look) -> None:
        self._doorbell, self._look = doorbell, look
        self._waiters: dict[_Waiter, None] = {}  # in the order in which they came
        self._watch: asyncio.Task[None] | None = None
        self._idle: frozenset[UUID] = frozenset()  # workers for which there was nothing
        self._looked_at, self._ring = -1.0, asyncio.Event()

    @property
    def n_waiting(self) -> int:
        """Claims that wait now."""
        return len(self._waiters)

    def has_nothing_for(self, worker_id: UUID) -> bool:
        """Whether the last look is fresh, and found no work for this worker."""
        is_fresh = time.monotonic() < self._looked_at + FRESH_SECONDS
        return is_fresh and not self._ring.is_set() and worker_id in self._idle

    async def called(self, request: ClaimRequest, seconds: float) -> bool:
        """Whether there is work, before the time is over. Raises what a look has raised."""
        waiter = _Waiter(request)
        self._waiters[waiter] = None
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._keep_watch())
        try:
            is_called = await heard(waiter.is_called, seconds)
        finally:
            self._waiters.pop(waiter, None)
        if waiter.error is not None:
            raise waiter.error
        return is_called

    async def _keep_watch(self) -> None:
        while self._waiters:
            ring = self._doorbell.next_ring()
            await self._call(ring)
            if self._doorbell.is_closed:
                self._wake(None)
                return
            if await heard(ring, random.uniform(*LOOK_AGAIN_SECONDS)):
                await asyncio.sleep(PAUSE_SECONDS)

    async def _call(self, ring: asyncio.Event) -> None:
        waiters, looked_at = list(self._waiters), time.monotonic()
        requests = [waiter.request for waiter in waiters]
        try:
            keys = await anyio.to_thread.run_sync(self._look, requests)
        except HpoError as error:
            self._wake(error)
            return
        idle = set()
        for waiter in waiters:
            if waiter.request.claim_key in keys:
                waiter.is_called.set()
            else:
                idle.add(waiter.request.worker_id)
        self._idle, self._looked_at, self._ring = frozenset(idle), looked_at, ring

    def _wake(self, error: HpoError | None) -> None:
        for waiter in self._waiters:
            waiter.error = error
            waiter.is_called.set()
