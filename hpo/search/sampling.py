"""Sampling a trial's parameters as `optuna.trial.Trial` does, without writing them.

Whoever claims the trial writes the parameters, guarded by its lease; the samplers themselves may
write attributes (grid cells, CMA-ES optimizers, generations), so one process at a time samples for
a study.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from optuna.distributions import (
    BaseDistribution,
    _get_single_value,
    check_distribution_compatibility,
)
from optuna.pruners import HyperbandPruner
from optuna.samplers import BaseSampler, RandomSampler
from optuna.storages import BaseStorage
from optuna.study import Study, StudyDirection
from optuna.study.study import _ThreadLocalStudyAttribute
from optuna.trial import FrozenTrial, TrialState

from hpo.choices import from_label, to_label
from hpo.conditions import drawing_order, is_active
from hpo.errors import HpoError, InvalidField
from hpo.search.pruners import make_pruner
from hpo.search.samplers import make_sampler
from hpo.search.spaces import distribution_of
from hpo.space import Choice, Parameter
from hpo.study import StudyDefinition

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """One sampled value, as users see it and as Optuna's tables hold it."""

    value: Choice
    internal: float
    distribution: BaseDistribution


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampled:
    """What was drawn for a trial.

    `relative` is what the sampler chose together; an objective that suggests by running gets its
    values from there, so it is kept until the trial ends (see `suggest_one`).
    """

    drawn: Mapping[str, Drawn] = field(default_factory=dict)
    relative: Mapping[str, Any] = field(default_factory=dict)

    @property
    def params(self) -> dict[str, Choice]:
        return {name: drawn.value for name, drawn in self.drawn.items()}


class SearchStudy(Study):
    """Optuna's view of one study, made without asking the storage anything.

    Cheap enough to make for each trial and each report, and never shared between threads.
    """

    def __init__(self, definition: StudyDefinition, storage: BaseStorage, study_id: int) -> None:
        # In place of Study.__init__, which asks the storage for what is known here (Optuna 5.0).
        self.definition = definition
        self.study_name = definition.name
        self._study_id, self._storage = study_id, storage
        self._directions = [StudyDirection[kind.name] for kind in definition.directions]
        self.sampler: BaseSampler = RandomSampler()
        self.pruner = make_pruner(definition)
        self._thread_local = _ThreadLocalStudyAttribute()
        self._stop_flag = False

    def stop(self) -> None:
        """Does nothing: the budget ends a study, not its sampler."""

    def _get_trials(
        self,
        deepcopy: bool = True,
        states: Container[TrialState] | None = None,
        use_cache: bool = False,
    ) -> list[FrozenTrial]:
        # The storage keeps lists by state, so Optuna's cache of one list is only in the way.
        return self._storage.get_all_trials(self._study_id, deepcopy=deepcopy, states=states)


# Values of trials may be huge or infinite; what numpy makes of them, the samplers handle.
@np.errstate(all="ignore")
def sample(study: SearchStudy, trial: FrozenTrial) -> Sampled:
    """Draws the declared parameters of a trial that has none yet, or what can be drawn early.

    Parameters that were enqueued with the trial are kept where they lie inside the space.
    """
    study.sampler = make_sampler(study.definition, trial.number)
    view = _view(study, trial)
    study.sampler.before_trial(view, trial)
    relative = _relative(study.sampler, view, trial)
    current = latest(study, trial)
    drawn: dict[str, Drawn] = {}
    space = study.definition.space or {}
    for name in drawing_order(space):
        if not is_active(space[name], {n: d.value for n, d in drawn.items()}):
            continue
        drawn[name] = _draw(study, current, name, distribution_of(space[name]), relative)
        current.params[name] = to_label(drawn[name].value)
        current.distributions[name] = drawn[name].distribution
    return Sampled(drawn=drawn, relative=relative)


@np.errstate(all="ignore")
def suggest_one(
    study: SearchStudy,
    trial: FrozenTrial,
    name: str,
    parameter: Parameter,
    relative: Mapping[str, Any],
) -> Drawn:
    """The value of one parameter of a running trial; the same one when it is asked for again.

    `relative` is what `sample` answered for this trial. Raises InvalidField when the study has a
    parameter of this name and another kind.
    """
    distribution = distribution_of(parameter)
    view = _view(study, trial)
    for other in (trial, *view._get_trials(deepcopy=False, use_cache=True)):
        if name in other.distributions:
            _check_kind(name, other.distributions[name], distribution)
            break
    if name in trial.distributions:
        return _drawn(trial.distributions[name], trial.params[name])
    study.sampler = make_sampler(study.definition, trial.number, name)
    return _draw(study, latest(study, trial), name, distribution, relative)


def _relative(sampler: BaseSampler, view: Study, trial: FrozenTrial) -> dict[str, Any]:
    """What the sampler chooses together; nothing when its numbers fail, so that the study goes on.

    CMA-ES with lr_adapt in one dimension comes to NaN, for one: without this, every further claim
    would fail.
    """
    try:
        space = sampler.infer_relative_search_space(view, trial)
        return sampler.sample_relative(view, trial, space)
    except (ValueError, ArithmeticError, AssertionError) as error:
        if isinstance(error, HpoError):
            raise
        logger.warning("%s/%d: %s: %s; drawn independently", view.study_name, trial.number,
                       type(sampler).__name__, error)  # fmt: skip
        return {}


def _view(study: SearchStudy, trial: FrozenTrial) -> Study:
    """The trials that the sampler may see: with Hyperband, those of the trial's bracket."""
    pruner = study.pruner
    if not isinstance(pruner, HyperbandPruner):
        return study
    if not pruner._pruners:
        # A stock pruner has no brackets before its first decision; a fresh one makes them here.
        pruner._try_initialization(study)
    return pruner._create_bracket_study(study, pruner._get_bracket_id(study, trial))


def latest(study: Study, trial: FrozenTrial) -> FrozenTrial:
    """A copy of the trial with the attributes that the sampler or pruner has just written."""
    current = copy.copy(trial)
    current.params, current.distributions = dict(trial.params), dict(trial.distributions)
    current.system_attrs = study._storage.get_trial_system_attrs(trial._trial_id)
    return current


def _draw(
    study: SearchStudy,
    trial: FrozenTrial,
    name: str,
    distribution: BaseDistribution,
    relative: Mapping[str, Any],
) -> Drawn:
    enqueued = trial.system_attrs.get("fixed_params", {})
    if _has(enqueued, name, distribution):
        return _drawn(distribution, enqueued[name])
    if distribution.single():
        return _drawn(distribution, _get_single_value(distribution))
    if _has(relative, name, distribution):
        return _drawn(distribution, relative[name])
    value = study.sampler.sample_independent(_view(study, trial), trial, name, distribution)
    return _drawn(distribution, value)


def _drawn(distribution: BaseDistribution, value: Any) -> Drawn:
    internal = float(distribution.to_internal_repr(to_label(value)))
    external: Choice = from_label(distribution.to_external_repr(internal))
    return Drawn(value=external, internal=internal, distribution=distribution)


def _has(values: Mapping[str, Any], name: str, distribution: BaseDistribution) -> bool:
    try:
        return name in values and distribution._contains(
            distribution.to_internal_repr(to_label(values[name]))
        )
    except (ValueError, TypeError):  # a choice that does not exist, or no number at all
        return False


def _check_kind(name: str, stored: BaseDistribution, distribution: BaseDistribution) -> None:
    try:
        check_distribution_compatibility(stored, distribution)
    except ValueError as error:
        raise InvalidField(f"parameter.{name}", f"was suggested differently: {error}") from None
