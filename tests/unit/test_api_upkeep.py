"""The upkeep prepares a database that comes late, goes on after errors, and rings for work."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from api.doorbell import Doorbell
from api.upkeep import Upkeep
from hpo.errors import HpoError, SchemaMismatch, Unavailable
from storage.store import Store


class ScriptedStore:
    """Answers `prepare` and `reap` from a script, the last line for ever."""

    def __init__(self, prepare: list[Exception | None], reap: list[Exception | int]) -> None:
        self.claims = self.models = self.events = self.deleting = self
        self.n_sweeps = self.n_purges = 0
        self.prunes: list[bool] = [True, True, False]
        self._prepare, self._reap = prepare, reap
        self.threads: set[int] = set()

    def prepare(self) -> None:
        self._next(self._prepare)

    def reap(self) -> int:
        return int(self._next(self._reap) or 0)

    def purge(self) -> int:
        self.n_purges += 1
        return 0

    def sweep(self) -> int:
        self.n_sweeps += 1
        return 0

    def prune(self) -> bool:
        return self.prunes.pop(0)

    def _next(self, script: list[Any]) -> Any:
        self.threads.add(threading.get_ident())
        line = script.pop(0) if len(script) > 1 else script[0]
        if isinstance(line, Exception):
            raise line
        return line


async def keep_until(upkeep: Upkeep, is_enough: Callable[[], bool]) -> None:
    keeping = asyncio.create_task(upkeep.keep())
    async with asyncio.timeout(10):
        while not is_enough():
            await asyncio.sleep(0.01)
    keeping.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await keeping


def is_prepared(upkeep: Upkeep) -> bool:
    try:
        upkeep.check_prepared()
    except HpoError:
        return False
    return True


def make(store: ScriptedStore, doorbell: Doorbell, reap_seconds: float = 60.0) -> Upkeep:
    return Upkeep(cast(Store, store), doorbell, reap_seconds=reap_seconds)


def test_before_the_first_try_the_service_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="starting"):
        make(ScriptedStore([None], [0]), Doorbell()).check_prepared()


def test_a_database_that_comes_late_is_prepared() -> None:
    store = ScriptedStore([Unavailable(), RuntimeError("a bug"), None], [0])
    upkeep = make(store, Doorbell())
    asyncio.run(keep_until(upkeep, lambda: is_prepared(upkeep)))


def test_the_loop_is_never_blocked() -> None:
    store = ScriptedStore([None], [0])
    upkeep = make(store, Doorbell())
    asyncio.run(keep_until(upkeep, lambda: is_prepared(upkeep)))
    assert threading.get_ident() not in store.threads


def test_the_reason_is_shown_with_its_facts() -> None:
    mismatch = SchemaMismatch("too new", found="b", needed="a", command="hpo db upgrade")
    upkeep = make(ScriptedStore([mismatch], [0]), Doorbell())

    def is_known() -> bool:
        try:
            upkeep.check_prepared()
        except SchemaMismatch as error:
            return str(error) == "too new" and error.facts == mismatch.facts
        except Unavailable:
            pass
        return False

    asyncio.run(keep_until(upkeep, is_known))


def test_reaping_goes_on_after_errors_and_rings_when_trials_came_free() -> None:
    async def scenario() -> None:
        doorbell = Doorbell()
        doorbell.bind()
        ring = doorbell.next_ring()
        script: list[Exception | int] = [Unavailable(), RuntimeError("a bug"), 0, 2, 0]
        store = ScriptedStore([None], script)
        upkeep = make(store, doorbell, reap_seconds=0.01)
        await keep_until(upkeep, ring.is_set)
        assert store.n_sweeps > 0, "models that are no longer wanted are looked for as well"

    asyncio.run(scenario())


def test_a_ring_from_a_thread_wakes_all_who_wait() -> None:
    async def scenario() -> None:
        doorbell = Doorbell()
        doorbell.bind()
        rings = [doorbell.next_ring(), doorbell.next_ring()]
        threading.Thread(target=doorbell.ring).start()
        async with asyncio.timeout(5):
            await asyncio.gather(*(ring.wait() for ring in rings))
        assert not doorbell.next_ring().is_set()

    asyncio.run(scenario())


def test_a_ring_before_the_wait_is_not_missed() -> None:
    async def scenario() -> None:
        doorbell = Doorbell()
        doorbell.bind()
        ring = doorbell.next_ring()
        doorbell.ring()
        async with asyncio.timeout(5):
            await ring.wait()

    asyncio.run(scenario())


def test_a_closed_bell_lets_nobody_wait() -> None:
    async def scenario() -> None:
        doorbell = Doorbell()
        doorbell.bind()
        ring = doorbell.next_ring()
        doorbell.close()
        assert doorbell.is_closed
        assert ring.is_set()

    asyncio.run(scenario())


def test_a_ring_after_the_loop_has_gone_is_harmless() -> None:
    doorbell = Doorbell()

    async def scenario() -> None:
        doorbell.bind()

    asyncio.run(scenario())
    doorbell.ring()


def test_old_events_are_dropped_bite_by_bite() -> None:
    store = ScriptedStore([None], [0])
    upkeep = make(store, Doorbell(), reap_seconds=0.001)
    asyncio.run(keep_until(upkeep, lambda: not store.prunes))


def test_a_study_to_delete_does_not_wait_for_its_turn() -> None:
    store = ScriptedStore([None], [0])
    upkeep = make(store, Doorbell(), reap_seconds=3600.0)

    def is_purged() -> bool:
        if is_prepared(upkeep) and not store.n_purges:
            asker = threading.Thread(target=upkeep.hurry)
            asker.start()
            asker.join()
        return store.n_purges > 0

    asyncio.run(keep_until(upkeep, is_purged))
