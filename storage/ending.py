"""When a study ends: its budget is spent and nothing is open, or too much has failed.

Called under the lock on Optuna's `studies` row.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import sqlalchemy as sa

from hpo.study import StudyState
from hpo.trial import Reason, TrialState
from storage import tables as t
from storage.engine import db_now, naive_utc

# A study whose first trials have all failed has a fault that more trials do not cure.
FIRST_FAILURES = 5


def end_if_done(connection: sa.Connection, study: Any) -> StudyState:
    """Writes the end of a running study if it has come; answers the state that stands."""
    current = connection.execute(
        sa.select(t.hpo_study).where(t.hpo_study.c.uuid == study.uuid)
    ).one()
    if current.state != StudyState.RUNNING:
        return StudyState(current.state)
    ended = _ended(connection, current)
    failure = _too_much_failed(connection, current, ended)
    if failure is not None:
        _cancel_awaiting(connection, current)
        return _end(connection, current, StudyState.FAILED, failure)
    if current.n_started >= current.n_trials and sum(ended.values()) >= current.n_started:
        return _end(connection, current, StudyState.COMPLETED, None)
    return StudyState.RUNNING


def fail_study(connection: sa.Connection, study: Any, reason: str) -> None:
    """Ends a study that cannot go on."""
    _cancel_awaiting(connection, study)
    _end(connection, study, StudyState.FAILED, reason)


def _ended(connection: sa.Connection, study: Any) -> Counter[TrialState]:
    """The study's own trials that have ended, by state; foreign ones do not count."""
    rows = connection.execute(
        sa.select(t.trials.c.state, sa.func.count())
        .join(t.hpo_trial, t.hpo_trial.c.trial_id == t.trials.c.trial_id)
        .where(t.hpo_trial.c.study_uuid == study.uuid, t.trials.c.study_id == study.study_id)
        .where(t.trials.c.state.in_(["COMPLETE", "PRUNED", "FAIL"]))
        .group_by(t.trials.c.state)
    )
    return Counter({TrialState[state.name]: n_trials for state, n_trials in rows})


def _too_much_failed(
    connection: sa.Connection, study: Any, ended: Counter[TrialState]
) -> str | None:
    n_failed = ended[TrialState.FAIL]
    if study.max_failed_trials is not None:
        limit, cause = study.max_failed_trials, f"max_failed_trials is {study.max_failed_trials}"
    elif n_failed == sum(ended.values()):
        limit, cause = FIRST_FAILURES, "no trial has ended otherwise"
    else:
        return None
    if n_failed < limit:
        return None
    return f"{n_failed} trials failed; {cause}. The last one: {_last_message(connection, study)}"


def _last_message(connection: sa.Connection, study: Any) -> str:
    attempt = t.hpo_attempt.c
    message = connection.execute(
        sa.select(attempt.message)
        .where(attempt.study_uuid == study.uuid, attempt.outcome == "failed")
        .order_by(attempt.ended_at.desc())
        .limit(1)
    ).scalar_one_or_none()
    return message or "without a message"


def _cancel_awaiting(connection: sa.Connection, study: Any) -> None:
    """Trials that wait for an attempt which will not come end as cancelled."""
    trial = t.hpo_trial.c
    awaiting = sa.and_(trial.study_uuid == study.uuid, trial.next_attempt_at.is_not(None))
    ids = connection.execute(sa.select(trial.trial_id).where(awaiting)).scalars().all()
    if not ids:
        return
    connection.execute(
        t.hpo_trial.update()
        .where(awaiting)
        .values(next_attempt_at=None, reason=Reason.CANCELLED, message="The study has ended.")
    )
    connection.execute(
        t.trials.update()
        .where(t.trials.c.trial_id.in_(ids), t.trials.c.state == "RUNNING")
        .values(state="FAIL", datetime_complete=naive_utc())
    )


def _end(
    connection: sa.Connection, study: Any, state: StudyState, reason: str | None
) -> StudyState:
    connection.execute(
        t.hpo_study.update()
        .where(t.hpo_study.c.uuid == study.uuid)
        .values(state=state.value, reason=reason, ended_at=db_now())
    )
    return state
