"""Samplers that are made afresh for each trial: they work, and no stream is drawn twice."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import (
    FloatDistribution,
    distribution_to_json,
    json_to_distribution,
)
from optuna.storages import InMemoryStorage

from hpo.choices import to_label
from hpo.conditions import is_active
from hpo.errors import InvalidField, Unavailable
from hpo.search import (
    SAMPLERS,
    Sampled,
    SearchStudy,
    grid_cells,
    make_sampler,
    sample,
    suggest_one,
)
from hpo.search.quiet import quieten
from hpo.search.spaces import distribution_of, values_of
from hpo.space import Categorical, FloatRange, IntRange, Parameter, Space
from hpo.study import Algorithm, Budget, Direction, StudyDefinition

MIXED: Space = {
    "x": FloatRange(low=-5, high=5),
    "rate": FloatRange(low=1e-5, high=0.1, log=True),
    "half": FloatRange(low=0, high=2, step=0.5),
    "layers": IntRange(low=1, high=9, step=2),
    "width": IntRange(low=8, high=512, log=True),
    "kind": Categorical(choices=("adam", "sgd", None, True)),
    "only": IntRange(low=3, high=3),
    "shape": Categorical(choices=([64], [64, 32], {"blocks": 2})),
    "momentum": FloatRange(low=0, high=0.9, when={"kind": ("sgd",)}),
    "depth": IntRange(low=1, high=3, when={"kind": ("sgd", "adam")}),
    "skip": Categorical(choices=(True, False), when={"depth": (2, 3), "kind": ("adam",)}),
}
CELLS: Space = {
    "half": FloatRange(low=0, high=1, step=0.5),
    "layers": IntRange(low=1, high=2),
    "kind": Categorical(choices=("adam", "sgd")),
}


def define(
    sampler: str = "random", *, space: Space | None = MIXED, seed: int = 7, **options: Any
) -> StudyDefinition:
    return StudyDefinition(
        name="s",
        objective="m:f",
        direction=Direction.MINIMIZE,
        budget=Budget(n_trials=50),
        seed=seed,
        space=space,
        sampler=Algorithm(name=sampler, options=options),
    )


class Asked:
    """A study that is asked and told like the service does it, over Optuna's memory storage."""

    def __init__(self, definition: StudyDefinition) -> None:
        self.definition, self.storage = definition, InMemoryStorage()
        direction = optuna.study.StudyDirection[definition.direction.name]
        self.study_id = self.storage.create_new_study([direction], definition.name)

    def study(self) -> SearchStudy:
        return SearchStudy(self.definition, self.storage, self.study_id)

    def create(self, fixed: Mapping[str, Any] | None = None) -> int:
        trial_id = self.storage.create_new_trial(self.study_id)
        if fixed is not None:
            self.storage.set_trial_system_attr(trial_id, "fixed_params", dict(fixed))
        return trial_id

    def ask(self, trial_id: int | None = None) -> tuple[int, Sampled]:
        trial_id = self.create() if trial_id is None else trial_id
        sampled = sample(self.study(), self.storage.get_trial(trial_id))
        for name, drawn in sampled.drawn.items():
            self.storage.set_trial_param(trial_id, name, drawn.internal, drawn.distribution)
        return trial_id, sampled

    def tell(self, trial_id: int, value: float) -> None:
        self.storage.set_trial_state_values(trial_id, optuna.trial.TrialState.COMPLETE, [value])

    def suggest(self, trial_id: int, name: str, parameter: Parameter, sampled: Sampled) -> Any:
        trial = self.storage.get_trial(trial_id)
        drawn = suggest_one(self.study(), trial, name, parameter, sampled.relative)
        if name not in trial.params:
            self.storage.set_trial_param(trial_id, name, drawn.internal, drawn.distribution)
        return drawn.value

    def points(self, n_trials: int) -> list[dict[str, Any]]:
        points = []
        for _ in range(n_trials):
            trial_id, sampled = self.ask()
            self.tell(trial_id, float(sampled.params.get("x") or 0) ** 2)
            points.append(sampled.params)
        return points


@pytest.mark.parametrize(
    ("sampler", "options"),
    [
        ("tpe", {"n_startup_trials": 4}),
        ("tpe", {"n_startup_trials": 4, "group": True}),
        ("tpe", {"n_startup_trials": 4, "multivariate": False, "constant_liar": False}),
        ("random", {}),
        ("cmaes", {"popsize": 4}),
        ("cmaes", {"popsize": 4, "with_margin": True}),
        ("cmaes", {"popsize": 4, "use_separable_cma": True, "consider_pruned_trials": True}),
        ("cmaes", {"popsize": 4, "lr_adapt": True}),
        ("gp", {"n_startup_trials": 4}),
        ("qmc", {}),
        ("qmc", {"scramble": True}),
        ("qmc", {"qmc_type": "halton", "scramble": True}),
        ("nsgaii", {"population_size": 4}),
    ],
)
def test_every_sampler_finishes_a_mixed_space(sampler: str, options: dict[str, Any]) -> None:
    points = Asked(define(sampler, **options)).points(12)
    for point in points:
        present = [name for name in MIXED if is_active(MIXED[name], point)]
        assert list(point) == present
        for name in present:
            distribution = distribution_of(MIXED[name])
            assert distribution._contains(distribution.to_internal_repr(to_label(point[name])))
    # NSGA-II may hand a parent on unchanged; every other sampler finds new points.
    assert len({json.dumps(point) for point in points}) >= (6 if sampler == "nsgaii" else 12)


