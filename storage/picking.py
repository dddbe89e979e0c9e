"""Which trial a claim gets; called under the lock on Optuna's `studies` row.

In this order: a trial whose parameters never reached a worker, one that waits for its next
attempt, a WAITING trial, a new number.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.sql.dml import UpdateBase

from storage import leases
from storage import tables as t
from storage.candidates import is_abandoned, is_due
from storage.engine import db_now, naive_utc
from storage.limits import is_over_time
from storage.statements import Guarded, Held, given, inserted

# A WAITING trial that came in below what has been looked at is found after this time: another
# program may have put a running one back.
LOOK_AGAIN_SECONDS = 60.0


class Picked(NamedTuple):
    """A trial to be leased; `phase` says whether its parameters are still to be sampled."""

    number: int
    trial_id: int
    attempt: int
    phase: str
    is_new: bool = False  # the number was made just now


class _Mark(NamedTuple):
    """An Optuna id up to which no trial of a study is WAITING; it holds until some time."""

    uuid: str = ""
    trial_id: int = -1
    until: float = 0.0


class Queues:
    """Locks studies for those who take their trials, and knows where nothing waits any more.

    Ids of a study appear in order, because whoever numbers a trial holds the study's lock till it
    commits, and none that has begun goes back to WAITING: so no claim looks there again.
    """

    def __init__(self) -> None:
        self._marks: dict[int, _Mark] = {}

    def locked(self, connection: sa.Connection, study_id: int) -> sa.Row[Any] | None:
        """Locks a study as Optuna does to number a trial; its row, and what there is to pick.

        The study's own columns are as they stand under the lock. What there is may be as it stood
        before the lock was waited for: it is tested again when it is taken.
        """
        mark = self._marks.get(study_id, _Mark())
        if mark.until < time.monotonic():
            mark = _Mark(until=time.monotonic() + LOOK_AGAIN_SECONDS)
        study = _read(connection, study_id, mark)
        if study is not None and mark.trial_id >= 0 and study.uuid != mark.uuid:
            mark = _Mark(until=mark.until)  # the id is another study's by now
            study = _read(connection, study_id, mark)
        if study is None:
            self._marks.pop(study_id, None)
            return None
        seen = study.newest_id if study.waiting_id is None else study.waiting_id - 1
        trial_id = mark.trial_id if seen is None else max(mark.trial_id, seen)
        self._marks[study_id] = _Mark(study.uuid, trial_id, mark.until)
        return study


def _read(connection: sa.Connection, study_id: int, mark: _Mark) -> sa.Row[Any] | None:
    names = {"study_id": study_id, "mark": mark.trial_id}
    return connection.execute(_LOCKED, names).one_or_none()


def _locked() -> sa.Select[Any]:
    study, trial = t.hpo_study.c, t.trials.c
    new = sa.and_(
        # The sum keeps databases from the index by study, under which all its trials stand.
        trial.study_id + 0 == t.studies.c.study_id, trial.trial_id > sa.bindparam("mark")
    )  # fmt: skip
    newest = sa.select(sa.func.max(trial.trial_id)).where(new)
    waiting = sa.select(sa.func.min(trial.trial_id)).where(new, trial.state == "WAITING")
    return (
        sa.select(
            t.hpo_study,
            is_over_time().label("is_over_time"),
            newest.scalar_subquery().label("newest_id"),
            waiting.scalar_subquery().label("waiting_id"),
            is_due(study.uuid).label("is_due"),
            is_abandoned(study.uuid).label("is_abandoned"),
        )
        .select_from(t.studies.join(t.hpo_study, study.study_id == t.studies.c.study_id))
        .where(t.studies.c.study_id == sa.bindparam("study_id"))
        # Both rows: what a statement waits to lock, it reads anew.
        .with_for_update(of=[t.studies, t.hpo_study])
    )


_LOCKED = _locked()


def pick(connection: sa.Connection, study: sa.Row[Any], lease: Mapping[str, Any]) -> Picked | None:
    """Leases a trial of a running study, None when it has none to give at the moment."""
    picked = _found(connection, study)
    if picked is not None:
        _lease(connection, study, picked, lease)
        return picked
    if study.n_started >= study.n_trials:
        return None
    values = {
        **lease,
        "id": study.id,
        "study_id": study.study_id,
        "study_uuid": study.uuid,
        "max_parallel_trials": study.max_parallel_trials,
        "datetime_start": naive_utc(),
    }
    row = _NEW.on(connection, values)
    return (
        None if row is None else Picked(row.number, row.trial_id, 1, leases.SAMPLING, is_new=True)
    )


def _found(connection: sa.Connection, study: sa.Row[Any]) -> Picked | None:
    """A trial that is there already."""
    if study.is_abandoned:
        retaken = _expired_sampling(connection, study)
        if retaken is not None:
            return retaken
    if not ((study.is_due or study.waiting_id is not None) and _has_room(connection, study)):
        return None
    awaiting = _awaiting(connection, study) if study.is_due else None
    if awaiting is not None or study.waiting_id is None or study.n_started >= study.n_trials:
        return awaiting
    return _waiting(connection, study)


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


def _waiting(connection: sa.Connection, study: sa.Row[Any]) -> Picked | None:
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
    if row is None:
        return None
    connection.execute(_started().where(t.hpo_study.c.id == study.id))
    connection.execute(
        t.hpo_trial.insert().values(
            study_uuid=study.uuid, number=row.number, trial_id=row.trial_id,
            n_attempts=0, message="",
        )
    )  # fmt: skip
    return Picked(row.number, row.trial_id, 1, leases.SAMPLING)


def _started() -> sa.Update:
    study = t.hpo_study.c
    return t.hpo_study.update().values(
        n_started=study.n_started + 1,
        running_since=sa.func.coalesce(study.running_since, db_now()),
    )


def _lease(
    connection: sa.Connection, study: sa.Row[Any], picked: Picked, lease: Mapping[str, Any]
) -> None:
    connection.execute(
        t.hpo_lease.insert().values(
            **{key: value for key, value in lease.items() if key != "seconds"},
            study_uuid=study.uuid,
            number=picked.number,
            trial_id=picked.trial_id,
            attempt=picked.attempt,
            phase=picked.phase,
            acquired_at=db_now(),
            acquired_until=db_now(lease["seconds"]),
        )
    )


def _numbered() -> Any:
    """A new trial with the number after the last one, if the study may run one more."""
    trial, ours, lease = t.trials.c, t.hpo_trial.c, t.hpo_lease.c
    mine = ours.study_uuid == given(ours.study_uuid)
    # Our last trial is found by its key; any later one of the study has a higher id.
    last_of_ours = sa.select(ours.trial_id).where(mine).order_by(ours.number.desc()).limit(1)
    beyond = sa.func.coalesce(last_of_ours.scalar_subquery(), -1)
    last = sa.select(sa.func.max(trial.number)).where(
        trial.study_id + 0 == given(trial.study_id), trial.trial_id >= beyond
    )
    limit = given(t.hpo_study.c.max_parallel_trials)
    n_running = sa.select(sa.func.count()).where(lease.study_uuid == given(ours.study_uuid))
    columns = {
        "number": sa.func.coalesce(last.scalar_subquery(), -1) + 1,
        "study_id": given(trial.study_id),
        "state": sa.literal("RUNNING", trial.state.type),
        "datetime_start": given(trial.datetime_start),
    }
    chosen = sa.select(*columns.values()).where(
        sa.or_(limit.is_(None), n_running.scalar_subquery() < limit)
    )
    return (
        t.trials.insert().from_select(list(columns), chosen).returning(trial.number, trial.trial_id)
    )


def _taken(held: Held) -> Sequence[UpdateBase]:
    trial, lease, study = t.hpo_trial.c, t.hpo_lease.c, t.hpo_study.c
    key = {
        "study_uuid": given(trial.study_uuid),
        "number": held.number,
        "trial_id": held.trial_id,
    }
    names = ("token", "claim_key", "worker_id", "device", "lease_seconds")
    seconds: sa.ColumnElement[float] = sa.bindparam("seconds", type_=sa.Double())
    begun = {"n_attempts": sa.literal(0), "message": sa.literal(""), "is_counted": sa.true()}
    leased = {
        **{name: given(lease[name]) for name in names},
        "attempt": sa.literal(1),
        "phase": sa.literal(leases.SAMPLING),
        "acquired_at": db_now(),
        "acquired_until": db_now(seconds),
        "revision": sa.literal(0),
    }
    return [
        inserted(t.hpo_trial, {**key, **begun}),
        inserted(t.hpo_lease, {**key, **leased}),
        # The first part makes it one row, the study's.
        _started().where(study.id == given(study.id), held.number >= 0),
    ]


_NEW = Guarded(_numbered(), _taken)
