"""The best trials of studies: by their values, and where in a trial the value comes from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TypeAlias

import sqlalchemy as sa

from hpo.study import ValueRule
from hpo.trial import TrialState
from storage import tables as t
from storage.curves import steps_of
from storage.exclusions import is_result
from storage.model_rows import models_of
from storage.records import BestOfStudy, BestTrial, RankedTrial
from storage.standings import RANKED, Ranked, Standing

Curves: TypeAlias = Mapping[int, Mapping[int, float]]  # by Optuna's id and step


def best_trials(
    connection: sa.Connection, standings: Mapping[str, Standing]
) -> dict[str, BestTrial]:
    """By UUID, the best trials of studies, with the models that are stored of them."""
    best = {
        uuid: standing.best[TrialState.COMPLETE]
        for uuid, standing in standings.items()
        if TrialState.COMPLETE in standing.best
    }
    models = models_of(connection, [(uuid, trial.number) for uuid, trial in best.items()])
    return {
        uuid: BestTrial(
            number=trial.number,
            value=trial.value,
            params=trial.params,
            model=models.get((uuid, trial.number)),
        )
        for uuid, trial in best.items()
    }


def best_of_study(
    connection: sa.Connection, uuid: str, standing: Standing, rule: ValueRule
) -> BestOfStudy | None:
    """The best trial of a study with its step, and the best of its pruned trials."""
    best = best_trials(connection, {uuid: standing}).get(uuid)
    if best is None:
        return None
    curves = steps_of(connection, [trial.trial_id for trial in standing.best.values()])
    complete, pruned = (standing.best.get(state) for state in RANKED)
    assert complete is not None, "it has been found above"
    return BestOfStudy(
        number=best.number,
        value=best.value,
        params=best.params,
        model=best.model,
        step=_step_of(complete, curves, rule),
        value_rule=rule,
        best_pruned=None if pruned is None else _with_last_step(pruned, curves),
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


def _with_last_step(trial: Ranked, curves: Curves) -> RankedTrial:
    step = _step_of(trial, curves, ValueRule.LAST)
    return RankedTrial(number=trial.number, value=trial.value, params=trial.params, step=step)


def _step_of(trial: Ranked, curves: Curves, rule: ValueRule) -> int | None:
    """The step that reported the value of a trial; None where its objective returned it."""
    steps = [step for step, value in curves[trial.trial_id].items() if value == trial.value]
    return (max if rule is ValueRule.LAST else min)(steps, default=None)
