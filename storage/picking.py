"""Which trial a claim gets; called under the lock on Optuna's `studies` row.

In this order: a trial whose parameters never reached a worker, one that waits for its next
attempt, a WAITING trial, a new number.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import sqlalchemy as sa

from storage import leases
from storage import tables as t
from storage.engine import db_now, naive_utc


class Picked(NamedTuple):
    """A trial to be leased; `phase` says whether its parameters are still to be sampled."""

    number: int
    trial_id: int
    attempt: int
    phase: str


def pick(connection: sa.Connection, study: sa.Row[Any]) -> Picked | None:
    """A trial of a running study, None when it has none to give at the moment."""
    retaken = _expired_sampling(connection, study)
    if retaken is not None:
        return retaken
    if not _has_room(connection, study):
        return None
    return _awaiting(connection, study) or _counted_trial(connection, study)


def _has_room(connection: sa.Connection, study: sa.Row[Any]) -> bool:
    if study.max_parallel_trials is None:
        return True
    count = sa.select(sa.func.count()).where(t.hpo_lease.c.study_uuid == study.uuid)
    return bool(connection.execute(count).scalar_one() < study.max_parallel_trials)


def _expired_sampling(connection: sa.Connection, study: sa.Row[Any]) -> Picked | None:
    """A trial whose claimant died before it got the parameters: no attempt has begun."""
    lease = t.hpo_lease.c
    is_abandoned = sa.and_(
        lease.study_uuid == study.uuid,
        lease.phase == leases.SAMPLING,
        lease.acquired_until < db_now(),
    )
    first = sa.select(lease.number).where(is_abandoned).order_by(lease.number).limit(1)
    row = connection.execute(
        t.hpo_lease.delete()
        # Looked at again in the DELETE: its claimant may hand it over late, without our lock.
        .where(is_abandoned, lease.number == first.scalar_subquery())
        .returning(lease.number, lease.trial_id, lease.attempt)
    ).one_or_none()
    return None if row is None else Picked(row.number, row.trial_id, row.attempt, leases.SAMPLING)


def _awaiting(connection: sa.Connection, study: sa.Row[Any]) -> Picked | None:
    """A trial whose last attempt was cut off and whose pause is over."""
    trial = t.hpo_trial.c
    due = (
        sa.select(trial.number)
        .where(trial.study_uuid == study.uuid, trial.next_attempt_at <= db_now())
        .order_by(trial.number)
        .limit(1)
        .scalar_subquery()
    )
    row = connection.execute(
        t.hpo_trial.update()
        .where(trial.study_uuid == study.uuid, trial.number == due)
        .values(next_attempt_at=None, n_attempts=trial.n_attempts + 1, reason=None, message="")
        .returning(trial.number, trial.trial_id, trial.n_attempts)
    ).one_or_none()
    return None if row is None else Picked(row.number, row.trial_id, row.n_attempts, leases.RUNNING)


def _counted_trial(connection: sa.Connection, study: sa.Row[Any]) -> Picked | None:
    """A WAITING trial or a new number, if the budget has room for one more."""
    if study.n_started >= study.n_trials:
        return None
    number, trial_id = _waiting(connection, study) or _new_number(connection, study)
    connection.execute(
        t.hpo_study.update()
        .where(t.hpo_study.c.id == study.id)
        .values(
            n_started=t.hpo_study.c.n_started + 1,
            running_since=sa.func.coalesce(t.hpo_study.c.running_since, db_now()),
        )
    )
    connection.execute(
        t.hpo_trial.insert().values(
            study_uuid=study.uuid, number=number, trial_id=trial_id, n_attempts=0, message=""
        )
    )
    return Picked(number, trial_id, 1, leases.SAMPLING)


def _waiting(connection: sa.Connection, study: sa.Row[Any]) -> tuple[int, int] | None:
    """A trial that somebody has enqueued, the first one: the state is tested in the UPDATE."""
    trial = t.trials.c
    first = (
        sa.select(sa.func.min(trial.trial_id))
        .where(trial.study_id == study.study_id, trial.state == "WAITING")
        .scalar_subquery()
    )
    row = connection.execute(
        t.trials.update()
        .where(trial.trial_id == first, trial.state == "WAITING")
        .values(state="RUNNING", datetime_start=naive_utc())
        .returning(trial.number, trial.trial_id)
    ).one_or_none()
    return None if row is None else (row.number, row.trial_id)


def _new_number(connection: sa.Connection, study: sa.Row[Any]) -> tuple[int, int]:
    trial = t.trials.c
    last = sa.select(sa.func.max(trial.number)).where(trial.study_id == study.study_id)
    highest = connection.execute(last).scalar_one()
    number = 0 if highest is None else highest + 1
    insert = t.trials.insert().values(
        number=number, study_id=study.study_id, state="RUNNING", datetime_start=naive_utc()
    )
    return number, connection.execute(insert.returning(trial.trial_id)).scalar_one()
