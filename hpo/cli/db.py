"""`hpo db`: the tables of a service."""

from __future__ import annotations

import typer

from hpo.cli.api import opened, use_utc
from hpo.cli.options import Database
from hpo.cli.rooms import require_driver, require_rooms


def upgrade(db: Database) -> None:
    """Create the tables, or bring them to this release. Safe to repeat, and in parallel.

    The API does the same when it starts. On SQLite it must not run at that time.

    Examples:
      hpo db upgrade --db postgresql+psycopg://hpo:secret@db/hpo
    """
    use_utc()
    require_rooms("storage")
    require_driver(db)
    with opened(db) as store:
        before, after = store.upgrade()
    if before == after:
        typer.echo(f"The database is up to date: revision {after.found}.")
    else:
        typer.echo(f"The database is ready: from revision {before.found} to {after.found}.")
