"""A study at one look: all its trials in columns, and the curves that its pruner compares.

Both answers hold plain numbers by column and are bounded, so that a page shows 10,000 trials at
once without an object for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from hpo.choices import Choice
from hpo.search.percentiles import Thresholds, thresholds
from hpo.study import Direction, StudyDefinition
from hpo.trial import TrialState
from storage import tables as t
from storage.curves import steps_of, thinned
from storage.engine import Database
from storage.exclusions import excluded_ids, is_result
from storage.params import reader_of
from storage.step_history import StepHistory
from storage.studies import Studies, row_and_definition
from storage.trial_order import value_of

ENDED = ("COMPLETE", "PRUNED", "FAIL")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialColumns:
    """Trials by ascending number; every column has an entry for each of them.

    `values` has a column for each direction, `params` one for each name, with None where a trial
    has none. `left_out` are numbers of trials that are no results: excluded, or infeasible.
    """

    directions: Sequence[Direction]
    numbers: Sequence[int]
    states: Sequence[TrialState]
    values: Sequence[Sequence[float | None]]
    params: Mapping[str, Sequence[Choice | None]]
    left_out: Sequence[int]
    next: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """What one trial has reported."""

    number: int
    state: TrialState
    is_best: bool
    reason: str | None
    prune: Mapping[str, Any] | None  # the verdict that ended it, as in a TrialRecord
    steps: Sequence[int]
    values: Sequence[float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Curves:
    """Curves of running trials, of those that started last and of the best, by number.

    `thresholds` are what the pruner compares with; None for pruners that compare otherwise.
    """

    thresholds: Thresholds | None
    trials: Sequence[Curve]


class Overview:
    """Every method raises NotFound."""

    def __init__(self, database: Database, studies: Studies) -> None:
        self._database, self._studies = database, studies
        # Its own, beside the one of the reports: a page must never hold up a verdict.
        self._history = StepHistory(database)

    def columns(self, name: str, *, after: int | None, limit: int) -> TrialColumns:
        """The trials beyond a number, with four statements."""

        def read(connection: sa.Connection) -> TrialColumns:
            study, definition = row_and_definition(connection, name)
            rows = _rows(connection, study, after, limit + 1)
            chosen = rows[:limit]
            ids = [row.trial_id for row in chosen]
            places = dict(zip(ids, range(len(ids)), strict=True))
            span = (
                sa.true()
                if not ids
                else t.trials.c.number.between(chosen[0].number, chosen[-1].number)
            )
            return TrialColumns(
                directions=definition.directions,
                numbers=[row.number for row in chosen],
                states=[TrialState[row.state.name] for row in chosen],
                values=_values(connection, study, len(definition.directions), places, span),
                params=_params(connection, study, definition, places, span),
                left_out=[row.number for row in chosen if not row.is_result],
                next=chosen[-1].number if len(rows) > limit else None,
            )

        return self._database.read(read)

    def curves(self, name: str, *, limit: int, max_points: int) -> Curves:
        """At most `limit` curves of running trials and as many of others, each thinned evenly."""

        def read(connection: sa.Connection) -> Curves:
            study, definition = row_and_definition(connection, name)
            hidden = excluded_ids(connection, study)
            best_number = self._studies.best_number(connection, study)
            rows = [
                row
                for row in _curve_rows(connection, study, best_number, limit)
                if row.trial_id not in hidden
            ]
            steps = steps_of(connection, [row.trial_id for row in rows])
            known = self._history.of(connection, study.uuid)
            return Curves(
                thresholds=thresholds(definition, known, thinned(known.steps, max_points)),
                trials=[
                    _curve(row, steps[row.trial_id], row.number == best_number, max_points)
                    for row in rows
                ],
            )

        return self._database.read(read)


def _rows(
    connection: sa.Connection, study: sa.Row[Any], after: int | None, limit: int
) -> Sequence[sa.Row[Any]]:
    trial = t.trials.c
    select = sa.select(
        trial.trial_id, trial.number, trial.state, is_result().label("is_result")
    ).where(trial.study_id == study.study_id)
    if after is not None:
        select = select.where(trial.number > after)
    return connection.execute(select.order_by(trial.number).limit(limit)).all()


def _values(
    connection: sa.Connection,
    study: sa.Row[Any],
    n_values: int,
    places: Mapping[int, int],
    span: sa.ColumnElement[bool],
) -> list[list[float | None]]:
    columns: list[list[float | None]] = [[None] * len(places) for _ in range(n_values)]
    value, trial = t.trial_values.c, t.trials.c
    rows = connection.execute(
        sa.select(value.trial_id, value.objective, value.value, value.value_type)
        .join(t.trials, trial.trial_id == value.trial_id)
        .where(trial.study_id == study.study_id, span, value.objective < n_values)
    )
    for row in rows.all():
        if row.trial_id in places:
            columns[row.objective][places[row.trial_id]] = value_of(row)
    return columns


def _params(
    connection: sa.Connection,
    study: sa.Row[Any],
    definition: StudyDefinition,
    places: Mapping[int, int],
    span: sa.ColumnElement[bool],
) -> dict[str, list[Choice | None]]:
    columns: dict[str, list[Choice | None]] = {
        name: [None] * len(places) for name in definition.space or ()
    }
    param, trial = t.trial_params.c, t.trials.c
    rows = connection.execute(
        sa.select(param.trial_id, param.param_name, param.param_value, param.distribution_json)
        .join(t.trials, trial.trial_id == param.trial_id)
        .where(trial.study_id == study.study_id, span)
    )
    for trial_id, name, inner, document in rows.all():  # one by one they take twice as long
        place = places.get(trial_id)
        if place is not None:
            if name not in columns:
                columns[name] = [None] * len(places)
            columns[name][place] = reader_of(document)(inner)
    return columns


def _curve_rows(
    connection: sa.Connection, study: sa.Row[Any], best: int | None, limit: int
) -> list[sa.Row[Any]]:
    """Rows by number: the running ones, the last ones that have ended, the best one."""
    trial, ours = t.trials.c, t.hpo_trial.c
    is_ours = sa.and_(ours.study_uuid == study.uuid, ours.number == trial.number)
    select = (
        sa.select(trial.trial_id, trial.number, trial.state, ours.reason, ours.told)
        .select_from(t.trials.outerjoin(t.hpo_trial, is_ours))
        .where(trial.study_id == study.study_id)
        .order_by(trial.number.desc())
    )
    chosen: list[sa.Select[Any]] = [
        select.where(trial.state == "RUNNING").limit(limit),
        select.where(trial.state.in_(ENDED)).limit(limit),
        select.where(trial.number == (-1 if best is None else best)),
    ]
    found: dict[int, sa.Row[Any]] = {
        row.number: row for part in chosen for row in connection.execute(part)
    }
    return [found[number] for number in sorted(found)]


def _curve(row: sa.Row[Any], steps: Mapping[int, float], is_best: bool, max_points: int) -> Curve:
    state = TrialState[row.state.name]
    points = thinned(sorted(steps.items()), max_points)
    return Curve(
        number=row.number,
        state=state,
        is_best=is_best,
        reason=row.reason,
        prune=row.told["evidence"] if row.told and state is TrialState.PRUNED else None,
        steps=[step for step, _ in points],
        values=[value for _, value in points],
    )
