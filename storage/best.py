"""The best trials of studies: by their values, and where in a trial the value comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import sqlalchemy as sa
from optuna.study import StudyDirection

from hpo.study import ValueRule
from hpo.trial import TrialState
from storage import tables as t
from storage.curves import steps_of
from storage.params import params_of
from storage.records import BestOfStudy, BestTrial, RankedTrial, StudyRecord


def best_trials(
    connection: sa.Connection,
    study_ids: Sequence[int],
    state: TrialState = TrialState.COMPLETE,
) -> dict[int, BestTrial]:
    """Each study's trial of this state with the best finite value; the smaller number of two."""
    trials, values, directions = t.trials.c, t.trial_values.c, t.directions.c
    maximize = directions.direction == StudyDirection.MAXIMIZE
    loss = sa.case((maximize, -values.value), else_=values.value)
    place = sa.func.row_number().over(partition_by=trials.study_id, order_by=(loss, trials.number))
    ranked = (
        sa.select(
            trials.study_id, trials.trial_id, trials.number, values.value, place.label("place")
        )
        .join(t.trial_values, values.trial_id == trials.trial_id)
        .join(t.directions, directions.study_id == trials.study_id)
        .where(trials.study_id.in_(study_ids), trials.state == state.name)
        .where(values.objective == 0, values.value_type == t.ValueType.FINITE)
        .subquery()
    )
    rows = connection.execute(sa.select(ranked).where(ranked.c.place == 1)).all()
    params = params_of(connection, [row.trial_id for row in rows])
    return {
        row.study_id: BestTrial(number=row.number, value=row.value, params=params[row.trial_id])
        for row in rows
    }


def best_of_study(connection: sa.Connection, study: StudyRecord, best: BestTrial) -> BestOfStudy:
    """The best trial of a study with its step, and the best of its pruned trials."""
    own = t.hpo_study.c.uuid == str(study.uuid)
    study_id = connection.execute(sa.select(t.hpo_study.c.study_id).where(own)).scalar_one()
    pruned = best_trials(connection, [study_id], TrialState.PRUNED).get(study_id)
    rule = study.definition.value_rule
    return BestOfStudy(
        **asdict(_with_step(connection, study_id, best, rule)),
        value_rule=rule,
        best_pruned=None
        if pruned is None
        else _with_step(connection, study_id, pruned, ValueRule.LAST),
    )


def _with_step(
    connection: sa.Connection, study_id: int, trial: BestTrial, rule: ValueRule
) -> RankedTrial:
    trials = t.trials.c
    own = sa.select(trials.trial_id).where(
        trials.study_id == study_id, trials.number == trial.number
    )
    trial_id = connection.execute(own).scalar_one()
    curve = steps_of(connection, [trial_id])[trial_id]
    steps = [step for step, value in curve.items() if value == trial.value]
    step = (max if rule is ValueRule.LAST else min)(steps, default=None)
    return RankedTrial(number=trial.number, value=trial.value, params=trial.params, step=step)
