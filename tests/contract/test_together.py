"""Writes of several threads in one transaction of SQLite: few commits, and nobody harms another."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa

from hpo.errors import Unavailable
from storage.engine import Database

N_WRITERS = 6


@pytest.fixture
def database(sqlite_url: str) -> Iterator[Database]:
    opened = Database(sqlite_url)
    opened.write(lambda c: c.exec_driver_sql("CREATE TABLE word (text TEXT PRIMARY KEY)"))
    yield opened
    opened.close()


def insert(text: str) -> Callable[[sa.Connection], str]:
    def part(connection: sa.Connection) -> str:
        connection.exec_driver_sql("INSERT INTO word VALUES (?)", (text,)).close()
        return text

    return part


def words(database: Database) -> set[str]:
    return set(
        database.read_one(lambda c: c.exec_driver_sql("SELECT text FROM word").scalars().all())
    )


class Crowd:
    """Lets writers gather while a transaction has the turn."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def gather(self, parts: list[Callable[[sa.Connection], Any]]) -> list[Future[Any]]:
        assert self._database._together is not None
        waiting, may_end = self._database._together._waiting, threading.Event()
        with ThreadPoolExecutor(len(parts) + 1) as pool:
            has_turn = threading.Event()

            def first(_: sa.Connection) -> None:
                has_turn.set()
                assert may_end.wait(30)

            pool.submit(self._database.write, first)
            assert has_turn.wait(30)
            found = [pool.submit(self._database.write_one, part) for part in parts]
            while len(waiting) < len(parts):
                has_turn.wait(0.001)
            may_end.set()
        return found


def test_those_who_wait_share_a_commit(database: Database) -> None:
    commits: list[Any] = []
    texts = [f"word {index}" for index in range(N_WRITERS)]
    sa.event.listen(database.engine, "commit", commits.append)
    found = Crowd(database).gather([insert(text) for text in texts])
    assert [future.result() for future in found] == texts
    assert words(database) == set(texts)
    assert len(commits) == 2 + 1, "that of the one before, theirs, and the read of this test"


def test_one_that_fails_fails_alone(database: Database) -> None:
    def refuse(connection: sa.Connection) -> None:
        insert("half done")(connection)
        raise LookupError("not this one")

    parts = [insert("a"), refuse, insert("b"), insert("a"), insert("c")]
    found = Crowd(database).gather(parts)
    errors = [future.exception() for future in found]
    assert isinstance(errors[1], LookupError)
    assert [type(error) for error in errors].count(sa.exc.IntegrityError) == 1  # one of the twins
    assert words(database) == {"a", "b", "c"}


def test_a_commit_that_fails_is_tried_again_for_all(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, n_failed = database.engine.dialect.do_commit, 0

    def fail_once(connection: Any) -> None:
        nonlocal n_failed
        n_waiting = connection.execute("SELECT count(*) FROM word").fetchone()[0]
        if n_waiting and not n_failed:
            n_failed += 1
            raise sqlite3.OperationalError("database is locked")
        commit(connection)

    monkeypatch.setattr(database.engine.dialect, "do_commit", fail_once)
    found = Crowd(database).gather([insert("a"), insert("b")])
    assert [future.result() for future in found] == ["a", "b"]
    assert (words(database), n_failed) == ({"a", "b"}, 1)


def test_all_learn_that_the_database_is_away(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.engine.RETRY_SECONDS", 0.0)

    def fail(connection: Any) -> None:
        if connection.execute("SELECT count(*) FROM word").fetchone()[0]:
            raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patch:
        patch.setattr(database.engine.dialect, "do_commit", fail)
        found = Crowd(database).gather([insert("a"), insert("b")])
    assert [type(future.exception()) for future in found] == [Unavailable, Unavailable]
    assert words(database) == set()
