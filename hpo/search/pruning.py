"""Whether a running trial is pruned: Optuna's own decision, with the numbers behind it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from optuna.pruners import (
    BasePruner,
    HyperbandPruner,
    MedianPruner,
    PatientPruner,
    PercentilePruner,
    SuccessiveHalvingPruner,
    ThresholdPruner,
    WilcoxonPruner,
)
from optuna.pruners._percentile import (
    _get_best_intermediate_result_over_steps,
    _get_percentile_intermediate_result_over_trials,
)
from optuna.pruners._successive_halving import _get_current_rung
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from hpo.search.quiet import quieten
from hpo.search.sampling import SearchStudy, latest
from hpo.trial import Decision, Verdict

Facts = dict[str, Any]


def decide(study: SearchStudy, trial: FrozenTrial) -> Decision:
    """Asks the study's pruner about a trial after its newest report.

    A pruner may write attributes of the trial (rungs of successive halving and Hyperband). The
    evidence of a pruned trial has plain JSON types; its floats may be non-finite.
    """
    quieten()
    # Percentiles of infinite values: numpy warns of inf - inf and answers NaN, as Optuna expects.
    with np.errstate(all="ignore"):
        if not study.pruner.prune(study, trial):
            return Decision(verdict=Verdict.CONTINUE)
        return Decision(verdict=Verdict.PRUNE, evidence=_evidence(study, trial, study.pruner))


def _evidence(study: Study, trial: FrozenTrial, pruner: BasePruner) -> Facts:
    step = trial.last_step
    assert step is not None, "no pruner prunes a trial without a report"
    name, explain = EXPLANATIONS[type(pruner)]
    value = float(trial.intermediate_values[step])
    return {"pruner": name, "step": step, "value": value, **explain(study, trial, pruner)}


def _percentile(study: Study, trial: FrozenTrial, pruner: Any) -> Facts:
    step = trial.last_step
    assert step is not None
    best = float(_get_best_intermediate_result_over_steps(trial, study.direction))
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    threshold = _get_percentile_intermediate_result_over_trials(
        complete, study.direction, step, pruner._percentile, pruner._n_min_trials
    )
    facts: Facts = {
        "value": best,
        "n_trials": sum(
            not math.isnan(other.intermediate_values.get(step, math.nan)) for other in complete
        ),
    }
    if isinstance(pruner, MedianPruner):
        return {**facts, "median": threshold}
    return {**facts, "percentile_value": threshold, "percentile": float(pruner._percentile)}


def _rung(study: Study, trial: FrozenTrial, pruner: Any) -> Facts:
    # The pruner has just written the rung at which it stopped, but for a NaN, which has none.
    n_rungs = _get_current_rung(latest(study, trial))
    step = trial.last_step
    assert step is not None
    return {"rung": n_rungs if math.isnan(trial.intermediate_values[step]) else n_rungs - 1}


def _bracket(study: Study, trial: FrozenTrial, pruner: Any) -> Facts:
    return {"bracket": pruner._get_bracket_id(study, trial), **_rung(study, trial, pruner)}


def _patience(study: Study, trial: FrozenTrial, pruner: Any) -> Facts:
    facts: Facts = {"patience": pruner._patience, "min_delta": float(pruner._min_delta)}
    if pruner._wrapped_pruner is None:
        return facts
    return {**facts, "wrapped": _evidence(study, trial, pruner._wrapped_pruner)}


def _threshold(study: Study, trial: FrozenTrial, pruner: Any) -> Facts:
    bounds = {"lower": pruner._lower, "upper": pruner._upper}
    return {name: bound for name, bound in bounds.items() if math.isfinite(bound)}


def _wilcoxon(study: Study, trial: FrozenTrial, pruner: Any) -> Facts:
    return {"p_threshold": float(pruner._p_threshold)}


EXPLANATIONS: Mapping[type[BasePruner], tuple[str, Callable[[Study, FrozenTrial, Any], Facts]]] = {
    MedianPruner: ("median", _percentile),
    PercentilePruner: ("percentile", _percentile),
    SuccessiveHalvingPruner: ("successive_halving", _rung),
    HyperbandPruner: ("hyperband", _bracket),
    PatientPruner: ("patient", _patience),
    ThresholdPruner: ("threshold", _threshold),
    WilcoxonPruner: ("wilcoxon", _wilcoxon),
}
