"""Events: written with what they tell, read in one order, pruned from their beginning."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa

from hpo.errors import InvalidField
from hpo.events import EventKind
from hpo.trial import Failure, Measurement, Reason
from storage import events
from storage import tables as t
from storage.events import BEGINNING, BITE, Cursor, EventRetention
from storage.records import LeaseTimes
from storage.store import Store, open_store
from tests.builders import lease_of
from tests.clock import Clock


@pytest.fixture
def clock(database_url: str) -> Iterator[Clock]:
    opened = Clock(database_url)
    yield opened
    opened.engine.dispose()


def told(store: Store, after: Cursor = BEGINNING) -> list[tuple[str, int | None]]:
    return [(event.kind, event.number) for event in store.events.after(after)]


def test_what_happens_is_told_in_order(
    store: Store, create: Callable[..., Any], claim: Callable[[], Any], clock: Clock
) -> None:
    create(n_trials=2, retry_backoff_seconds=0.0)
    first = lease_of(claim())
    store.claims.report(first, Measurement(step=0, value=float("inf")), {})
    store.claims.prune(first, {})
    second = lease_of(claim())
    store.claims.report(second, Measurement(step=0, value=1.0), {})
    store.claims.report(second, Measurement(step=0, value=1.0), {})  # told once
    clock.expire(second.token)
    store.claims.reap()
    store.claims.reap()
    again = lease_of(claim())
    store.claims.start(again, 0)
    store.lifecycle.pause("demo")
    store.lifecycle.pause("demo")
    store.lifecycle.resume("demo")
    store.lifecycle.amend("demo", {"priority": 3})
    store.claims.complete(again, 2.0, {})
    kind = EventKind
    assert told(store) == [
        (kind.WORKER_REGISTERED, None),
        (kind.STUDY_CREATED, None),
        (kind.TRIAL_STARTED, 0),
        (kind.REPORT, 0),
        (kind.TRIAL_ENDED, 0),
        (kind.TRIAL_STARTED, 1),
        (kind.REPORT, 1),
        (kind.ATTEMPT_ENDED, 1),
        (kind.ATTEMPT_STARTED, 1),
        (kind.ATTEMPT_RESUMED, 1),
        (kind.STUDY_STATE, None),
        (kind.STUDY_STATE, None),
        (kind.STUDY_BUDGET, None),
        (kind.TRIAL_ENDED, 1),
        (kind.STUDY_STATE, None),
    ]
    found = store.events.after(BEGINNING)
    assert found[3].data == {"attempt": 1, "step": 0, "value": "Infinity", "verdict": "prune"}
    assert found[7].data["reason"] == Reason.LOST
    assert found[-2].data["value"] == 2.0
    assert found[-1].data["state"] == "completed"
    assert {event.study_name for event in found[1:]} == {"demo"}


def test_trials_that_a_stopped_study_gives_up_are_told(
    store: Store, create: Callable[..., Any], claim: Callable[[], Any]
) -> None:
    create()
    store.claims.fail(lease_of(claim()), Failure(reason=Reason.LOST), {})
    after = store.events.head()
    store.lifecycle.cancel("demo")
    found = store.events.after(after)
    assert [event.data.get("state") for event in found] == ["stopping", "FAIL", "stopped"]


def test_a_deleted_study_is_told(store: Store, create: Callable[..., Any], stock: Any) -> None:
    create()
    after = store.events.head()
    stock.delete_study(stock.get_study_id_from_name("demo"))
    store.deleting.purge()
    (event,) = store.events.after(after)
    assert (event.kind, event.study_name) == (EventKind.STUDY_DELETED, "demo")


def test_a_change_that_is_rolled_back_tells_nothing(store: Store) -> None:
    rung = threading.Event()
    store.events.on_news(rung.set)

    def fail(connection: sa.Connection) -> None:
        events.append(connection, EventKind.STUDY_STATE)
        raise KeyError

    with pytest.raises(KeyError):
        store._database.write(fail)
    store._database.write(lambda connection: None)
    assert not rung.is_set()
    assert told(store) == []
    store._database.write(lambda c: events.append(c, EventKind.STUDY_STATE))
    assert rung.is_set()


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_reader_waits_for_transactions_that_began_before(store: Store) -> None:
    """Their events come first, however late they commit; on SQLite none can begin before."""
    with store._database.engine.connect() as slow:
        slow.begin()
        events.append(slow, EventKind.STUDY_STATE, None, 1)
        store._database.write(lambda c: events.append(c, EventKind.STUDY_STATE, None, 2))
        assert told(store) == []
        slow.commit()
    assert [number for _, number in told(store)] == [1, 2]


def test_writers_and_a_reader_at_once_lose_nothing(store: Store) -> None:
    """Eight writers, and a reader that keeps its place."""
    n_each = 25
    done = threading.Event()

    def write(place: int) -> None:
        for number in range(n_each):
            numbered = place * n_each + number
            store._database.write(
                lambda c, n=numbered: events.append(c, EventKind.STUDY_STATE, None, n)
            )

    def read() -> list[Any]:
        found: list[Any] = []
        cursor, is_last = BEGINNING, False
        while True:
            page = store.events.after(cursor, limit=7)
            found += page
            cursor = page[-1].cursor if page else cursor
            if not page and is_last:
                return found
            is_last = not page and done.is_set()

    with ThreadPoolExecutor(9) as pool:
        reading = pool.submit(read)
        list(pool.map(write, range(8)))
        done.set()
        found = reading.result(timeout=30)
    assert sorted(event.number for event in found) == list(range(8 * n_each))
    assert [event.cursor for event in found] == sorted(event.cursor for event in found)


@pytest.mark.parametrize("cause", ["rows", "days"])
def test_old_events_are_pruned_and_a_place_before_them_is_unknown(
    database_url: str, cause: str
) -> None:
    limit = EventRetention(rows=10) if cause == "rows" else EventRetention(days=1)
    store = open_store(database_url, LeaseTimes(), retention=limit)
    store.prepare()

    def write(connection: sa.Connection) -> None:
        for number in range(BITE + 30):
            events.append(connection, EventKind.STUDY_STATE, None, number)

    store._database.write(write)
    page = store.events.after(BEGINNING, limit=BITE + 30)
    if cause == "days":
        old = t.hpo_event.c.number < BITE + 20
        with store._database.engine.begin() as connection:
            moved = t.hpo_event.update().where(old).values(created_at=events.db_now(-90_000))
            connection.execute(moved)
    assert store.events.prune()
    assert not store.events.prune()
    assert [event.number for event in store.events.after(BEGINNING)] == [
        *range(BITE + 20, BITE + 30)
    ]
    assert not store.events.knows(page[0].cursor)
    assert store.events.knows(page[-1].cursor)
    assert not store.events.knows(Cursor(page[-1].cursor.transaction_id, page[-1].cursor.id + 1))
    store.close()


def test_a_place_reads_as_it_is_written() -> None:
    assert Cursor.parse(str(Cursor(12, 34))) == Cursor(12, 34)
    assert Cursor.parse("0") == BEGINNING
    with pytest.raises(InvalidField):
        Cursor.parse("-1")
