"""When a study ends: its budget is spent, too much has failed, its time is over, it was stopped.

Called under the lock on Optuna's `studies` row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from hpo.events import EventKind
from hpo.study import StudyState
from hpo.trial import Reason, Verdict
from storage import leases
from storage import tables as t
from storage.cancelling import cancel_waiting
from storage.engine import db_now, naive_utc
from storage.events import append, is_overtaken
from storage.limits import stopped_clock, timeout_message
from storage.studies import study_row

# A study whose first trials have all failed has a fault that more trials do not cure.
FIRST_FAILURES = 5


class _Ended(NamedTuple):
    """A study's own trials that have ended. Those that the study itself cut off did not fail."""

    n_trials: int
    n_failed: int
    n_others: int


def end_if_done(connection: sa.Connection, study: Any) -> StudyState:
    """Writes the end of a study if it has come; answers the state that stands."""
    current = study_row(connection, t.hpo_study.c.uuid == study.uuid)
    assert current is not None, "the caller holds its lock"
    state = StudyState(current.state)
    if state is StudyState.DELETING:
        return state
    if state.is_ended:
        _cancel_unfinished(connection, current)
        return state
    if state is StudyState.STOPPING:
        return _end_if_drained(connection, current)
    if state is StudyState.RUNNING and current.is_over_time:
        return stop_study(connection, current, Reason.TIMED_OUT, timeout_message(current))
    failure = too_much_failed(connection, current)
    if failure is not None:
        return _end(connection, current, StudyState.FAILED, failure)
    ended = _ended(connection, current)
    if current.n_started < current.n_trials or not _all_told(connection, current, ended):
        return state
    if ended.n_failed and not ended.n_others:
        message = f"Every trial failed. The last one: {_last_message(connection, current)}"
        return _end(connection, current, StudyState.FAILED, message)
    return _end(connection, current, StudyState.COMPLETED, _all_ended(current))


def stop_study(
    connection: sa.Connection, study: Any, stop_reason: Reason | None, message: str
) -> StudyState:
    """No trial begins any more; running ones are told to stop if `stop_reason` says why."""
    values = {"state": StudyState.STOPPING, "stop_reason": stop_reason, "reason": message}
    mine = t.hpo_study.c.uuid == study.uuid
    connection.execute(t.hpo_study.update().where(mine).values(values))
    append(connection, EventKind.STUDY_STATE, study, state=StudyState.STOPPING, reason=message)
    return end_if_done(connection, study)


def fail_study(connection: sa.Connection, study: Any, reason: str) -> None:
    """Ends a study that cannot go on, unless it has ended meanwhile."""
    if not end_if_done(connection, study).is_ended:
        _end(connection, study, StudyState.FAILED, reason)


def too_much_failed(connection: sa.Connection, study: Any) -> str | None:
    """Why so many failed trials are too many; None when they are not."""
    ended = _ended(connection, study)
    if study.max_failed_trials is not None:
        limit, cause = study.max_failed_trials, f"max_failed_trials is {study.max_failed_trials}"
    elif not ended.n_others:
        limit, cause = FIRST_FAILURES, "no trial has ended otherwise"
    else:
        return None
    if ended.n_failed < limit:
        return None
    message = _last_message(connection, study)
    return f"{ended.n_failed} trials failed; {cause}. The last one: {message}"


def _all_told(connection: sa.Connection, study: Any, ended: _Ended) -> bool:
    """Whether all trials have ended, before this transaction in the order of events as well.

    Else the end would be told before the last trial's; whoever ended that trial looks again.
    """
    return ended.n_trials >= study.n_started and not is_overtaken(connection, study.uuid)


def _all_ended(study: Any) -> str:
    return f"All {study.n_started} trials have ended."


def _ended(connection: sa.Connection, study: Any) -> _Ended:
    """Counts the study's own trials; foreign ones do not count."""
    trial = t.hpo_trial.c
    was_cut = sa.or_(
        trial.reason == Reason.CANCELLED, trial.told["verdict"].as_string() == Verdict.STOP
    )
    failed = t.trials.c.state == "FAIL"
    n_failed = sa.func.sum(sa.case((sa.and_(failed, was_cut), 0), (failed, 1), else_=0))
    n_others = sa.func.sum(sa.case((failed, 0), else_=1))
    row = connection.execute(
        sa.select(sa.func.count(), n_failed, n_others)
        .select_from(t.trials)
        .join(t.hpo_trial, trial.trial_id == t.trials.c.trial_id)
        .where(trial.study_uuid == study.uuid, t.trials.c.study_id == study.study_id)
        .where(trial.is_counted)
        .where(t.trials.c.state.in_(["COMPLETE", "PRUNED", "FAIL"]))
    ).one()
    return _Ended(*(count or 0 for count in row))


