"""TPE over stored trials draws what Optuna's own draws: same history, same seed, same values."""

from __future__ import annotations

import json
from collections.abc import Container
from typing import Any

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import TPESampler
from optuna.storages import InMemoryStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from hpo.search.quiet import quieten
from hpo.search.stored import StoredTrial
from hpo.search.tpe import TPE

SPACE: dict[str, BaseDistribution] = {
    "rate": FloatDistribution(1e-5, 0.1, log=True),
    "x": FloatDistribution(-5, 5),
    "half": FloatDistribution(0, 2, step=0.5),
    "layers": IntDistribution(1, 9, step=2),
    "kind": CategoricalDistribution(("a", "b", "c")),
}
# Trials of a space that was changed: another range, another parameter, one less.
OTHERS = (
    {**SPACE, "x": FloatDistribution(-9, 9)},
    {**SPACE, "new": FloatDistribution(0, 1)},
    {name: SPACE[name] for name in ("kind", "x")},
)
STATES = [TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL, TrialState.RUNNING]


class Stored(InMemoryStorage):
    """Answers stored trials; those of one space share their distributions, as from a database."""

    def __init__(self) -> None:
        super().__init__()
        self._spaces: dict[str, dict[str, BaseDistribution]] = {}

    def get_all_trials(
        self,
        study_id: int,
        deepcopy: bool = True,
        states: Container[TrialState] | None = None,
    ) -> list[FrozenTrial]:
        return [self._of(trial) for trial in super().get_all_trials(study_id, deepcopy, states)]

    def _of(self, trial: FrozenTrial) -> FrozenTrial:
        space = self._spaces.setdefault(repr(trial.distributions), trial.distributions)
        return StoredTrial(
            number=trial.number,
            state=trial.state,
            value=None,
            values=trial.values,
            datetime_start=trial.datetime_start,
            datetime_complete=trial.datetime_complete,
            params=trial.params,
            distributions=space,
            user_attrs=trial.user_attrs,
            system_attrs=trial.system_attrs,
            intermediate_values=trial.intermediate_values,
            trial_id=trial._trial_id,
        )


@st.composite
def trials(draw: st.DrawFn, n_values: int = 1) -> FrozenTrial:
    # Optuna's TPE takes no PRUNED trial where a study has several values.
    state = draw(st.sampled_from([s for s in STATES if n_values == 1 or s.name != "PRUNED"]))
    space = draw(st.sampled_from([SPACE, SPACE, SPACE, *OTHERS]))
    picks = optuna.samplers.RandomSampler(seed=draw(st.integers(0, 10_000)))
    nothing: Any = None  # it looks at no study and at no trial
    params = {
        name: picks.sample_independent(nothing, nothing, name, kind) for name, kind in space.items()
    }
    attrs: dict[str, Any] = {}
    if draw(st.booleans()):
        attrs["constraints:c"] = draw(st.floats(-1, 1))
    if state is TrialState.RUNNING and draw(st.booleans()):  # drawn, and not handed over yet
        attrs["tpe:relative_params:0"] = json.dumps(params)
        params, space = {}, {}
    values = draw(st.lists(st.floats(-3, 3), min_size=n_values, max_size=n_values))
    steps = draw(st.dictionaries(st.integers(0, 3), st.floats(-3, 3) | st.just(float("nan"))))
    return create_trial(
        state=state,
        values=values if state is TrialState.COMPLETE else None,
        params=params,
        distributions=space,
        system_attrs=attrs,
        intermediate_values=steps,
    )


def drawn(
    storage: InMemoryStorage, history: list[FrozenTrial], sampler: TPESampler, n_values: int
) -> tuple[dict[str, Any], list[Any]]:
    directions = [StudyDirection.MINIMIZE, StudyDirection.MAXIMIZE][:n_values]
    study_id = storage.create_new_study(directions, "s")
    for trial in history:
        storage.create_new_trial(study_id, trial)
    study = optuna.load_study(study_name="s", storage=storage, sampler=sampler)
    trial = storage.get_trial(storage.create_new_trial(study_id))
    space = sampler.infer_relative_search_space(study, trial)
    together = sampler.sample_relative(study, trial, space)
    alone = [sampler.sample_independent(study, trial, *item) for item in SPACE.items()]
    return together, alone


@pytest.mark.parametrize(
    ("n_values", "options"),
    [
        (1, {}),
        (1, {"group": True}),
        (1, {"multivariate": False, "constant_liar": False}),
        (2, {}),
    ],
)
@settings(deadline=None, max_examples=30)
@given(data=st.data(), seed=st.integers(0, 2**31))
def test_it_draws_as_optuna_draws(
    data: st.DataObject, seed: int, n_values: int, options: dict[str, Any]
) -> None:
    quieten()
    history = data.draw(st.lists(trials(n_values), max_size=20))
    options = {"n_startup_trials": 2, **options}
    expected = drawn(InMemoryStorage(), history, TPESampler(seed=seed, **options), n_values)
    assert drawn(Stored(), history, TPE(seed=seed, **options), n_values) == expected
