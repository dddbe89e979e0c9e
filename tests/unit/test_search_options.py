"""Names and options of samplers and pruners: all faults at once, each with its field and cure."""

from __future__ import annotations

import importlib.util
import inspect
import warnings
from typing import Any

import optuna
import pytest

from hpo.search import PRUNERS, SAMPLERS, check_algorithms, grid_cells
from hpo.search.options import Option, boolean, choice, integer, known, number
from hpo.search.samplers import MAX_GRID_CELLS
from hpo.space import Categorical, FloatRange, IntRange, Space
from hpo.study import Algorithm, Budget, Direction, StudyDefinition

RANGES: Space = {"x": FloatRange(low=0, high=1), "n": IntRange(low=1, high=4)}


def define(
    sampler: dict[str, Any] | str = "tpe",
    pruner: dict[str, Any] | str = "median",
    *,
    space: Space | None = RANGES,
    max_steps: int | None = None,
) -> StudyDefinition:
    def algorithm(given: dict[str, Any] | str) -> Algorithm:
        fields = {"name": given} if isinstance(given, str) else dict(given)
        return Algorithm(name=fields.pop("name"), options=fields)

    return StudyDefinition(
        name="s",
        objective="m:f",
        direction=Direction.MINIMIZE,
        budget=Budget(n_trials=50),
        seed=7,
        space=space,
        sampler=algorithm(sampler),
        pruner=algorithm(pruner),
        max_steps=max_steps,
    )


def faults(*args: Any, **kwargs: Any) -> dict[str, str]:
    return {fault.field: fault.message for fault in check_algorithms(define(*args, **kwargs))}


def test_names_that_are_not_known_get_the_known_ones() -> None:
    found = faults("tpee", "medain")
    assert found == {
        "sampler": "unknown 'tpee'; known: tpe, random, grid, cmaes, gp, qmc, nsgaii; "
        "did you mean 'tpe'?",
        "pruner": "unknown 'medain'; known: median, percentile, successive_halving, hyperband, "
        "patient, threshold, wilcoxon, none; did you mean 'median'?",
    }


def test_every_fault_is_named_at_once() -> None:
    found = faults(
        {"name": "tpe", "n_startup_trials": -1, "group": "yes", "startup": 3, "seed": 4},
        {"name": "median", "n_startup": 2, "interval_steps": 0, "n_warmup_steps": True},
    )
    assert set(found) == {
        "sampler.n_startup_trials",
        "sampler.group",
        "sampler.startup",
        "sampler.seed",
        "pruner.n_startup",
        "pruner.interval_steps",
        "pruner.n_warmup_steps",
    }
    assert found["sampler.n_startup_trials"] == "must be a whole number of 0 or more, got -1"
    assert found["sampler.seed"] == "is no option; the study's own seed is used"
    assert found["pruner.n_startup"] == (
        "unknown option; known: n_startup_trials, n_warmup_steps, interval_steps, n_min_trials; "
        "did you mean 'n_startup_trials'?"
    )


@pytest.mark.parametrize(
    ("sampler", "field"),
    [
        ({"name": "tpe", "multivariate": False, "group": True}, "sampler"),
        ({"name": "cmaes", "lr_adapt": True, "with_margin": True}, "sampler"),
        ({"name": "cmaes", "popsize": 1}, "sampler.popsize"),
        ({"name": "qmc", "qmc_type": "lhs"}, "sampler.qmc_type"),
        ({"name": "nsgaii", "mutation_prob": 1.5}, "sampler.mutation_prob"),
        ({"name": "nsgaii", "population_size": 10**9}, "sampler.population_size"),
        ({"name": "random", "n_startup_trials": 3}, "sampler.n_startup_trials"),
        ({"name": "gp", "n_startup_trials": 2.0}, "sampler.n_startup_trials"),
        ({"name": "tpe", "gamma": 3}, "sampler.gamma"),
    ],
)
def test_sampler_options_that_cannot_be(sampler: dict[str, Any], field: str) -> None:
    assert set(faults(sampler)) == {field}


