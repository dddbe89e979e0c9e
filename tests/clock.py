"""Moves the times that stand in a database back, so that a test need not wait for them to pass."""

from __future__ import annotations

import datetime as dt

import sqlalchemy as sa

from storage import tables as t

TIMES = (
    t.hpo_lease.c.acquired_at,
    t.hpo_lease.c.acquired_until,
    t.hpo_trial.c.next_attempt_at,
    t.hpo_attempt.c.started_at,
    t.hpo_attempt.c.ended_at,
    t.hpo_study.c.running_since,
    t.hpo_request.c.created_at,
    t.hpo_deleted_study.c.deleted_at,
)


class Clock:
    """Of one database, over a connection of its own."""

    def __init__(self, url: str) -> None:
        self.engine = sa.create_engine(url, poolclass=sa.pool.NullPool)

    def advance(self, seconds: float) -> None:
        """Lets time pass for leases, attempts, pauses between them and studies."""
        with self.engine.begin() as connection:
            for column in TIMES:
                self._move(connection, column, sa.true(), seconds)

    def age(self, seconds: float) -> None:
        """Lets time pass for studies alone."""
        with self.engine.begin() as connection:
            self._move(connection, t.hpo_study.c.running_since, sa.true(), seconds)

    def expire(self, token: str) -> None:
        """Lets the time of one lease run out."""
        lease = t.hpo_lease.c
        with self.engine.begin() as connection:
            self._move(connection, lease.acquired_until, lease.token == token, 1e6)

    def expire_sampling(self) -> None:
        """Lets the leases run out whose claimants never got their parameters."""
        lease = t.hpo_lease.c
        with self.engine.begin() as connection:
            self._move(connection, lease.acquired_until, lease.phase == "sampling", 1e6)

    def leases(self) -> dict[int, tuple[str, str]]:
        """Token and phase by the number of the trial."""
        select = sa.select(t.hpo_lease.c.number, t.hpo_lease.c.token, t.hpo_lease.c.phase)
        with self.engine.connect() as connection:
            return {row.number: (row.token, row.phase) for row in connection.execute(select)}

    def is_anyone_waiting(self) -> bool:
        """Whether a statement waits for a lock, on PostgreSQL."""
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        with self.engine.connect() as connection:
            return bool(connection.exec_driver_sql(waiting).scalar_one())

    @staticmethod
    def _move(
        connection: sa.Connection,
        column: sa.Column[dt.datetime],
        condition: sa.ColumnElement[bool],
        seconds: float,
    ) -> None:
        table = column.table
        assert isinstance(table, sa.Table)
        times = sa.select(column).where(condition, column.is_not(None)).distinct()
        for time in sorted(connection.execute(times).scalars()):  # the earliest first: no overlap
            earlier = time - dt.timedelta(seconds=seconds)
            update = table.update().where(condition, column == time)
            connection.execute(update.values({column: earlier}))
