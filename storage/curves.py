"""Curves: what trials reported, from Optuna's table and with our facts about each step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

import sqlalchemy as sa

from storage import tables as t

_NO_NUMBERS = (t.StepType.NAN, t.StepType.INF_POS, t.StepType.INF_NEG)
T = TypeVar("T")

_VALUES = {
    t.StepType.NAN.name: math.nan,
    t.StepType.INF_POS.name: math.inf,
    t.StepType.INF_NEG.name: -math.inf,
}


def to_step_columns(value: float) -> dict[str, Any]:
    """A value as Optuna stores it: a number, or its kind."""
    if math.isfinite(value):
        return {"intermediate_value": value, "intermediate_value_type": t.StepType.FINITE}
    kind = next(kind for kind in _NO_NUMBERS if repr(_VALUES[kind.name]) == repr(value))
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
    for trial_id, number, value, kind in rows:
        found[trial_id][number] = value_of(kind.name, value)
    return found


def value_of(kind: str, value: float | None) -> float:
    """What Optuna stores as a number, or by the name of its kind."""
    return _VALUES.get(kind, math.nan if value is None else value)


def thinned(found: Sequence[T], limit: int) -> list[T]:
    """All of it, or so many spread evenly over it, with both ends."""
    if len(found) <= limit:
        return list(found)
    last = len(found) - 1
    return [found[round(index * last / (limit - 1))] for index in range(limit)]