def _last_message(connection: sa.Connection, study: Any) -> str:
    attempt = t.hpo_attempt.c
    message = connection.execute(
        sa.select(attempt.message)
        .where(attempt.study_uuid == study.uuid, attempt.outcome == "failed")
        .order_by(attempt.ended_at.desc())
        .limit(1)
    ).scalar_one_or_none()
    return message or "without a message"


def _end_if_drained(connection: sa.Connection, study: Any) -> StudyState:
    _cancel_unfinished(connection, study)
    if not _all_told(connection, study, _ended(connection, study)):
        return StudyState.STOPPING
    timed_out = study.stop_reason == Reason.TIMED_OUT
    state = StudyState.COMPLETED if timed_out else StudyState.STOPPED
    return _end(connection, study, state, study.reason)


def _cancel_unfinished(connection: sa.Connection, study: Any) -> None:
    """Trials whose next attempt, or whose parameters, will not come end as cancelled."""
    trial, lease = t.hpo_trial.c, t.hpo_lease.c
    awaiting = sa.select(trial.number).where(
        trial.study_uuid == study.uuid, trial.next_attempt_at.is_not(None)
    )
    abandoned = (
        t.hpo_lease.delete()
        .where(lease.study_uuid == study.uuid, lease.phase == leases.SAMPLING)
        .where(lease.acquired_until < db_now())
        .returning(lease.number)
    )
    numbers = [
        *connection.execute(awaiting).scalars(),
        *connection.execute(abandoned).scalars(),
    ]
    _write_cancelled(connection, study, numbers, "The study ended before its next attempt.")


def cut_off(connection: sa.Connection, study: Any, message: str) -> None:
    """Ends all trials that run, at once: their workers learn by a heartbeat and end the children.

    One that is being sampled finds its lease gone when it is to be handed over.
    """
    numbers = take_leases(connection, study)
    attempt = t.hpo_attempt.c
    facts = {"reason": Reason.CANCELLED, "message": message}
    connection.execute(
        t.hpo_attempt.update()
        .where(attempt.study_uuid == study.uuid, attempt.ended_at.is_(None))
        .values(ended_at=db_now(), outcome="stopped", **facts)
    )
    _write_cancelled(connection, study, numbers, message)


def take_leases(connection: sa.Connection, study: Any) -> Sequence[int]:
    """Takes every lease of a study away, so that nobody writes to its trials any more."""
    lease = t.hpo_lease.c
    delete = t.hpo_lease.delete().where(lease.study_uuid == study.uuid)
    return connection.execute(delete.returning(lease.number)).scalars().all()


def _write_cancelled(
    connection: sa.Connection, study: Any, numbers: Sequence[int], message: str
) -> None:
    if not numbers:
        return
    trial = t.hpo_trial.c
    facts = {"reason": Reason.CANCELLED, "message": message}
    ids = connection.execute(
        t.hpo_trial.update()
        .where(trial.study_uuid == study.uuid, trial.number.in_(numbers))
        .values(next_attempt_at=None, **facts)
        .returning(trial.trial_id)
    ).scalars()
    connection.execute(
        t.trials.update()
        .where(t.trials.c.trial_id.in_(ids.all()), t.trials.c.state == "RUNNING")
        .values(state="FAIL", datetime_complete=naive_utc())
    )
    for number in numbers:
        append(connection, EventKind.TRIAL_ENDED, study, number, state="FAIL", **facts)


def _end(connection: sa.Connection, study: Any, state: StudyState, reason: str) -> StudyState:
    values = {"state": state, "reason": reason, "stop_reason": None, "ended_at": db_now()}
    mine = t.hpo_study.c.uuid == study.uuid
    connection.execute(t.hpo_study.update().where(mine).values(**values, **stopped_clock()))
    _cancel_unfinished(connection, study)
    if state is StudyState.STOPPED:  # the others may go on when their budget grows
        cancel_waiting(connection, study, "The study was stopped before the trial began.")
    append(connection, EventKind.STUDY_STATE, study, state=state, reason=reason)
    return state
