"""`hpo db upgrade` on an empty, a current, an old and an unknown database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa


def stamp(url: str, table: str, revision: str) -> None:
    engine = sa.create_engine(url, poolclass=sa.pool.NullPool)
    with engine.begin() as connection:
        connection.execute(sa.text(f"UPDATE {table} SET version_num = :to"), {"to": revision})
    engine.dispose()


def test_upgrade_says_what_it_found_and_did(
    hpo_command: Callable[..., Any], empty_database_url: str
) -> None:
    url = empty_database_url
    first = hpo_command("db", "upgrade", "--db", url)
    assert (first.code, first.err) == (0, "")
    assert first.out.startswith("The database is ready: the tables were made, revision 0001 (")
    for _ in range(2):
        again = hpo_command("db", "upgrade", "--db", url)
        assert (again.code, again.err) == (0, "")
        assert again.out.startswith("The database is up to date: revision 0001 (Optuna: v")
    stamp(url, "alembic_version", "v3.0.0.d")
    old = hpo_command("db", "upgrade", "--db", url)
    assert old.code == 0
    assert old.out.endswith("before 0001 (Optuna: v3.0.0.d).\n")
    stamp(url, "hpo_alembic_version", "9999")
    for _ in range(2):
        unknown = hpo_command("db", "upgrade", "--db", url)
        assert (unknown.code, unknown.out) == (1, "")
        assert unknown.err.startswith("error: The database has hpo's revision 9999")
        assert "it needs 0001" in unknown.err
