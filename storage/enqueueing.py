"""Points to be tried next: WAITING trials that a claim takes before it makes a new one.

They stand in Optuna's tables as its `enqueue_trial` writes them, so they look the same to every
tool. A point counts towards `n_trials` when it is started; until then it holds a place in the
budget, and a study that has no place left refuses it unless it is told to extend itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from hpo.choices import Choice, Label, from_label, to_label
from hpo.errors import Conflict, InvalidFields
from hpo.events import EventKind
from hpo.numbers import strict
from hpo.search.points import point_faults
from hpo.study import StudyState
from hpo.trial import TrialState
from storage import tables as t
from storage.cancelling import trial_row
from storage.engine import Database
from storage.events import append
from storage.lifecycle import amend_study
from storage.params import params_of
from storage.requests import Answer, once
from storage.studies import definition_of, locked_study, study_row

# Optuna's own key for the parameters that a trial was enqueued with.
FIXED_PARAMS_KEY = "fixed_params"
MAX_TRIALS = 2**31 - 1
OPEN = (StudyState.RUNNING, StudyState.PAUSED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """Parameters to be tried; those that are left out are sampled."""

    params: Mapping[str, Choice]
    user_attrs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """How points are asked for: under which idempotency key, and whether `n_trials` may grow."""

    key: str | None = None
    fingerprint: str = ""
    extend: bool = False


class Enqueueing:
    """Adds trials that wait to be claimed. Answers their numbers, in order."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def enqueue(self, study_name: str, points: Sequence[Point], request: Request) -> list[int]:
        """Raises NotFound, InvalidFields for values that the space has not, or Conflict."""

        def transaction(connection: sa.Connection) -> Answer:
            def make() -> Answer:
                study = locked_study(connection, study_name)
                return {"numbers": enqueue_points(connection, study, points, extend=request.extend)}

            return once(connection, request.key, "enqueue", request.fingerprint, make)

        return list(self._database.write(transaction)["numbers"])

    def requeue(self, study_name: str, number: int, request: Request) -> int:
        """A new trial with the parameters of one that has ended. Raises NotFound or Conflict."""

        def transaction(connection: sa.Connection) -> Answer:
            def make() -> Answer:
                study = locked_study(connection, study_name)
                point = Point(params=_params_to_repeat(connection, study, number))
                numbers = enqueue_points(connection, study, [point], extend=request.extend)
                return {"numbers": numbers}

            return once(connection, request.key, "requeue", request.fingerprint, make)

        return int(self._database.write(transaction)["numbers"][0])


def fixed_params_of(
    connection: sa.Connection, trial_ids: Sequence[int]
) -> dict[int, dict[str, Any]]:
    """What trials were enqueued with, by Optuna's id; those that were not are missing."""
    attr = t.trial_system_attrs.c
    select = sa.select(attr.trial_id, attr.value_json).where(
        attr.trial_id.in_(trial_ids), attr.key == FIXED_PARAMS_KEY
    )
    return {
        row.trial_id: {
            name: from_label(stored) for name, stored in json.loads(row.value_json).items()
        }
        for row in connection.execute(select)
    }


def _labels(params: Mapping[str, Choice]) -> dict[str, Label]:
    return {name: to_label(value) for name, value in params.items()}


def enqueue_points(
    connection: sa.Connection, study: sa.Row[Any], points: Sequence[Point], *, extend: bool
) -> list[int]:
    """Has points of a study tried, under its lock. Raises InvalidFields or Conflict."""
    _check(study, points)
    _make_room(connection, study, len(points), extend=extend)
    numbers = _insert(connection, study, points)
    for number, point in zip(numbers, points, strict=True):
        append(connection, EventKind.TRIAL_ENQUEUED, study, number, params=dict(point.params))
    return numbers


def _check(study: sa.Row[Any], points: Sequence[Point]) -> None:
    space = definition_of(study).space
    faults = [
        (f"points.{index}.params.{name}", message)
        for index, point in enumerate(points)
        for name, message in point_faults(space, point.params)
    ]
    if faults:
        raise InvalidFields(faults)


def _make_room(
    connection: sa.Connection, study: sa.Row[Any], n_points: int, *, extend: bool
) -> None:
    """Raises Conflict when the budget has no place for so many points, or the study has ended."""
    needed = study.n_started + _n_waiting(connection, study) + n_points
    if needed > MAX_TRIALS:
        raise Conflict(f"A study has {MAX_TRIALS} trials at most; clone it to try more.")
    if extend and needed > study.n_trials and study.state != StudyState.STOPPED:
        amend_study(connection, study, {"n_trials": needed})
    current = study_row(connection, t.hpo_study.c.uuid == study.uuid)
    assert current is not None, "its lock is held"
    facts = {"study": study.name, "state": current.state, "needed_n_trials": needed}
    if current.state not in OPEN and (needed <= current.n_trials or extend):
        raise Conflict(
            f"Study {study.name!r} is {current.state} and starts no trials: {current.reason}",
            **facts,
        )
    if needed > current.n_trials:
        raise Conflict(
            f"Study {study.name!r} has no room for {n_points} more among its "
            f"{current.n_trials} trials; raise n_trials to {needed}, or send extend: true.",
            **facts,
        )


def _n_waiting(connection: sa.Connection, study: sa.Row[Any]) -> int:
    trial = t.trials.c
    waiting = sa.and_(trial.study_id == study.study_id, trial.state == "WAITING")
    return int(connection.execute(sa.select(sa.func.count()).where(waiting)).scalar_one())


def _insert(connection: sa.Connection, study: sa.Row[Any], points: Sequence[Point]) -> list[int]:
    if not points:  # a warm start may find none
        return []
    trial = t.trials.c
    last = sa.select(sa.func.max(trial.number)).where(trial.study_id == study.study_id)
    highest = connection.execute(last).scalar_one()
    first = 0 if highest is None else highest + 1
    numbers = list(range(first, first + len(points)))
    insert = t.trials.insert().returning(trial.trial_id, sort_by_parameter_order=True)
    rows = [{"number": n, "study_id": study.study_id, "state": "WAITING"} for n in numbers]
    ids = connection.execute(insert, rows).scalars().all()
    fixed = [
        {"trial_id": trial_id, "key": FIXED_PARAMS_KEY, "value_json": _json(_labels(point.params))}
        for trial_id, point in zip(ids, points, strict=True)
    ]
    connection.execute(t.trial_system_attrs.insert(), fixed)
    attrs = [
        {"trial_id": trial_id, "key": key, "value_json": _json(value)}
        for trial_id, point in zip(ids, points, strict=True)
        for key, value in point.user_attrs.items()
    ]
    if attrs:
        connection.execute(t.trial_user_attrs.insert(), attrs)
    return numbers


def _json(value: Any) -> str:
    return json.dumps(strict(dict(value) if isinstance(value, Mapping) else value))


def _params_to_repeat(
    connection: sa.Connection, study: sa.Row[Any], number: int
) -> Mapping[str, Choice]:
    row, label = trial_row(connection, study, number), f"{study.name}/{number}"
    state = TrialState[row.state.name]
    if not state.is_finished:
        raise Conflict(f"Trial {label} is {state}; it can be requeued when it has ended.")
    ids = [row.trial_id]
    params = params_of(connection, ids)[row.trial_id] or fixed_params_of(connection, ids).get(
        row.trial_id, {}
    )
    if not params:
        raise Conflict(f"Trial {label} ended before it had parameters; there is nothing to repeat.")
    return params
