"""How much each parameter matters for reaching the best trials: Optuna's PED-ANOVA."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass

import numpy as np
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from hpo.errors import TooFewTrials
from hpo.search.quiet import quieten
from hpo.search.sampling import SearchStudy

# The best tenth is set against all; Optuna answers from 2 trials on and advises 50.
MIN_TRIALS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Importances:
    """Shares that add up to 1, the largest first; all 0 when no parameter varied."""

    n_trials: int
    by_parameter: Mapping[str, float]


@np.errstate(all="ignore")
def importances(study: SearchStudy, index: int = 0) -> Importances:
    """Over the COMPLETE trials with finite values, for one of them. Raises TooFewTrials."""
    # It loads scikit-learn and scipy.stats, which is half of what a service loads when it starts.
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    quieten()
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    n_trials = _check_values(study.study_name, complete, index)
    evaluator = PedAnovaImportanceEvaluator()
    sign = -1.0 if study.directions[index] is StudyDirection.MAXIMIZE else 1.0
    found = get_param_importances(
        _Read(study, complete),
        evaluator=evaluator,
        # With a target, the smallest are the best.
        target=lambda trial: sign * trial.values[index],
        normalize=False,
    )
    total = sum(found.values()) or 1.0
    ordered = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    shares = {name: float(importance / total) for name, importance in ordered}
    return Importances(n_trials=n_trials, by_parameter=shares)


class _Read(Study):
    """A study whose complete trials have been read; evaluators ask for them several times."""

    def __init__(self, study: SearchStudy, complete: list[FrozenTrial]) -> None:
        self._directions, self._complete = study.directions, complete

    def get_trials(
        self, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        return self._complete


def _check_values(study_name: str, complete: list[FrozenTrial], index: int) -> int:
    """The number of trials to go by."""
    values = [trial.values[index] for trial in complete if math.isfinite(trial.values[index])]
    if len(values) >= MIN_TRIALS and len(set(values)) > 1:
        return len(values)
    raise TooFewTrials(
        f"Importances need {MIN_TRIALS} completed trials or more, with different values; "
        f"study {study_name!r} has {len(values)} trials with {len(set(values))} values.",
        study=study_name,
        n_trials=len(values),
        needed=MIN_TRIALS,
    )
