"""Wakes the claims that wait for work, so that they hold neither a thread nor a connection."""

from __future__ import annotations

import asyncio


class Doorbell:
    """Rung by any thread when there may be work; heard by all who wait on the event loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ring = asyncio.Event()
        self._is_closed = False

    def bind(self) -> None:
        """Attaches the bell to the running loop; rings before that wake nobody."""
        self._loop = asyncio.get_running_loop()

    @property
    def is_closed(self) -> bool:
        """Whether the service is stopping; nobody waits any more then."""
        return self._is_closed

    def next_ring(self) -> asyncio.Event:
        """Set at the next ring. Take it before looking for work, or a ring may be missed."""
        return self._ring

    def ring(self) -> None:
        """Wakes everyone who waits. May be called from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    def close(self) -> None:
        """Wakes everyone for good; called on the event loop when the service stops."""
        self._is_closed = True
        self._wake()

    def _wake(self) -> None:
        ring, self._ring = self._ring, asyncio.Event()
        ring.set()


async def heard(ring: asyncio.Event, seconds: float) -> bool:
    """Waits for a ring; whether it came in time."""
    try:
        async with asyncio.timeout(seconds):
            return await ring.wait()
    except TimeoutError:
        return False
