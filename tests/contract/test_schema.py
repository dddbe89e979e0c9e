"""The schema step: created once by many processes at a time, refused when it is unknown."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from hpo.errors import DatabaseInUse, InvalidField, SchemaMismatch, Unavailable
from storage import engine, schema, tables
from storage.engine import Database
from storage.store import Store, open_store


@pytest.fixture
def database(empty_database_url: str) -> Iterator[Database]:
    opened = Database(empty_database_url)
    yield opened
    opened.close()


PREPARE = """
import sys
from storage.store import open_store
store = open_store(sys.argv[1])
store.prepare()
store.check()
store.close()
"""


def test_many_processes_create_one_schema(postgres_url: str) -> None:
    command = [sys.executable, "-c", PREPARE, postgres_url]
    processes = [subprocess.Popen(command) for _ in range(13)]
    assert [process.wait(timeout=240) for process in processes] == [0] * 13
    store = open_store(postgres_url)
    store.check()
    store.close()


def test_the_step_may_be_repeated(database: Database) -> None:
    before, after = schema.upgrade(database)
    assert (before.found, before.optuna_found) == (None, None)
    assert after.is_current
    assert schema.upgrade(database) == (after, after)
    schema.check(database)


def test_migrations_make_the_tables_that_the_code_uses(database: Database) -> None:
    schema.upgrade(database)
    options = {"include_name": lambda name, kind, _: kind != "table" or name.startswith("hpo_")}
    with database.engine.connect() as connection:
        connection.exec_driver_sql("SELECT 1")
        context = MigrationContext.configure(connection, opts=options)
        differences = compare_metadata(context, tables.metadata)
    ours = [difference for difference in differences if schema.VERSION_TABLE not in str(difference)]
    assert ours == []


def stamp(database: Database, table: str, revision: str) -> None:
    with database.engine.begin() as connection:
        connection.execute(sa.text(f"UPDATE {table} SET version_num = :to"), {"to": revision})


def test_a_store_is_prepared_on_an_empty_and_on_a_current_database(
    empty_database_url: str,
) -> None:
    for _ in range(2):
        store = open_store(empty_database_url)
        for _ in range(2):
            store.prepare()
            store.check()
        store.close()


@pytest.mark.parametrize(
    ("table", "fact"), [(schema.VERSION_TABLE, "found"), ("alembic_version", "optuna_found")]
)
@pytest.mark.parametrize("optuna", [False, True])
def test_an_unknown_revision_is_left_alone_and_named(
    database: Database, table: str, fact: str, optuna: bool
) -> None:
    _, made = schema.upgrade(database)
    stamp(database, table, "9999")
    for refused in (
        lambda: schema.upgrade(database, optuna=optuna),
        lambda: schema.check(database),
    ):
        for _ in range(2):
            with pytest.raises(SchemaMismatch) as mismatch:
                refused()
            facts = mismatch.value.facts
            assert facts[fact] == "9999"
            assert (facts["needed"], facts["optuna_needed"]) == (made.found, made.optuna_found)
            assert facts["command"] == "hpo db upgrade"
            assert "9999" in str(mismatch.value)


def test_an_old_optuna_schema_is_upgraded_on_request_only(database: Database) -> None:
    schema.upgrade(database)
    stamp(database, "alembic_version", "v3.0.0.d")
    with pytest.raises(SchemaMismatch, match="hpo db upgrade"):
        schema.check(database)
    _, after = schema.upgrade(database, optuna=True)
    assert after.is_current


@pytest.mark.parametrize(
    "url",
    [
        "mysql://u@h/d",
        "mysql+pymysql://u@h/d",
        "postgresql://u@h/d",
        "postgresql+psycopg2://u@h/d",
        "sqlite://",
        "sqlite:///:memory:",
        "oracle://h/d",
        "hpo.db",
        "",
    ],
)
def test_other_databases_are_refused_by_name(url: str) -> None:
    with pytest.raises(InvalidField, match=r"postgresql\+psycopg.*MySQL is not supported"):
        open_store(url)


def test_a_folder_that_does_not_exist_is_named_and_not_made(tmp_path: Path) -> None:
    folder = tmp_path / "typo"
    with pytest.raises(InvalidField, match="make it first"):
        open_store(f"sqlite:///{folder}/hpo.db")
    assert not folder.exists()


def test_one_process_writes_to_a_sqlite_file(sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    with pytest.raises(DatabaseInUse, match="Another process writes"):
        open_store(sqlite_url)
    store.close()
    open_store(sqlite_url).close()


def test_a_database_that_is_away_is_unavailable_at_once_and_without_a_drivers_text() -> None:
    store: Store = open_store("postgresql+psycopg://nobody@127.0.0.1:9/nowhere")
    for call in (store.prepare, store.check, lambda: store.studies.get("demo")):
        with pytest.raises(Unavailable) as away:
            call()
        assert "psycopg" not in str(away.value)
    store.close()


def test_the_schema_lock_is_waited_for_longer_than_other_locks(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(engine.TIMEOUTS, "lock_timeout", 1)
    caplog.set_level(logging.INFO, "storage.engine")
    holder, waiter = Database(postgres_url), Database(postgres_url)
    with ThreadPoolExecutor() as threads:
        with holder.mutex("hpo/schema"):
            done = threads.submit(schema.upgrade, waiter)
            with pytest.raises(TimeoutError):
                done.result(timeout=2)
        assert done.result(timeout=60)[1].is_current
    assert "waiting for another process" in caplog.text
    holder.close()
    waiter.close()
