"""How long a study and a trial have run, by the database's clock, and what is left of their time.

A study's time runs from its first claim; it stands still while the study is paused or has ended.
A trial's time is that of its attempts, so what lies between them does not count.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from hpo.study import StudyState
from storage import tables as t
from storage.engine import db_now, seconds_between


def is_over_time() -> sa.ColumnElement[Any]:
    """Whether a row of hpo_study has run for its `timeout_seconds`; null when it has none."""
    return _ran_seconds() >= t.hpo_study.c.timeout_seconds


def goes_on(study_uuid: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """Whether a study is running and has time, so that its trials have nothing to hear from it."""
    study = t.hpo_study.c
    has_time = sa.or_(study.timeout_seconds.is_(None), sa.not_(is_over_time()))
    is_on = sa.and_(study.uuid == study_uuid, study.state == StudyState.RUNNING.value)
    return sa.and_(is_on, has_time)


def timeout_message(study: sa.Row[Any]) -> str:
    return f"The study has run for its timeout_seconds ({study.timeout_seconds:g})."


def stopped_clock() -> dict[str, Any]:
    """Values for hpo_study: its time stands still from now on."""
    return {"ran_seconds": _ran_seconds(), "running_since": None}


def started_clock() -> dict[str, Any]:
    """Values for hpo_study: its time runs, unless it has never started a trial."""
    study = t.hpo_study.c
    return {"running_since": sa.case((study.n_started > 0, db_now()), else_=None)}


def seconds_left(
    connection: sa.Connection, study: sa.Row[Any], number: int, attempt: int
) -> float | None:
    """What the attempts before this one have left of `trial_timeout_seconds`."""
    if study.trial_timeout_seconds is None:
        return None
    earlier = t.hpo_attempt.c
    spent = connection.execute(
        sa.select(sa.func.sum(seconds_between(earlier.started_at, earlier.ended_at))).where(
            earlier.study_uuid == study.uuid, earlier.number == number, earlier.attempt < attempt
        )
    ).scalar_one()
    return max(0.0, float(study.trial_timeout_seconds) - float(spent or 0.0))


def _ran_seconds() -> sa.ColumnElement[Any]:
    study = t.hpo_study.c
    since = seconds_between(study.running_since, db_now())
    return study.ran_seconds + sa.func.coalesce(since, 0.0)
