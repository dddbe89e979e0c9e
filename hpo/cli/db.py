"""`hpo db`: the tables of a service."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from hpo.cli.api import opened, use_utc
from hpo.cli.options import AsJson, Database
from hpo.cli.rooms import require_driver, require_rooms

if TYPE_CHECKING:
    from storage.schema import SchemaVersion


def upgrade(db: Database, as_json: AsJson = False) -> None:
    """Create the tables, or bring them to this release. Safe to repeat, and in parallel.

    The API does the same when it starts. On SQLite it must not run at that time.

    Examples:
      hpo db upgrade --db postgresql+psycopg://hpo:secret@db/hpo
    """
    from hpo.cli.output import print_json

    use_utc()
    require_rooms("storage")
    require_driver(db)
    with opened(db) as store:
        before, after = store.upgrade()
    if as_json:
        return print_json({"before": before.found, "revision": after.found})
    typer.echo(_outcome(before, after))


def _outcome(before: SchemaVersion, after: SchemaVersion) -> str:
    now = f"revision {after.found} (Optuna: {after.optuna_found})"
    if before == after:
        return f"The database is up to date: {now}."
    if before.found is None:
        return f"The database is ready: the tables were made, {now}."
    return f"The database is ready: {now}, before {before.found} (Optuna: {before.optuna_found})."
