"""Idempotency keys on every backend: one answer for one key, whoever asks and however often."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from hpo.errors import IdempotencyKeyReused
from storage import tables as t
from storage.engine import Database
from storage.requests import KEPT_SECONDS, fingerprint_of, once
from storage.store import Store
from tests.builders import definition
from tests.clock import Clock

N_THREADS = 4


class Work:
    """Counts how often it is done."""

    def __init__(self, database: Database) -> None:
        self.database, self.n_done = database, 0

    def send(self, key: str | None, kind: str = "ask", body: Any = 1) -> dict[str, Any]:
        def make() -> dict[str, Any]:
            self.n_done += 1
            return {"n": self.n_done}

        mark = fingerprint_of({"body": body})
        return self.database.write(lambda c: once(c, key, kind, mark, make))


@pytest.fixture
def work(store: Store) -> Work:
    return Work(store._database)


def test_a_request_sent_again_gets_its_first_answer(work: Work) -> None:
    assert [work.send("k"), work.send("k"), work.send("other")] == [{"n": 1}, {"n": 1}, {"n": 2}]


def test_without_a_key_every_request_counts(work: Work) -> None:
    assert [work.send(None), work.send(None)] == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize("other", [{"body": 2}, {"kind": "enqueue"}])
def test_a_key_of_another_request_is_refused(work: Work, other: dict[str, Any]) -> None:
    work.send("k")
    with pytest.raises(IdempotencyKeyReused, match="choose a new key"):
        work.send("k", **other)
    assert work.n_done == 1


def test_work_that_fails_leaves_its_key_free(work: Work) -> None:
    def fail() -> dict[str, Any]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work.database.write(lambda c: once(c, "k", "ask", fingerprint_of({"body": 1}), fail))
    assert work.send("k") == {"n": 1}


def test_the_same_request_at_once_is_done_once(work: Work) -> None:
    start, answers = threading.Barrier(N_THREADS), []

    def send() -> None:
        start.wait()
        answers.append(work.send("k"))

    threads = [threading.Thread(target=send) for _ in range(N_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [{"n": 1}] * N_THREADS


def test_keys_are_forgotten_after_a_day(store: Store, work: Work, database_url: str) -> None:
    clock = Clock(database_url)
    work.send("old")
    clock.advance(KEPT_SECONDS - 60)
    store.claims.reap()
    assert work.send("old") == {"n": 1}
    clock.advance(120)
    store.claims.reap()
    count = sa.select(sa.func.count()).select_from(t.hpo_request)
    assert store._database.read(lambda c: c.execute(count).scalar_one()) == 0


def test_the_order_of_fields_does_not_make_another_request() -> None:
    assert fingerprint_of({"a": 1, "b": [2]}) == fingerprint_of({"b": [2], "a": 1})
    assert fingerprint_of({"a": 1}) != fingerprint_of({"a": 1.5})


def test_a_creation_sent_again_has_created_the_study(store: Store) -> None:
    def send(**fields: Any) -> Callable[[], tuple[Any, bool]]:
        return lambda: store.studies.create(
            definition(**fields), given=frozenset(), key="k", fingerprint=fingerprint_of(fields)
        )

    first, again = send()(), send()()
    assert first == again
    assert again[1]
    with pytest.raises(IdempotencyKeyReused):
        send(n_trials=9)()
