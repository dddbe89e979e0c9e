"""The schema step: Optuna's tables as Optuna makes them, ours by Alembic, under one lock.

Thirteen processes that start on an empty database create it once: SQLite's file lock lets in one
process, PostgreSQL's advisory lock one at a time.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from optuna.storages import RDBStorage
from optuna.storages import _rdb as rdb

from hpo.errors import SchemaMismatch
from storage.engine import Database, outages

VERSION_TABLE = "hpo_alembic_version"
UPGRADE_COMMAND = "hpo db upgrade"
# Many processes may start at once on a busy machine, and a long upgrade holds the lock.
PATIENCE_SECONDS = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class SchemaVersion:
    """Revisions found in a database beside those that this version of hpo needs."""

    found: str | None
    needed: str
    optuna_found: str | None
    optuna_needed: str

    @property
    def is_current(self) -> bool:
        return (self.found, self.optuna_found) == (self.needed, self.optuna_needed)


def upgrade(database: Database, *, optuna: bool = False) -> tuple[SchemaVersion, SchemaVersion]:
    """Brings the schema up to date; answers the versions before and after.

    An old schema of Optuna's is brought up only with `optuna`, since other programs may use it.
    Raises SchemaMismatch for a revision that this version does not know, before any change.
    """
    with database.mutex("hpo/schema", patience_seconds=PATIENCE_SECONDS), outages():
        with database.engine.connect() as connection:
            before = version(connection)
        _refuse_unknown(before)
        if before.is_current:  # another process was faster
            return before, before
        stock = _create_optuna_schema(database)
        if optuna:
            stock.upgrade()
        stock.engine.dispose()
        if before.found != before.needed:
            with database.engine.begin() as connection:
                command.upgrade(_alembic(connection), "head")
        with database.engine.connect() as connection:
            return before, version(connection)


def check(database: Database) -> None:
    """Raises SchemaMismatch unless the schema is current, Unavailable when none can be read."""
    found = database.read(version)
    _refuse_unknown(found)
    if not found.is_current:
        raise SchemaMismatch(
            f"The database has revision {found.found} (Optuna: {found.optuna_found}); this "
            f"version needs {found.needed} (Optuna: {found.optuna_needed}). Stop the service, "
            f"make a backup and run `{UPGRADE_COMMAND}`.",
            **_facts(found),
        )


def version(connection: sa.Connection) -> SchemaVersion:
    """Reads both revisions; None where there is no such schema yet."""
    return SchemaVersion(
        found=_revision(connection, VERSION_TABLE),
        needed=_known_revisions()[0],
        optuna_found=_revision(connection, "alembic_version"),
        optuna_needed=_optuna_revisions()[0],
    )


def _refuse_unknown(found: SchemaVersion) -> None:
    if found.found not in [*_known_revisions(), None]:
        owner, revision, needed = "hpo", found.found, found.needed
    elif found.optuna_found not in [*_optuna_revisions(), None]:
        owner, revision, needed = "Optuna", found.optuna_found, found.optuna_needed
    else:
        return
    raise SchemaMismatch(
        f"The database has {owner}'s revision {revision}, which this installation does not know; "
        f"it needs {needed}. Install the version of {owner} that made it, or restore a backup "
        f"and run `{UPGRADE_COMMAND}`.",
        **_facts(found),
    )


def _facts(found: SchemaVersion) -> dict[str, str | None]:
    return {
        "found": found.found,
        "needed": found.needed,
        "optuna_found": found.optuna_found,
        "optuna_needed": found.optuna_needed,
        "command": UPGRADE_COMMAND,
    }


def _create_optuna_schema(database: Database) -> RDBStorage:
    # The stock constructor makes the tables and stamps the revision; only here is it used. Its
    # own engine is given the pool class that keeps no connection, and is thrown away.
    return RDBStorage(
        database.url.render_as_string(hide_password=False),
        engine_kwargs={"poolclass": sa.pool.NullPool},
        skip_compatibility_check=True,
    )


@functools.cache
def _known_revisions() -> list[str]:
    """Our revisions, the newest first; read once, since readiness asks often."""
    return _revisions(_alembic())


@functools.cache
def _optuna_revisions() -> list[str]:
    """Optuna's revisions, the newest first."""
    location = str(Path(rdb.__file__).parent / "alembic")
    config = Config()
    config.set_main_option("script_location", location.replace("%", "%%"))
    return _revisions(config)


def _revisions(config: Config) -> list[str]:
    script = ScriptDirectory.from_config(config)
    return [revision.revision for revision in script.walk_revisions()]


def _alembic(connection: sa.Connection | None = None) -> Config:
    config = Config()
    location = str(Path(__file__).parent / "migrations")
    config.set_main_option("script_location", location.replace("%", "%%"))
    config.attributes["connection"] = connection
    config.attributes["version_table"] = VERSION_TABLE
    return config


def _revision(connection: sa.Connection, version_table: str) -> str | None:
    context = MigrationContext.configure(connection, opts={"version_table": version_table})
    return context.get_current_revision()