@pytest.mark.parametrize(
    ("pruner", "field"),
    [
        ("percentile", "pruner.percentile"),
        ({"name": "percentile", "percentile": 101}, "pruner.percentile"),
        ({"name": "percentile", "percentile": float("nan")}, "pruner.percentile"),
        ("threshold", "pruner.lower"),
        ({"name": "threshold", "lower": 2, "upper": 1}, "pruner.lower"),
        ("patient", "pruner.patience"),
        ({"name": "patient", "patience": 2, "wrapped": 3}, "pruner.wrapped"),
        ({"name": "patient", "patience": 2, "wrapped": "medain"}, "pruner.wrapped"),
        ({"name": "patient", "patience": 2, "wrapped": {}}, "pruner.wrapped"),
        ({"name": "patient", "patience": 2, "wrapped": "none"}, "pruner.wrapped"),
        (
            {"name": "patient", "patience": 2, "wrapped": {"name": "patient", "patience": 1}},
            "pruner.wrapped",
        ),
        (
            {"name": "patient", "patience": 2, "wrapped": {"name": "median", "n": 1}},
            "pruner.wrapped.n",
        ),
        ({"name": "hyperband", "min_resource": 9, "max_resource": 3}, "pruner.min_resource"),
        ({"name": "hyperband", "max_resource": "some"}, "pruner.max_resource"),
        ({"name": "hyperband", "bootstrap_count": 2}, "pruner"),
        ({"name": "successive_halving", "reduction_factor": 1}, "pruner.reduction_factor"),
        ({"name": "successive_halving", "bootstrap_count": 2}, "pruner"),
        ({"name": "wilcoxon", "p_threshold": -0.1}, "pruner.p_threshold"),
        ({"name": "none", "patience": 2}, "pruner.patience"),
    ],
)
def test_pruner_options_that_cannot_be(pruner: dict[str, Any] | str, field: str) -> None:
    assert set(faults(pruner=pruner)) == {field}


@pytest.mark.parametrize(
    ("pruner", "field", "steps"),
    [
        ({"name": "median", "n_warmup_steps": 10}, "n_warmup_steps", 10),
        ({"name": "threshold", "upper": 1, "n_warmup_steps": 10}, "n_warmup_steps", 10),
        ({"name": "successive_halving", "min_resource": 5, "reduction_factor": 2,
          "min_early_stopping_rate": 1}, "min_resource", 10),
        ({"name": "hyperband", "min_resource": 10}, "min_resource", 10),
        ({"name": "patient", "patience": 9}, "patience", 10),
        ({"name": "wilcoxon", "n_startup_steps": 11}, "n_startup_steps", 10),
    ],
)  # fmt: skip
def test_a_pruner_that_could_never_prune_is_refused(
    pruner: dict[str, Any], field: str, steps: int
) -> None:
    found = faults(pruner=pruner, max_steps=steps)
    assert set(found) == {f"pruner.{field}"}
    assert "no trial could ever be pruned" in found[f"pruner.{field}"]
    assert faults(pruner=pruner, max_steps=steps + 1) == {}
    assert faults(pruner=pruner) == {}


def test_a_wrapped_pruner_that_could_never_prune_is_refused() -> None:
    wrapped = {"name": "median", "n_warmup_steps": 5}
    pruner = {"name": "patient", "patience": 1, "wrapped": wrapped}
    assert set(faults(pruner=pruner, max_steps=5)) == {"pruner.wrapped.n_warmup_steps"}


@pytest.mark.parametrize("name", [name for name in SAMPLERS if name != "grid"])
def test_every_sampler_is_fine_without_options_and_space(name: str) -> None:
    assert faults(name) == faults(name, space=None) == {}


@pytest.mark.parametrize(
    "pruner",
    [
        "median",
        {"name": "percentile", "percentile": 25.0},
        "successive_halving",
        {"name": "successive_halving", "min_resource": "auto"},
        "hyperband",
        {"name": "hyperband", "max_resource": "auto"},
        {"name": "hyperband", "max_resource": 81, "bootstrap_count": 3},
        {"name": "patient", "patience": 3},
        {"name": "patient", "patience": 3, "wrapped": "median", "min_delta": 0.01},
        {"name": "patient", "patience": 3, "wrapped": {"name": "median", "n_startup_trials": 2}},
        {"name": "threshold", "upper": 3},
        {"name": "threshold", "lower": None, "upper": 3},
        "wilcoxon",
        "none",
    ],
)
def test_every_pruner_has_options_that_work(pruner: dict[str, Any] | str) -> None:
    assert faults(pruner=pruner) == faults(pruner=pruner, max_steps=100) == {}


