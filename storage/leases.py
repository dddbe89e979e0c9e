"""Leases: the right to write to one RUNNING trial, shown by a token in every write.

Expiry is judged by the database's clock and only permits reaping: a lease that ran out and that
nobody has reaped can still be renewed and used. A write locks the lease's row first, so it and
the end of the lease cannot pass each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn
from uuid import UUID

import sqlalchemy as sa
from optuna.trial import TrialState as OptunaState

from hpo.errors import HpoError, LeaseLost, NotFound, TrialFinished
from hpo.trial import TrialState
from storage import tables as t
from storage import workers
from storage.engine import db_now
from storage.records import Lease
from storage.statements import Held, given, written_under

SAMPLING, RUNNING = "sampling", "running"


def hold(
    connection: sa.Connection, lease: Lease, *, lease_seconds: float, is_revised: bool = True
) -> sa.Row[Any]:
    """Locks and renews a running lease. Raises LeaseLost, TrialFinished or NotFound.

    Every write to a trial begins with this, so no write of a stale attempt reaches a table.
    `is_revised`: the write changes what reports and outcomes follow from (`storage.attempts`).
    """
    revision = t.hpo_lease.c.revision
    row = connection.execute(
        t.hpo_lease.update()
        # The reaper takes the lease of a trial away that another Optuna program has ended.
        .where(_is_shown(lease), t.hpo_lease.c.phase == RUNNING, is_running())
        .values(
            acquired_until=db_now(_length(lease_seconds)),
            revision=revision + 1 if is_revised else revision,
        )
        .returning(t.hpo_lease)
    ).one_or_none()
    if row is None:
        refuse(connection, lease)
    return row


def end(
    connection: sa.Connection, lease: Lease, condition: sa.ColumnElement[bool]
) -> sa.Row[Any] | None:
    """Takes a running lease away if the condition holds; None when this token holds none."""
    running = t.hpo_lease.c.phase == RUNNING
    delete = t.hpo_lease.delete().where(_is_shown(lease), running, condition)
    return connection.execute(delete.returning(t.hpo_lease)).one_or_none()


def beat(
    connection: sa.Connection, worker_id: UUID, tokens: Sequence[str], *, lease_seconds: float
) -> list[str]:
    """Notes a sign of life and lengthens the leases that a worker says it holds.

    Answers the tokens that are lost. Raises NotFound, after which the worker registers again.
    """
    lease = t.hpo_lease.c

    def renewed(worker: Held) -> sa.Update:
        mine = sa.and_(lease.worker_id == worker.id, lease.token.in_(tokens))
        until = db_now(_length(lease_seconds))
        return t.hpo_lease.update().where(mine).values(acquired_until=until)

    held = written_under(connection, workers.seen(worker_id), renewed, lease.token)
    if held is None:
        raise workers.unregistered(worker_id)
    return [token for token in tokens if token not in held]


def refuse(connection: sa.Connection, lease: Lease) -> NoReturn:
    """Says why a token holds no lease: the study, the trial, its end, or another attempt."""
    raise _why(connection, lease)


def state_of(connection: sa.Connection, trial_id: int) -> TrialState | None:
    """The state in Optuna's table; None when the trial is gone."""
    select = sa.select(t.trials.c.state).where(t.trials.c.trial_id == trial_id)
    state: OptunaState | None = connection.execute(select).scalar_one_or_none()
    return None if state is None else TrialState[state.name]


def _why(connection: sa.Connection, lease: Lease) -> HpoError:
    select = sa.select(t.hpo_study.c.uuid).where(t.hpo_study.c.name == lease.study_name)
    study_uuid = connection.execute(select).scalar_one_or_none()
    if study_uuid is None:
        return NotFound(f"There is no study {lease.study_name!r}.")
    trial = connection.execute(
        sa.select(t.hpo_trial.c.trial_id).where(
            t.hpo_trial.c.study_uuid == study_uuid, t.hpo_trial.c.number == lease.number
        )
    ).one_or_none()
    if trial is None:
        return NotFound(f"There is no trial {lease.study_name}/{lease.number}.")
    state = state_of(connection, trial.trial_id)
    if state is not None and state.is_finished:
        return _finished(lease)
    return LeaseLost(
        f"{lease.study_name}/{lease.number}: {LeaseLost.__doc__}",
        study=lease.study_name,
        number=lease.number,
    )


def _finished(lease: Lease) -> TrialFinished:
    return TrialFinished(
        f"{lease.study_name}/{lease.number}: {TrialFinished.__doc__}",
        study=lease.study_name,
        number=lease.number,
    )


def is_running() -> sa.ColumnElement[bool]:
    """Whether Optuna's row of a lease's trial says so; another program may have ended it."""
    trial = t.trials.c
    return sa.exists().where(trial.trial_id == t.hpo_lease.c.trial_id, trial.state == "RUNNING")


def _length(lease_seconds: float) -> sa.ColumnElement[float]:
    return length(sa.literal(lease_seconds, sa.Double()))


def length(usual: sa.ColumnElement[float]) -> sa.ColumnElement[float]:
    """What the holder asked for, or else the service's own."""
    return sa.func.coalesce(t.hpo_lease.c.lease_seconds, usual)


def is_as_known() -> sa.ColumnElement[bool]:
    """Whether a running lease is as a process knows it, and its trial has no order to stop.

    With places for values, for statements that are prepared.
    """
    lease = t.hpo_lease.c
    places = (lease.token, lease.study_uuid, lease.number, lease.revision)
    return sa.and_(
        *(column == given(column) for column in places),
        lease.phase == RUNNING,
        lease.stop_reason.is_(None),
    )


def _is_shown(lease: Lease) -> sa.ColumnElement[bool]:
    """The token is the right, the path must agree with it."""
    study = sa.select(t.hpo_study.c.uuid).where(t.hpo_study.c.name == lease.study_name)
    return sa.and_(
        t.hpo_lease.c.token == lease.token,
        t.hpo_lease.c.number == lease.number,
        t.hpo_lease.c.study_uuid == study.scalar_subquery(),
    )
