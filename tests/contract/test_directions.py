"""Studies with several values to a trial, and trials that must keep to constraints."""

from __future__ import annotations

from typing import Any

import optuna
import pytest
from optuna.storages import BaseStorage

from hpo.errors import Conflict, InvalidResult, NoCompletedTrial
from hpo.search.front import front_of
from hpo.study import Algorithm, Direction
from hpo.trial import Measurement, Reason, TrialState
from storage.store import Store
from tests.builders import definition, lease_of, register, request

TWO: dict[str, Any] = {
    "directions": (Direction.MINIMIZE, Direction.MAXIMIZE),
    "metrics": ("loss", "speed"),
    "pruner": Algorithm(name="none"),
}


def run(store: Store, value: Any, **remarks: Any) -> tuple[TrialState, Reason | None]:
    claimed = store.claims.claim(request(register(store)))
    assert claimed is not None
    settled = store.claims.complete(lease_of(claimed), value, **remarks)
    return settled.state, settled.reason


@pytest.mark.parametrize("sampler", ["random", "tpe", "nsgaii", "qmc"])
def test_a_study_with_two_directions_has_a_front(
    store: Store, stock: BaseStorage, sampler: str
) -> None:
    algorithm = Algorithm(name=sampler)
    store.studies.create(definition(n_trials=5, sampler=algorithm, **TWO), given=frozenset())
    points = [(1.0, 1.0), (2.0, 3.0), (2.0, 2.0), (0.5, 0.5), (3.0, 1.0)]
    for point in points:
        assert run(store, point) == (TrialState.COMPLETE, None)
    trials = store.trials.page("demo").items
    assert [tuple(trial.values) for trial in trials] == points
    assert all(trial.value is None for trial in trials)
    study = store.studies.get("demo")
    assert study.state == "completed"
    assert study.best is None
    with pytest.raises(Conflict, match="2 directions"):
        store.studies.best("demo")
    loaded = optuna.load_study(study_name="demo", storage=stock)
    front = [points.index((trial.values[0], trial.values[1])) for trial in loaded.best_trials]
    assert sorted(front) == front_of(points, study.definition.directions) == [0, 1, 3]
    assert loaded.metric_names == ["loss", "speed"]


@pytest.mark.parametrize(
    ("fields", "value", "match"),
    [
        (TWO, 1.0, "values: must be 2 numbers, one for each direction of the study, got 1 value"),
        (TWO, None, "values: must be 2 numbers, one for each direction of the study, got 0 values"),
        (TWO, (1.0, 2.0, 3.0), "values: must be 2 numbers, .* got 3"),
        ({}, (1.0, 2.0), "values: must be one number of the study, got 2 values"),
        ({}, None, "value: is required, as the trial has reported none"),
    ],
)
def test_the_wrong_number_of_values_is_refused_and_can_be_mended(
    store: Store, fields: dict[str, Any], value: Any, match: str
) -> None:
    store.studies.create(definition(n_trials=1, **fields), given=frozenset())
    claimed = store.claims.claim(request(register(store)))
    assert claimed is not None
    lease, before = lease_of(claimed), store.trials.get("demo", 0)
    with pytest.raises(InvalidResult, match=match):
        store.claims.complete(lease, value, user_attrs={"note": 1}, constraints={"size": 1.0})
    assert store.trials.get("demo", 0) == before
    right = (1.0, 2.0) if fields else 1.0
    assert store.claims.complete(lease, right).state is TrialState.COMPLETE


def test_one_value_that_is_not_finite_diverges(store: Store) -> None:
    store.studies.create(definition(n_trials=1, **TWO), given=frozenset())
    assert run(store, (1.0, float("nan"))) == (TrialState.PRUNED, Reason.DIVERGED)
    assert list(store.trials.get("demo", 0).values) == []


def test_a_trial_that_violates_a_constraint_is_not_the_best(
    store: Store, stock: BaseStorage
) -> None:
    store.studies.create(definition(n_trials=3), given=frozenset())
    assert run(store, 0.1, constraints={"latency": 5.0})[0] is TrialState.COMPLETE
    with pytest.raises(NoCompletedTrial):
        store.studies.best("demo")
    run(store, 0.3, constraints={"latency": 0.0, "memory": -1.5})
    run(store, 0.2, constraints={"latency": -1.0, "memory": 1e-9})
    assert store.studies.best("demo").number == 1
    assert [dict(trial.constraints) for trial in store.trials.page("demo").items] == [
        {"latency": 5.0},
        {"latency": 0.0, "memory": -1.5},
        {"latency": -1.0, "memory": 1e-9},
    ]
    loaded = optuna.load_study(study_name="demo", storage=stock)
    assert loaded.best_trial.number == 1
    assert loaded.trials[0].constraints == {"latency": 5.0}


def test_the_last_word_on_a_constraint_counts(store: Store) -> None:
    store.studies.create(definition(n_trials=1), given=frozenset())
    claimed = store.claims.claim(request(register(store)))
    assert claimed is not None
    lease = lease_of(claimed)
    store.claims.report(lease, Measurement(step=0, value=1.0), {}, {"latency": 2.0})
    store.claims.complete(lease, 0.5, {}, {"latency": -2.0})
    assert store.studies.best("demo").number == 0
    assert store.trials.get("demo", 0).constraints == {"latency": -2.0}


def test_samplers_see_constraints(store: Store) -> None:
    """TPE splits infeasible trials off; it would fail here if it could not read ours."""
    algorithm = Algorithm(name="tpe", options={"n_startup_trials": 3})
    store.studies.create(definition(n_trials=8, sampler=algorithm), given=frozenset())
    for _ in range(8):
        claimed = store.claims.claim(request(register(store)))
        assert claimed is not None
        x = float(claimed.params["x"])  # type: ignore[arg-type]  # a float
        store.claims.complete(lease_of(claimed), x, {}, {"edge": 0.5 - x})
    best = store.studies.best("demo")
    assert best.params["x"] >= 0.5  # type: ignore[operator]  # a float
