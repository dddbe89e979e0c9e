"""The end of one trial on request; its study goes on.

A trial that nobody runs ends at once. One that a worker holds is told so at its next report, as
when the whole study is cancelled; the reaper takes it away when it does not report.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from hpo.errors import Conflict, NotFound, TrialFinished
from hpo.events import EventKind
from hpo.trial import Decision, Reason, TrialState, Verdict
from storage import leases
from storage import tables as t
from storage.engine import naive_utc
from storage.events import append

MESSAGE = "Cancelled on request."
FACTS = {"reason": Reason.CANCELLED, "message": MESSAGE}
ORDER = Decision(verdict=Verdict.STOP, reason=Reason.CANCELLED, evidence={"message": MESSAGE})


def order_to_trial(lease: sa.Row[Any]) -> Decision | None:
    """What the holder of a lease is told at its next report, before any pruner is asked."""
    return None if lease.stop_reason is None else ORDER


def cancel(connection: sa.Connection, study: sa.Row[Any], number: int) -> None:
    """Safe to repeat; the caller holds the study's lock.

    Raises NotFound, TrialFinished, or Conflict for a trial of another program.
    """
    row = trial_row(connection, study, number)
    state = TrialState[row.state.name]
    if state.is_finished:
        if row.reason != Reason.CANCELLED:
            message = f"{study.name}/{number} is {state}: {TrialFinished.__doc__}"
            raise TrialFinished(message, study=study.name, number=number)
    elif state is TrialState.WAITING:
        if not _end(connection, row.trial_id, "WAITING"):
            raise Conflict(
                f"Another Optuna program has just taken trial {study.name}/{number}; end it there."
            )
        connection.execute(t.hpo_trial.insert().values(_never_began(study, row, MESSAGE)))
        _announce(connection, study, number, MESSAGE)
    elif row.n_attempts is None:
        message = f"Another Optuna program runs trial {study.name}/{number}; end it there."
        raise Conflict(message, study=study.name, number=number)
    elif not _tell(connection, study, number):
        _drop_sampling(connection, study, number)
        _end(connection, row.trial_id, "RUNNING")
        update = t.hpo_trial.update().where(_mine(t.hpo_trial, study, number))
        connection.execute(update.values(next_attempt_at=None, **FACTS))
        _announce(connection, study, number, MESSAGE)


def cancel_waiting(connection: sa.Connection, study: sa.Row[Any], message: str) -> None:
    """Ends the enqueued trials of a study that will start none any more."""
    trial = t.trials.c
    rows = connection.execute(
        t.trials.update()
        .where(trial.study_id == study.study_id, trial.state == "WAITING")
        .values(state="FAIL", datetime_complete=naive_utc())
        .returning(trial.trial_id, trial.number)
    ).all()
    if rows:
        facts = [_never_began(study, row, message) for row in rows]
        connection.execute(t.hpo_trial.insert(), facts)
    for row in rows:
        _announce(connection, study, row.number, message)


def _announce(connection: sa.Connection, study: sa.Row[Any], number: int, message: str) -> None:
    facts = {"state": TrialState.FAIL, "reason": Reason.CANCELLED, "message": message}
    append(connection, EventKind.TRIAL_ENDED, study, number, **facts, value=None, values=[])


def _never_began(study: sa.Row[Any], row: sa.Row[Any], message: str) -> dict[str, Any]:
    """Our row of a trial that was cancelled while it waited: no part of the budget."""
    return {
        "study_uuid": study.uuid,
        "number": row.number,
        "trial_id": row.trial_id,
        "n_attempts": 0,
        "reason": Reason.CANCELLED,
        "message": message,
        "is_counted": False,
    }


def trial_row(connection: sa.Connection, study: sa.Row[Any], number: int) -> Any:
    """Optuna's row of a trial beside ours, which foreign trials lack. Raises NotFound."""
    trial, ours = t.trials.c, t.hpo_trial.c
    is_ours = sa.and_(ours.study_uuid == study.uuid, ours.number == trial.number)
    row: Any = connection.execute(
        sa.select(trial.trial_id, trial.number, trial.state, ours.n_attempts, ours.reason)
        .select_from(t.trials.outerjoin(t.hpo_trial, is_ours))
        .where(trial.study_id == study.study_id, trial.number == number)
    ).one_or_none()
    if row is None:
        raise NotFound(f"There is no trial {study.name}/{number}.")
    return row


def _tell(connection: sa.Connection, study: sa.Row[Any], number: int) -> bool:
    """Leaves word for the worker that holds the trial; False when none does."""
    running = sa.and_(_mine(t.hpo_lease, study, number), t.hpo_lease.c.phase == leases.RUNNING)
    update = t.hpo_lease.update().where(running).values(stop_reason=Reason.CANCELLED)
    if connection.execute(update).rowcount == 0:
        return False
    told = {"verdict": ORDER.verdict, "reason": ORDER.reason, "evidence": dict(ORDER.evidence)}
    mine = sa.and_(_mine(t.hpo_trial, study, number), t.hpo_trial.c.told.is_(sa.null()))
    connection.execute(t.hpo_trial.update().where(mine).values(told=told))
    return True


def _drop_sampling(connection: sa.Connection, study: sa.Row[Any], number: int) -> None:
    """Its claimant finds the lease gone when it comes to hand the trial over."""
    connection.execute(t.hpo_lease.delete().where(_mine(t.hpo_lease, study, number)))


def _end(connection: sa.Connection, trial_id: int, state: str) -> bool:
    """Writes FAIL if the trial still has this state; Optuna's programs do not ask for our lock."""
    update = (
        t.trials.update()
        .where(t.trials.c.trial_id == trial_id, t.trials.c.state == state)
        .values(state="FAIL", datetime_complete=naive_utc())
    )
    return connection.execute(update).rowcount == 1


def _mine(table: sa.Table, study: sa.Row[Any], number: int) -> sa.ColumnElement[bool]:
    return sa.and_(table.c.study_uuid == study.uuid, table.c.number == number)
