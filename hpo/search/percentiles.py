"""The verdict of MedianPruner and PercentilePruner from arrays, exactly as Optuna 5.0 gives it.

Optuna looks through all complete trials for each report; here their values lie ready by step.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from optuna.pruners import MedianPruner, NopPruner, PercentilePruner
from optuna.pruners._percentile import _is_first_in_interval_step

from hpo.search.pruners import make_pruner
from hpo.study import Direction, StudyDefinition
from hpo.trial import Decision, Verdict

CONTINUE = Decision(verdict=Verdict.CONTINUE)
NONE = array("d")
Curve = Mapping[int, float]


class StepValues:
    """What COMPLETE trials have reported, by step; it only grows."""

    def __init__(self) -> None:
        self.n_trials = 0
        self._by_step: dict[int, array[float]] = {}

    def add(self, curve: Curve) -> None:
        """Takes in a trial that has completed."""
        self.n_trials += 1
        for step, value in curve.items():
            self._by_step.setdefault(step, array("d")).append(value)

    @property
    def steps(self) -> list[int]:
        """Every step that any of them reported, in order."""
        return sorted(self._by_step)

    def at(self, step: int) -> npt.NDArray[np.float64]:
        """The values of all trials that reported this step, NaN among them."""
        # A copy, made by one step of the interpreter: an array cannot grow while numpy looks at its
        # memory, which numpy does without the lock of the interpreter when there is much of it.
        return np.frombuffer(self._by_step.get(step, NONE)[:], dtype=np.float64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Thresholds:
    """What the pruner compares a running trial with at each of `steps`.

    It does so from `first_step` on, once `n_startup_trials` have completed; `n_complete` have.
    """

    pruner: str
    percentile: float
    n_startup_trials: int
    n_complete: int
    first_step: int
    steps: Sequence[int]
    values: Sequence[float]
    n_trials: Sequence[int]


def is_known(definition: StudyDefinition) -> bool:
    """Whether `decide_from` can speak for the study's pruner."""
    return definition.pruner.name in ("none", "median", "percentile")


def decide_from(
    definition: StudyDefinition, curve: Callable[[], Curve], complete: Callable[[], StepValues]
) -> Decision:
    """The verdict on a trial with this curve, its newest report included.

    Neither is asked for where the pruner does not look at it.
    """
    pruner: Any = make_pruner(definition)
    if isinstance(pruner, NopPruner):
        return CONTINUE
    assert isinstance(pruner, PercentilePruner)
    own = curve()
    step = max(own)
    if step < pruner._n_warmup_steps:
        return CONTINUE
    values = complete()
    if values.n_trials < max(1, pruner._n_startup_trials):
        return CONTINUE
    if not _is_first_in_interval_step(
        step, own.keys(), pruner._n_warmup_steps, pruner._interval_steps
    ):
        return CONTINUE
    with np.errstate(all="ignore"):
        return _compare(pruner, definition.direction, own, values.at(step))


def thresholds(
    definition: StudyDefinition, complete: StepValues, steps: Sequence[int]
) -> Thresholds | None:
    """The line that decides at these steps; None for pruners that compare otherwise."""
    pruner: Any = make_pruner(definition)
    if not isinstance(pruner, PercentilePruner):
        return None
    columns = [complete.at(step) for step in steps]
    return Thresholds(
        pruner=definition.pruner.name,
        percentile=float(pruner._percentile),
        n_startup_trials=pruner._n_startup_trials,
        n_complete=complete.n_trials,
        first_step=pruner._n_warmup_steps,
        steps=steps,
        values=[_threshold(pruner, definition.direction, column) for column in columns],
        n_trials=[int(np.count_nonzero(~np.isnan(column))) for column in columns],
    )


def _threshold(
    pruner: PercentilePruner, direction: Direction, others: npt.NDArray[np.float64]
) -> float:
    """NaN where too few trials have reported the step."""
    if len(others) < pruner._n_min_trials:
        return math.nan
    is_maximized = direction is Direction.MAXIMIZE
    with np.errstate(all="ignore"):
        rank = 100 - pruner._percentile if is_maximized else pruner._percentile
        return _nan_percentile(others, rank)


def _compare(
    pruner: PercentilePruner,
    direction: Direction,
    own: Mapping[int, float],
    others: npt.NDArray[np.float64],
) -> Decision:
    is_maximized = direction is Direction.MAXIMIZE
    known = [value for value in own.values() if not math.isnan(value)]
    best = direction.best(known) if known else math.nan
    threshold = _threshold(pruner, direction, others)
    is_worse = best < threshold if is_maximized else best > threshold
    if not (is_worse or math.isnan(best)):
        return CONTINUE
    facts: dict[str, Any] = {
        "pruner": "median" if isinstance(pruner, MedianPruner) else "percentile",
        "step": max(own),
        "value": best,
        "n_trials": int(np.count_nonzero(~np.isnan(others))),
    }
    if isinstance(pruner, MedianPruner):
        facts["median"] = threshold
    else:
        facts |= {"percentile_value": threshold, "percentile": float(pruner._percentile)}
    return Decision(verdict=Verdict.PRUNE, evidence=facts)


def _nan_percentile(values: npt.NDArray[np.float64], rank: float) -> float:
    # As Optuna does it; nanpercentile of nothing but NaN would warn.
    known = values[~np.isnan(values)]
    return float(np.percentile(known, rank)) if len(known) else math.nan
