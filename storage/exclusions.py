"""Finished trials that their owner takes out of the results, and takes in again.

An excluded trial stays visible and counted; best, samplers, pruners and analysis leave it out. It
stands in our table, so plain Optuna still sees it. The study's `history_revision` counts the
changes, so that every API process sees one at its next decision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from storage import tables as t
from storage.engine import db_now
from storage.records import Exclusion


def is_excluded() -> sa.ColumnElement[bool]:
    """Whether a row of Optuna's trials is left out of the results of its study.

    Not correlated, so that databases look the excluded ones up once and not for each trial.
    """
    return t.trials.c.trial_id.in_(sa.select(t.hpo_exclusion.c.trial_id))


def is_result() -> sa.ColumnElement[bool]:
    """Whether a row of Optuna's trials may be the best: not excluded, no constraint violated."""
    ours, study = t.hpo_trial.c, t.hpo_study.c
    is_infeasible = sa.exists().where(
        study.study_id == t.trials.c.study_id,
        ours.study_uuid == study.uuid,
        ours.number == t.trials.c.number,
        ours.is_feasible == sa.false(),
    )
    return sa.and_(~is_excluded(), ~is_infeasible)


def excluded_ids(connection: sa.Connection, study: sa.Row[Any]) -> frozenset[int]:
    """Optuna's ids of the excluded trials of a study."""
    excluded = t.hpo_exclusion.c
    select = sa.select(excluded.trial_id).where(excluded.study_uuid == study.uuid)
    return frozenset(connection.execute(select).scalars())


def exclude(connection: sa.Connection, study: sa.Row[Any], trial: Any, reason: str) -> bool:
    """Takes a row of Optuna's trials out; again, it only changes the reason. Whether it changed.

    The caller holds the study's lock.
    """
    mine = _mine(study, trial.number)
    select = sa.select(t.hpo_exclusion.c.reason).where(mine)
    if (known := connection.execute(select).scalar_one_or_none()) is not None:
        connection.execute(t.hpo_exclusion.update().where(mine).values(reason=reason))
        return bool(known != reason)
    connection.execute(
        t.hpo_exclusion.insert().values(
            study_uuid=study.uuid,
            number=trial.number,
            trial_id=trial.trial_id,
            reason=reason,
            excluded_at=db_now(),
        )
    )
    _revise(connection, study)
    return True


def include(connection: sa.Connection, study: sa.Row[Any], number: int) -> bool:
    """Takes a trial in again; whether it was out. The caller holds the study's lock."""
    if not connection.execute(t.hpo_exclusion.delete().where(_mine(study, number))).rowcount:
        return False
    _revise(connection, study)
    return True


def exclusions_of(
    connection: sa.Connection, study: sa.Row[Any], numbers: Sequence[int]
) -> Mapping[int, Exclusion]:
    """By number, those of the trials that are excluded."""
    excluded = t.hpo_exclusion.c
    select = sa.select(t.hpo_exclusion).where(
        excluded.study_uuid == study.uuid, excluded.number.in_(numbers)
    )
    return {
        row.number: Exclusion(reason=row.reason, excluded_at=row.excluded_at)
        for row in connection.execute(select)
    }


def _mine(study: sa.Row[Any], number: int) -> sa.ColumnElement[bool]:
    excluded = t.hpo_exclusion.c
    return sa.and_(excluded.study_uuid == study.uuid, excluded.number == number)


def _revise(connection: sa.Connection, study: sa.Row[Any]) -> None:
    revision = t.hpo_study.c.history_revision
    update = t.hpo_study.update().where(t.hpo_study.c.uuid == study.uuid)
    connection.execute(update.values(history_revision=revision + 1))