def test_hyperband_takes_the_steps_of_the_study() -> None:
    pruner = {"name": "hyperband", "bootstrap_count": 2}
    assert faults(pruner=pruner, max_steps=27) == {}


def test_grid_needs_ranges_that_end() -> None:
    assert set(faults("grid")) == {"space.x.step"}
    assert set(faults("grid", space=None)) == {"sampler"}
    stepped: Space = {"x": FloatRange(low=0, high=1, step=0.25), "n": IntRange(low=1, high=4)}
    assert faults("grid", space=stepped) == {}
    assert grid_cells(define("grid", space=stepped)) == 20


def test_grid_refuses_more_cells_than_memory_holds() -> None:
    space = {name: IntRange(low=1, high=1000) for name in ("a", "b", "c")}
    found = faults("grid", space=space)
    assert found["space"].startswith(f"has 1000000000 cells, grid takes {MAX_GRID_CELLS} at most")


def test_cmaes_needs_a_range() -> None:
    space: Space = {"kind": Categorical(choices=("a", "b")), "n": IntRange(low=2, high=2)}
    assert set(faults("cmaes", space=space)) == {"sampler"}
    assert faults("cmaes") == {}


@pytest.mark.parametrize(
    ("sampler", "pruner", "package", "field"),
    [
        ("cmaes", "none", "cmaes", "sampler"),
        ("gp", "none", "torch", "sampler"),
        ("qmc", "none", "scipy", "sampler"),
        ("tpe", "wilcoxon", "scipy", "pruner"),
    ],
)
def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, sampler: str, pruner: str, package: str, field: str
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == package else find(name)
    )
    found = faults(sampler, pruner)
    assert set(found) == {field}
    assert f"pip install {package}" in found[field]


STOCK: dict[str, Any] = {
    "tpe": optuna.samplers.TPESampler,
    "cmaes": optuna.samplers.CmaEsSampler,
    "gp": optuna.samplers.GPSampler,
    "qmc": optuna.samplers.QMCSampler,
    "nsgaii": optuna.samplers.NSGAIISampler,
    "median": optuna.pruners.MedianPruner,
    "percentile": optuna.pruners.PercentilePruner,
    "successive_halving": optuna.pruners.SuccessiveHalvingPruner,
    "hyperband": optuna.pruners.HyperbandPruner,
    "threshold": optuna.pruners.ThresholdPruner,
    "wilcoxon": optuna.pruners.WilcoxonPruner,
}


@pytest.mark.parametrize("name", STOCK)
def test_options_are_optunas_and_allow_its_defaults(name: str) -> None:
    parameters = inspect.signature(STOCK[name].__init__).parameters
    table = (SAMPLERS[name] if name in SAMPLERS else PRUNERS[name]).options
    assert table.keys() <= parameters.keys()
    for option, allowed in table.items():
        if not allowed.is_required:
            assert allowed.allows(parameters[option].default), option


def test_no_option_is_one_that_optuna_is_about_to_remove() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        for name in ("tpe", "cmaes", "gp", "nsgaii"):
            options = SAMPLERS[name].options
            STOCK[name](
                **{o: inspect.signature(STOCK[name]).parameters[o].default for o in options}
            )


@pytest.mark.parametrize(
    ("option", "good", "bad"),
    [
        (integer(1, 3), [1, 3], [0, 4, 1.0, True, None, "1"]),
        (integer(1, 9, "auto"), [1, "auto"], ["Auto", None]),
        (number(0, 1, None), [0, 0.5, 1, None], [-0.1, float("inf"), float("nan"), False, "x"]),
        (boolean(), [True, False], [1, 0, None, "true"]),
        (choice("a", "b"), ["a"], ["c", None, 1]),
        (Option(kind="a pruner", literals=(None,)), [None, "median", {}], [3, []]),
    ],
)
def test_an_option_allows_its_kind_and_range(
    option: Option, good: list[Any], bad: list[Any]
) -> None:
    assert all(option.allows(value) for value in good)
    assert not any(option.allows(value) for value in bad)


def test_an_option_says_what_it_allows() -> None:
    assert str(integer(1, 9, "auto")) == 'a whole number from 1 to 9, or "auto"'
    assert str(choice("a", "b")) == 'one of "a", "b"'
    assert str(number()) == "a finite number"
    assert known("x", []) == "known: none"
