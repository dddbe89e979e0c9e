"""Curves: what trials reported, from Optuna's table and with our facts about each step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from storage import tables as t

_VALUES = {
    t.StepType.NAN: math.nan,
    t.StepType.INF_POS: math.inf,
    t.StepType.INF_NEG: -math.inf,
}


def to_step_columns(value: float) -> dict[str, Any]:
    """A value as Optuna stores it: a number, or its kind."""
    if math.isfinite(value):
        return {"intermediate_value": value, "intermediate_value_type": t.StepType.FINITE}
    kind = next(kind for kind, number in _VALUES.items() if repr(number) == repr(value))
    return {"intermediate_value": None, "intermediate_value_type": kind}


def steps_of(connection: sa.Connection, trial_ids: Sequence[int]) -> dict[int, dict[int, float]]:
    """Each trial's values by step."""
    found: dict[int, dict[int, float]] = {trial_id: {} for trial_id in trial_ids}
    step = t.trial_steps.c
    rows = connection.execute(
        sa.select(
            step.trial_id, step.step, step.intermediate_value, step.intermediate_value_type
        ).where(step.trial_id.in_(trial_ids))
    )
    for row in rows:
        found[row.trial_id][row.step] = value_of(row)
    return found


def value_of(row: Any) -> float:
    """The value that a row of Optuna's table stands for."""
    value: float = _VALUES.get(row.intermediate_value_type, row.intermediate_value)
    return value
