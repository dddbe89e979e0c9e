"""Parameters of trials in Optuna's rows: numbers inside, values outside."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import sqlalchemy as sa
from optuna.distributions import BaseDistribution, CategoricalDistribution, json_to_distribution

from hpo.choices import Choice, from_label
from storage import tables as t


@functools.lru_cache(maxsize=4096)
def distribution(document: str) -> BaseDistribution:
    """Studies repeat few distributions over many trials; reading one costs 20 us."""
    return json_to_distribution(document)


@functools.lru_cache(maxsize=4096)
def reader_of(document: str) -> Callable[[float], Choice]:
    """A function from what Optuna stores of this distribution to the value."""
    found = distribution(document)
    if isinstance(found, CategoricalDistribution):
        return lambda stored: cast(Choice, from_label(found.to_external_repr(stored)))
    return cast(Callable[[float], Choice], found.to_external_repr)


def params_of(connection: sa.Connection, trial_ids: Sequence[int]) -> dict[int, dict[str, Choice]]:
    """The parameters of each trial in the order in which they were drawn."""
    found: dict[int, dict[str, Any]] = {trial_id: {} for trial_id in trial_ids}
    if not trial_ids:
        return found
    param = t.trial_params.c
    rows = connection.execute(
        sa.select(param.trial_id, param.param_name, param.param_value, param.distribution_json)
        .where(param.trial_id.in_(trial_ids))
        .order_by(param.param_id)
    )
    for trial_id, name, value, document in rows:
        found[trial_id][name] = reader_of(document)(value)
    return found