def test_the_table_has_a_test_of_each_sampler() -> None:
    assert set(SAMPLERS) == {"tpe", "random", "grid", "cmaes", "gp", "qmc", "nsgaii"}


def test_the_draw_depends_on_seed_and_number_and_on_nothing_else() -> None:
    first, again = Asked(define()).points(6), Asked(define()).points(6)
    assert first == again
    assert first != Asked(define(seed=8)).points(6)
    # No parameter's draw repeats over the trials.
    assert all(len({point[name] for point in first}) == 6 for name in ("x", "rate"))


def test_tpe_converges_though_no_sampler_lives_longer_than_a_trial() -> None:
    space = {name: FloatRange(low=-5, high=5) for name in ("x", "y")}

    def losses(sampler: str) -> list[float]:
        asked = Asked(define(sampler, space=space))
        values: list[float] = []
        for _ in range(60):
            trial_id, sampled = asked.ask()
            values.append(sum((drawn.internal**2 for drawn in sampled.drawn.values()), 0.0))
            asked.tell(trial_id, values[-1])
        return values

    assert np.median(losses("tpe")[30:]) < np.median(losses("random")[30:]) / 3


def test_cmaes_hands_its_optimizer_from_trial_to_trial() -> None:
    space = {name: FloatRange(low=-5, high=5) for name in ("x", "y")}
    asked = Asked(define("cmaes", space=space, popsize=4))
    asked.points(16)
    attrs = [t.system_attrs for t in asked.storage.get_all_trials(asked.study_id)]
    assert sum(any(key.startswith("cma:optimizer") for key in each) for each in attrs) >= 2
    assert max(each.get("cma:generation", 0) for each in attrs) >= 2


def test_nsgaii_goes_on_to_further_generations() -> None:
    asked = Asked(define("nsgaii", population_size=4))
    asked.points(14)
    attrs = [t.system_attrs for t in asked.storage.get_all_trials(asked.study_id)]
    assert max(each["NSGAIISampler:generation"] for each in attrs) >= 2


def test_grid_visits_each_cell_once_whatever_is_running() -> None:
    definition = define("grid", space=CELLS)
    assert grid_cells(definition) == 12
    asked = Asked(definition)
    open_trials: list[int] = []
    points = []
    for _ in range(12):
        trial_id, sampled = asked.ask()
        points.append(tuple(sampled.params.values()))
        open_trials.append(trial_id)
        if len(open_trials) == 3:
            asked.tell(open_trials.pop(0), 1.0)
    expected = itertools.product(*(values_of(parameter) for parameter in CELLS.values()))
    assert Counter(points) == Counter(expected)


def test_grid_covers_its_cells_also_after_a_foreign_trial_took_a_number() -> None:
    asked = Asked(define("grid", space=CELLS))
    foreign = asked.create()
    asked.storage.set_trial_state_values(foreign, optuna.trial.TrialState.COMPLETE, [0.0])
    points = asked.points(12)
    assert len({json.dumps(point) for point in points}) == 12


def test_grid_completes_a_trial_that_was_enqueued_in_part() -> None:
    asked = Asked(define("grid", space=CELLS))
    trial_id, sampled = asked.ask(asked.create({"layers": 2}))
    assert sampled.params["layers"] == 2
    assert sampled.params["half"] in (0.0, 0.5, 1.0)
    asked.tell(trial_id, 1.0)


def test_no_grid_no_cap() -> None:
    assert grid_cells(define("tpe")) is None


def test_qmc_fills_the_square_evenly() -> None:
    space = {name: FloatRange(low=0, high=1) for name in ("x", "y")}
    points = Asked(define("qmc", space=space, scramble=True)).points(33)[1:]
    squares = Counter((int(point["x"] * 4), int(point["y"] * 4)) for point in points)
    # The first 32 points of a Sobol sequence: two in each of the 16 squares.
    assert squares == dict.fromkeys(itertools.product(range(4), repeat=2), 2)


@pytest.mark.parametrize("sampler", ["tpe", "random", "cmaes", "nsgaii", "grid"])
def test_enqueued_parameters_are_kept_where_they_fit(sampler: str) -> None:
    asked = Asked(define(sampler, space=CELLS))
    fixed = {"half": 0.5, "layers": 77, "kind": "lion", "unknown": 1}
    params = asked.ask(asked.create(fixed))[1].params
    assert params["half"] == 0.5
    assert params["layers"] in (1, 2)
    assert params["kind"] in ("adam", "sgd")
    assert "unknown" not in params


