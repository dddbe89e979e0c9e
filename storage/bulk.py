"""Many trials written at once into Optuna's tables: a statement a table for each chunk of trials.

Optuna's own `add_trials` takes 52 statements for a trial.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

import sqlalchemy as sa
from optuna.storages._rdb import models

from hpo.numbers import strict
from storage import tables as t
from storage.curves import to_step_columns
from storage.engine import Database
from storage.remarks import CONSTRAINT_PREFIX

T = TypeVar("T")

# So many trials in a transaction: on SQLite others wait for it.
CHUNK = 200
MANY = 1_000

_to_stored = models.TrialValueModel.value_to_stored_repr


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialRows:
    """A trial as Optuna's tables hold it; `params` are rows of trial_params, times naive UTC."""

    number: int
    state: str
    params: Sequence[Mapping[str, Any]] = ()
    values: Sequence[float] = ()
    steps: Mapping[int, float] = field(default_factory=dict)
    user_attrs: Mapping[str, Any] = field(default_factory=dict)
    system_attrs: Mapping[str, Any] = field(default_factory=dict)
    started_at: dt.datetime | None = None
    ended_at: dt.datetime | None = None

    @property
    def is_feasible(self) -> bool | None:
        """Whether no constraint is violated; None when there are none."""
        found = [v for key, v in self.system_attrs.items() if key.startswith(CONSTRAINT_PREFIX)]
        return all(value <= 0 for value in found) if found else None


def chunks(items: Iterable[T], size: int = CHUNK) -> Iterator[list[T]]:
    """The items in lists of this size; the last one may be shorter."""
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk


def note_many(database: Database, n_trials: int) -> None:
    """To be called after the transaction that has written so many trials."""
    if n_trials >= MANY:
        ours = (t.hpo_trial, t.hpo_attempt, t.hpo_verdict)
        database.note_growth((t.trials, *_ROWS, *ours))


def insert_trials(
    connection: sa.Connection, study_id: int, trials: Sequence[TrialRows]
) -> list[int]:
    """Writes a chunk of trials; answers Optuna's ids, in their order."""
    insert = t.trials.insert().returning(t.trials.c.trial_id, sort_by_parameter_order=True)
    heads = [
        {
            "number": trial.number,
            "study_id": study_id,
            "state": trial.state,
            "datetime_start": trial.started_at,
            "datetime_complete": trial.ended_at,
        }
        for trial in trials
    ]
    ids = list(connection.execute(insert, heads).scalars())
    for table, rows_of in _ROWS.items():
        rows = [
            {"trial_id": trial_id, **row}
            for trial_id, trial in zip(ids, trials, strict=True)
            for row in rows_of(trial)
        ]
        if rows:
            connection.execute(table.insert(), rows)
    return ids


def _value_rows(trial: TrialRows) -> Iterator[Mapping[str, Any]]:
    for index, value in enumerate(trial.values):
        stored, kind = _to_stored(value)
        yield {"objective": index, "value": stored, "value_type": kind}


def _step_rows(trial: TrialRows) -> Iterator[Mapping[str, Any]]:
    for step, value in trial.steps.items():
        yield {"step": step, **to_step_columns(value)}


def _attr_rows(attrs: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for key, value in attrs.items():
        yield {"key": key, "value_json": json.dumps(strict(value))}


_ROWS: dict[sa.Table, Callable[[TrialRows], Iterable[Mapping[str, Any]]]] = {
    t.trial_params: lambda trial: trial.params,
    t.trial_values: _value_rows,
    t.trial_steps: _step_rows,
    t.trial_user_attrs: lambda trial: _attr_rows(trial.user_attrs),
    t.trial_system_attrs: lambda trial: _attr_rows(trial.system_attrs),
}
