"""Trials as Optuna sees them, read without the ORM: a statement a table, whatever the number.

The stock storage loads 10,000 trials in 7 to 12 s; a service pays that at every start.
"""

from __future__ import annotations

import datetime as dt
import functools
import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from optuna.distributions import BaseDistribution, json_to_distribution
from optuna.storages._rdb import models
from optuna.trial import FrozenTrial

from storage.tables import (
    trial_params,
    trial_steps,
    trial_system_attrs,
    trial_user_attrs,
    trial_values,
    trials,
)

# Databases take 32,000 bound values and more; a list of ids is found faster than a subquery.
MAX_LISTED = 1000

Rows = Mapping[int, list[Any]]

_to_value = models.TrialValueModel.stored_repr_to_value
_to_step_value = models.TrialIntermediateValueModel.stored_repr_to_intermediate_value


def frozen_trials(connection: sa.Connection, chosen: sa.ColumnElement[bool]) -> list[FrozenTrial]:
    """The trials for which `chosen`, a condition on Optuna's trials table, holds; by trial id."""
    heads = connection.execute(sa.select(trials).where(chosen).order_by(trials.c.trial_id)).all()
    ids: Any = [head.trial_id for head in heads]
    if len(ids) > MAX_LISTED:
        ids = sa.select(trials.c.trial_id).where(chosen)
    # After the heads: a trial that is read as finished has all its rows by then.
    params, values, steps, user_attrs, system_attrs = (
        _by_trial(connection, table, ids)
        for table in (trial_params, trial_values, trial_steps, trial_user_attrs, trial_system_attrs)
    )
    return [
        FrozenTrial(
            number=head.number,
            state=head.state,
            value=None,
            values=_values(values[head.trial_id]),
            datetime_start=_local(head.datetime_start),
            datetime_complete=_local(head.datetime_complete),
            params={row.param_name: _param(row) for row in params[head.trial_id]},
            distributions={
                row.param_name: _distribution(row.distribution_json)
                for row in params[head.trial_id]
            },
            user_attrs=_attrs(user_attrs[head.trial_id]),
            system_attrs=_attrs(system_attrs[head.trial_id]),
            intermediate_values={
                row.step: _to_step_value(row.intermediate_value, row.intermediate_value_type)
                for row in steps[head.trial_id]
            },
            trial_id=head.trial_id,
        )
        for head in heads
    ]


def _by_trial(connection: sa.Connection, table: sa.Table, ids: Any) -> Rows:
    rows: Rows = defaultdict(list)
    order = next(iter(table.primary_key))  # the order in which parameters were suggested
    statement = sa.select(table).where(table.c.trial_id.in_(ids)).order_by(order)
    for row in connection.execute(statement):
        rows[row.trial_id].append(row)
    return rows


# One distribution for all trials of a study saves most of the loading; Optuna never changes one.
@functools.lru_cache(maxsize=4096)
def _distribution(document: str) -> BaseDistribution:
    return json_to_distribution(document)


def _param(row: Any) -> Any:
    return _distribution(row.distribution_json).to_external_repr(row.param_value)


def _values(rows: list[Any]) -> list[float] | None:
    by_objective = {row.objective: _to_value(row.value, row.value_type) for row in rows}
    return [by_objective[objective] for objective in sorted(by_objective)] or None


def _attrs(rows: list[Any]) -> dict[str, Any]:
    return {row.key: json.loads(row.value_json) for row in rows}


def _local(stored: dt.datetime | None) -> dt.datetime | None:
    # Optuna 5 stores naive UTC and answers naive local time; the service has TZ=UTC.
    return (
        None if stored is None else stored.replace(tzinfo=dt.UTC).astimezone().replace(tzinfo=None)
    )
