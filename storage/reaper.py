"""The reaper: finds leases that ran out, trials that others ended, and studies that may end.

It runs inside every API process; each decision is one guarded transaction, so several may run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa

from hpo.errors import HpoError
from hpo.events import EventKind
from hpo.study import StudyState
from hpo.trial import Reason
from storage import leases, requests
from storage import tables as t
from storage.ending import end_if_done
from storage.engine import Database, db_now
from storage.events import append
from storage.limits import is_over_time
from storage.records import Lease, Settled
from storage.settling import Settling
from storage.studies import lock_study

logger = logging.getLogger(__name__)


class Reaper:
    """Looks at the whole database; cheap when there is nothing to do."""

    def __init__(
        self,
        database: Database,
        settling: Settling,
        *,
        lease_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database, self._settling = database, settling
        self._lease_seconds, self._clock = lease_seconds, clock
        self.n_expired = 0  # leases that this process ended because they ran out
        self._told_at: dict[str, float] = {}  # by token, of trials that were told to stop

    def reap(self) -> int:
        """Ends what has run out; answers how many trials changed."""
        try:
            if self._database.write(self._is_quiet):
                return 0
        except sa.exc.IntegrityError:  # another process wrote the first row
            return 0
        n_ended = sum(
            self._end(lease, lambda held: self._settling.expire(held, self._lease_seconds))
            for lease in self._database.read(_expired)
        )
        self.n_expired += n_ended
        n_ended += sum(self._end(lease, self._settling.stop) for lease in self._deaf())
        return n_ended + self._database.write(_sweep)

    def _end(self, lease: Lease, settle: Callable[[Lease], Settled | None]) -> bool:
        label = f"{lease.study_name}/{lease.number}"
        try:
            settled = settle(lease)
        except HpoError as error:  # one that cannot be ended must not keep the others
            logger.warning("reaper: %s: %s", label, error)
            return False
        if settled is None:
            return False
        logger.info("reaper: %s has ended: %s, %s", label, settled.state, settled.reason)
        return True

    def _deaf(self) -> list[Lease]:
        """Trials that were told to stop a lease ago and have not reported since, as they hang.

        Their worker learns by its next heartbeat that the lease is gone, and ends the child.
        """
        told, now = self._database.read(_told_to_stop), self._clock()
        self._told_at = {lease.token: self._told_at.get(lease.token, now) for lease in told}
        return [lease for lease in told if now > self._told_at[lease.token] + self._lease_seconds]

    def _is_quiet(self, connection: sa.Connection) -> bool:
        """Whether workers still have time to renew after a while without any API process."""
        row = t.hpo_reaper
        mine = row.c.id == 1
        was_away = row.c.last_seen_at < db_now(-self._lease_seconds)
        quiet = sa.case((was_away, db_now(self._lease_seconds)), else_=row.c.quiet_until)
        update = row.update().where(mine).values(last_seen_at=db_now(), quiet_until=quiet)
        if connection.execute(update).rowcount == 0:
            values = {"id": 1, "last_seen_at": db_now(), "quiet_until": db_now()}
            connection.execute(row.insert().values(values))
        select = sa.select(sa.func.count()).where(mine, row.c.quiet_until > db_now())
        return bool(connection.execute(select).scalar_one())


def _expired(connection: sa.Connection) -> list[Lease]:
    return _running(connection, t.hpo_lease.c.acquired_until < db_now())


def _told_to_stop(connection: sa.Connection) -> list[Lease]:
    study = t.hpo_study.c
    is_told = sa.and_(study.state == StudyState.STOPPING.value, study.stop_reason.is_not(None))
    return _running(connection, sa.or_(is_told, t.hpo_lease.c.stop_reason.is_not(None)))


def _running(connection: sa.Connection, condition: sa.ColumnElement[bool]) -> list[Lease]:
    select = (
        sa.select(t.hpo_study.c.name, t.hpo_lease.c.number, t.hpo_lease.c.token)
        .join(t.hpo_lease, t.hpo_lease.c.study_uuid == t.hpo_study.c.uuid)
        .where(t.hpo_lease.c.phase == leases.RUNNING, condition)
    )
    return [
        Lease(study_name=row.name, number=row.number, token=row.token)
        for row in connection.execute(select)
    ]


def _sweep(connection: sa.Connection) -> int:
    """Follows what other Optuna programs did: running trials ended."""
    requests.forget_old(connection)
    select = sa.select(t.hpo_study).where(_may_end()).order_by(t.hpo_study.c.id)
    n_ended = 0
    for study in connection.execute(select).all():
        lock_study(connection, study.study_id)
        n_ended += _drop_ended(connection, study)
        end_if_done(connection, study)
    return n_ended


def _may_end() -> sa.ColumnElement[bool]:
    """Studies in which something may be over that no worker will speak of."""
    study = t.hpo_study.c
    lives = study.state.in_([StudyState.RUNNING, StudyState.PAUSED])
    stands = study.state != StudyState.DELETING
    is_spent = study.n_started >= study.n_trials
    mine = t.hpo_trial.c.study_uuid == study.uuid
    is_awaited = sa.exists().where(mine, t.hpo_trial.c.next_attempt_at.is_not(None))
    is_leased = sa.exists().where(t.hpo_lease.c.study_uuid == study.uuid)
    return sa.and_(
        stands,
        sa.or_(
            sa.and_(lives, sa.or_(is_spent, is_over_time(), _has_ended_trial())),
            study.state == StudyState.STOPPING,
            sa.and_(~lives, sa.or_(is_awaited, is_leased)),
        ),
    )


def _ended_but_open(study_uuid: Any) -> Sequence[sa.Select[Any]]:
    """Trials of a study that are not RUNNING, though they have a lease or wait for an attempt.

    From the few that are open: a look costs the same however many trials there are.
    """
    is_ended = t.trials.c.state != "RUNNING"
    lease, trial = t.hpo_lease.c, t.hpo_trial.c
    leased = sa.select(lease.number).join(t.trials, t.trials.c.trial_id == lease.trial_id)
    waiting = sa.select(trial.number).join(t.trials, t.trials.c.trial_id == trial.trial_id)
    return (
        leased.where(lease.study_uuid == study_uuid, is_ended),
        waiting.where(trial.study_uuid == study_uuid, trial.next_attempt_at.is_not(None), is_ended),
    )


def _has_ended_trial() -> sa.ColumnElement[bool]:
    ways = _ended_but_open(t.hpo_study.c.uuid)
    return sa.or_(*(way.correlate(t.hpo_study).exists() for way in ways))


def _drop_ended(connection: sa.Connection, study: sa.Row[Any]) -> int:
    select = sa.union(*_ended_but_open(study.uuid))
    numbers = connection.execute(select).scalars().all()
    if not numbers:
        return 0

    def mine(table: sa.Table) -> sa.ColumnElement[bool]:
        return sa.and_(table.c.study_uuid == study.uuid, table.c.number.in_(numbers))

    facts = {"reason": Reason.CANCELLED, "message": "Another Optuna program ended the trial."}
    connection.execute(t.hpo_lease.delete().where(mine(t.hpo_lease)))
    connection.execute(
        t.hpo_trial.update().where(mine(t.hpo_trial)).values(next_attempt_at=None, **facts)
    )
    connection.execute(
        t.hpo_attempt.update()
        .where(mine(t.hpo_attempt), t.hpo_attempt.c.ended_at.is_(None))
        .values(ended_at=db_now(), outcome="failed", **facts)
    )
    for number in numbers:
        append(connection, EventKind.TRIAL_ENDED, study, number, state=None, **facts)
    return len(numbers)
