"""How much of everything there is: a fixed number of aggregates over the whole database."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from storage import tables as t


@dataclass(frozen=True, kw_only=True, slots=True)
class Census:
    """Counts by the value of one column, and what workers that beat have to offer."""

    trials: dict[str, int]
    studies: dict[str, int]
    leases: dict[str, int]
    n_workers: int
    n_slots: int


def count(connection: sa.Connection, is_alive: sa.ColumnElement[bool]) -> Census:
    """Four statements, whatever the size."""
    workers = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(t.hpo_worker.c.slots), 0))
    n_workers, n_slots = connection.execute(workers.where(is_alive)).one()
    return Census(
        trials=_by(connection, t.trials.c.state),
        studies=_by(connection, t.hpo_study.c.state),
        leases=_by(connection, t.hpo_lease.c.phase),
        n_workers=int(n_workers),
        n_slots=int(n_slots),
    )


def _by(connection: sa.Connection, column: sa.Column[str]) -> dict[str, int]:
    rows = connection.execute(sa.select(column, sa.func.count()).group_by(column))
    # Optuna's states are an enum, ours are strings.
    return {str(getattr(value, "name", value)): int(n) for value, n in rows}
