"""The best trials of studies: by their values, and where in a trial the value comes from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from optuna.study import StudyDirection

from hpo.study import ValueRule
from hpo.trial import TrialState
from storage import tables as t
from storage.curves import steps_of
from storage.exclusions import is_result
from storage.model_rows import models_of
from storage.params import params_of
from storage.records import BestOfStudy, BestTrial, RankedTrial, StudyRecord


def best_trials(
    connection: sa.Connection,
    studies: Sequence[sa.Row[Any]],
    state: TrialState = TrialState.COMPLETE,
) -> dict[int, BestTrial]:
    """Each study's trial of this state with the best finite value; the smaller number of two.

    Of studies with one direction, by Optuna's id; `studies` are rows of hpo_study.
    """
    uuids = {study.study_id: study.uuid for study in studies}
    trials, values, directions = t.trials.c, t.trial_values.c, t.directions.c
    second = t.directions.alias()
    maximize = directions.direction == StudyDirection.MAXIMIZE
    loss = sa.case((maximize, -values.value), else_=values.value)
    place = sa.func.row_number().over(partition_by=trials.study_id, order_by=(loss, trials.number))
    has_second = sa.exists().where(second.c.study_id == trials.study_id, second.c.objective == 1)
    ranked = (
        sa.select(
            trials.study_id, trials.trial_id, trials.number, values.value, place.label("place")
        )
        .join(t.trial_values, values.trial_id == trials.trial_id)
        .join(t.directions, directions.study_id == trials.study_id)
        .where(trials.study_id.in_(list(uuids)), trials.state == state.name, ~has_second)
        .where(values.objective == 0, values.value_type == t.ValueType.FINITE)
        .where(is_result())
        .subquery()
    )
    rows = connection.execute(sa.select(ranked).where(ranked.c.place == 1)).all()
    params = params_of(connection, [row.trial_id for row in rows])
    models = models_of(connection, [(uuids[row.study_id], row.number) for row in rows])
    return {
        row.study_id: BestTrial(
            number=row.number,
            value=row.value,
            params=params[row.trial_id],
            model=models.get((uuids[row.study_id], row.number)),
        )
        for row in rows
    }


def best_of_study(connection: sa.Connection, study: StudyRecord, best: BestTrial) -> BestOfStudy:
    """The best trial of a study with its step, and the best of its pruned trials."""
    own = sa.select(t.hpo_study).where(t.hpo_study.c.uuid == str(study.uuid))
    row = connection.execute(own).one()
    pruned = best_trials(connection, [row], TrialState.PRUNED).get(row.study_id)
    rule = study.definition.value_rule
    return BestOfStudy(
        number=best.number,
        value=best.value,
        params=best.params,
        model=best.model,
        step=_step_of(connection, row.study_id, best, rule),
        value_rule=rule,
        best_pruned=None if pruned is None else _with_last_step(connection, row.study_id, pruned),
    )


def complete_values(
    connection: sa.Connection, study_id: int, n_values: int
) -> dict[tuple[int, int], list[float]]:
    """By Optuna's id and number, the values of the results of a study whose values are finite."""
    trial, value = t.trials.c, t.trial_values.c
    rows = connection.execute(
        sa.select(trial.trial_id, trial.number, value.value)
        .join(t.trial_values, value.trial_id == trial.trial_id)
        .where(trial.study_id == study_id, trial.state == "COMPLETE", is_result())
        .where(value.value_type == t.ValueType.FINITE)
        .order_by(trial.number, value.objective)
    )
    values: dict[tuple[int, int], list[float]] = defaultdict(list)
    for trial_id, number, number_of_value in rows:
        values[trial_id, number].append(number_of_value)
    return {key: found for key, found in values.items() if len(found) == n_values}


def _with_last_step(connection: sa.Connection, study_id: int, trial: BestTrial) -> RankedTrial:
    step = _step_of(connection, study_id, trial, ValueRule.LAST)
    return RankedTrial(number=trial.number, value=trial.value, params=trial.params, step=step)


def _step_of(
    connection: sa.Connection, study_id: int, trial: BestTrial, rule: ValueRule
) -> int | None:
    """The step that reported the value of a trial; None where its objective returned it."""
    trials = t.trials.c
    own = sa.select(trials.trial_id).where(
        trials.study_id == study_id, trials.number == trial.number
    )
    trial_id = connection.execute(own).scalar_one()
    curve = steps_of(connection, [trial_id])[trial_id]
    steps = [step for step, value in curve.items() if value == trial.value]
    return (max if rule is ValueRule.LAST else min)(steps, default=None)