@pytest.mark.parametrize("sampler", ["tpe", "random", "cmaes", "gp", "qmc", "nsgaii"])
def test_an_objective_may_suggest_by_running(sampler: str) -> None:
    asked = Asked(define(sampler, space=None))
    ask_each = {"x": FloatRange(low=0, high=1), "y": FloatRange(low=0, high=1)}
    values = []
    for _ in range(14):
        trial_id, sampled = asked.ask()
        assert not sampled.drawn
        point = {n: asked.suggest(trial_id, n, p, sampled) for n, p in ask_each.items()}
        assert asked.suggest(trial_id, "x", ask_each["x"], sampled) == point["x"]
        asked.tell(trial_id, point["x"])
        values.append(tuple(point.values()))
    assert len(set(values)) == 14
    # One stream for all parameters would give them the same draw (Sobol itself does so at times).
    assert sum(x == y for x, y in values) < 7


def test_a_sampler_whose_numbers_fail_does_not_stop_the_study(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def diverge(*args: object) -> dict[str, Any]:
        raise ValueError("cannot convert float NaN to integer")

    monkeypatch.setattr(optuna.samplers.CmaEsSampler, "sample_relative", diverge)
    points = Asked(define("cmaes")).points(3)
    assert len({point["x"] for point in points}) == 3
    assert "s/2: CmaEsSampler: cannot convert float NaN to integer; drawn" in caplog.text


def test_an_outage_while_sampling_is_not_taken_for_a_failed_sampler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def away(*args: object) -> dict[str, Any]:
        raise Unavailable()

    monkeypatch.setattr(optuna.samplers.CmaEsSampler, "sample_relative", away)
    with pytest.raises(Unavailable):
        Asked(define("cmaes")).ask()


@pytest.mark.parametrize("same_trial", [True, False])
def test_a_parameter_cannot_change_its_kind_within_a_study(same_trial: bool) -> None:
    asked = Asked(define(space=None))
    trial_id, sampled = asked.ask()
    asked.suggest(trial_id, "x", IntRange(low=0, high=3), sampled)
    if not same_trial:
        trial_id, sampled = asked.ask()
    with pytest.raises(InvalidField, match=r"parameter\.x: was suggested differently"):
        asked.suggest(trial_id, "x", Categorical(choices=("a",)), sampled)


def test_relative_values_reach_the_objective_that_suggests() -> None:
    asked = Asked(define("tpe", space=None, n_startup_trials=2))
    x = FloatRange(low=0, high=1)
    for _ in range(3):
        trial_id, sampled = asked.ask()
        asked.suggest(trial_id, "x", x, sampled)
        asked.tell(trial_id, 0.0)
    trial_id, sampled = asked.ask()
    assert set(sampled.relative) == {"x"}
    assert asked.suggest(trial_id, "x", x, sampled) == sampled.relative["x"]


def test_sampling_again_under_the_same_number_is_possible() -> None:
    """An expired claim is sampled again; attributes of the first time must not be in the way."""
    for name in SAMPLERS:
        asked = Asked(define(name, space=CELLS))
        trial_id = asked.create()
        first = sample(asked.study(), asked.storage.get_trial(trial_id))
        again = sample(asked.study(), asked.storage.get_trial(trial_id))
        assert first.params.keys() == again.params.keys() == CELLS.keys()


def test_hyperband_shows_a_sampler_its_bracket_only() -> None:
    definition = StudyDefinition(
        name="s",
        objective="m:f",
        direction=Direction.MINIMIZE,
        budget=Budget(n_trials=50),
        seed=7,
        space=MIXED,
        pruner=Algorithm(name="hyperband"),
        max_steps=27,
    )
    assert len({json.dumps(point) for point in Asked(definition).points(15)}) == 15


@pytest.mark.parametrize("low", [-9.776262994084508, 9.430086883861499, 8.582782562724177, 0.1])
def test_a_step_from_a_long_number_stays_where_optuna_leaves_it(low: float) -> None:
    """Optuna moves a high that the step misses, and again whenever it reads the distribution."""
    quieten()
    parameter = FloatRange(low=low, high=low + 1.77, step=0.1)
    distribution = distribution_of(parameter)
    assert isinstance(distribution, FloatDistribution)
    assert distribution.high == parameter.effective_high
    assert json_to_distribution(distribution_to_json(distribution)) == distribution
    values = values_of(parameter)
    assert values[0] == low
    assert all(distribution._contains(value) for value in values)  # type: ignore[arg-type]  # floats
    assert values[-1] == pytest.approx(distribution.high)


def test_a_step_counts_in_decimals() -> None:
    assert values_of(FloatRange(low=0, high=0.35, step=0.1)) == [0.0, 0.1, 0.2, 0.3]
    assert values_of(FloatRange(low=0.5, high=0.5)) == [0.5]


def test_a_sampler_is_seeded_for_its_trial_and_parameter() -> None:
    draws: Callable[[int, str | None], float] = lambda number, name: float(  # noqa: E731 -- short
        make_sampler(define("random"), number, name)._rng.rng.uniform()  # type: ignore[attr-defined]  # RandomSampler
    )
    assert len({draws(0, None), draws(1, None), draws(0, "x"), draws(0, "y")}) == 4
    assert draws(3, "x") == draws(3, "x")
