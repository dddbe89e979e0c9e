"""Adoption on every backend: plain Optuna's study goes on as one of the service."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import optuna
import pytest
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial

from hpo.errors import InvalidFields, NotFound, StudyExists
from hpo.space import Categorical, FloatRange, IntRange
from hpo.study import Algorithm, Direction, StudyDefinition, StudyState
from hpo.trial import TrialState
from storage.adoption import Adopted
from storage.records import Claimed
from storage.store import Store
from tests.builders import definition, lease_of

N_TRIALS = 30
SPACE = {"x": FloatRange(low=0, high=1), "kind": Categorical(choices=("a", "b"))}


def foreign_study(stock: RDBStorage) -> optuna.Study:
    """What another program left behind: 30 finished trials, one RUNNING, one enqueued."""
    study = optuna.create_study(study_name="theirs", storage=stock)

    def objective(trial: optuna.Trial) -> float:
        trial.suggest_categorical("kind", ["a", "b"])
        return abs(trial.suggest_float("x", 0, 1) - 0.7)

    for index in range(N_TRIALS):
        study.enqueue_trial({"x": index / N_TRIALS, "kind": "ab"[index % 2]})
    study.optimize(objective, n_trials=N_TRIALS)
    running = study.ask()
    assert running.number == N_TRIALS
    study.enqueue_trial({"x": 0.25, "kind": "b"})
    return study


@pytest.fixture
def theirs(stock: RDBStorage) -> optuna.Study:
    return foreign_study(stock)


def adopt(store: Store, **fields: Any) -> Adopted:
    made = definition(**{"name": "theirs", "space": SPACE, "n_trials": 3, **fields})
    return store.adoption.adopt(made, given=frozenset(fields))


def finished(study: optuna.Study) -> list[FrozenTrial]:
    return [trial for trial in study.get_trials() if trial.number < N_TRIALS]


def test_claims_go_on_after_its_trials(
    store: Store, theirs: optuna.Study, claim: Callable[[], Claimed]
) -> None:
    before = finished(theirs)
    adopted = adopt(store)
    assert (adopted.n_trials, adopted.n_failed) == (N_TRIALS + 2, 1)
    assert adopted.study.best is not None
    assert adopted.study.best.value == theirs.best_value
    assert store.trials.get("theirs", N_TRIALS).state is TrialState.FAIL
    claims = []
    for _ in range(3):
        claims.append(claim())
        store.claims.complete(lease_of(claims[-1]), 1.0)
    assert [c.number for c in claims] == [N_TRIALS + 1, N_TRIALS + 2, N_TRIALS + 3]
    assert claims[0].params == {"x": 0.25, "kind": "b"}
    study = store.studies.get("theirs")
    assert (study.state, study.n_started) == (StudyState.COMPLETED, 3)
    assert finished(theirs) == before


def test_samplers_use_its_history(
    store: Store, theirs: optuna.Study, claim: Callable[[], Claimed]
) -> None:
    adopt(store, n_trials=12, sampler=Algorithm(name="tpe", options={"n_startup_trials": 5}))
    claim()  # what was enqueued
    drawn = [float(claim().params["x"] or 0) for _ in range(8)]
    assert sum(abs(x - 0.7) for x in drawn) / len(drawn) < 0.2


def test_adopting_again_changes_nothing(store: Store, theirs: optuna.Study) -> None:
    first = adopt(store, n_trials=5)
    again = adopt(store, n_trials=5)
    assert (again.study.uuid, again.n_trials) == (first.study.uuid, first.n_trials)
    with pytest.raises(StudyExists, match="n_trials"):
        adopt(store, n_trials=6)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"direction": Direction.MAXIMIZE}, "direction"),
        ({"directions": (Direction.MINIMIZE,) * 2, "pruner": Algorithm(name="none")}, "directions"),
        ({"space": {**SPACE, "x": IntRange(low=0, high=1)}}, "space.x"),
        ({"space": {**SPACE, "kind": Categorical(choices=("a", "b", "c"))}}, "space.kind"),
        ({"space": {"x": SPACE["x"]}}, "space.kind"),
    ],
)
def test_a_definition_that_does_not_go_with_it_is_refused(
    store: Store, theirs: optuna.Study, fields: dict[str, Any], field: str
) -> None:
    before = theirs.get_trials()
    with pytest.raises(InvalidFields) as refused:
        adopt(store, **fields)
    assert [fault["field"] for fault in refused.value.facts["errors"]] == [field]
    assert theirs.get_trials() == before
    assert store.studies.page().items == []


def test_a_wider_range_and_no_space_are_taken(store: Store, stock: RDBStorage) -> None:
    foreign_study(stock)
    adopt(store, space={**SPACE, "x": FloatRange(low=-1, high=2)})
    optuna.create_study(study_name="other", storage=stock)
    adopt(store, name="other", space=None)


def test_there_must_be_such_a_study(store: Store) -> None:
    with pytest.raises(NotFound, match="theirs"):
        adopt(store)


def test_creating_it_says_that_it_can_be_adopted(
    store: Store, theirs: optuna.Study, create: Callable[..., StudyDefinition]
) -> None:
    with pytest.raises(StudyExists, match="hpo study adopt"):
        create(name="theirs")


def test_an_infeasible_trial_is_not_the_best(store: Store, stock: RDBStorage) -> None:
    study = optuna.create_study(study_name="theirs", storage=stock)
    for value, limit in ((1.0, 0.5), (2.0, -0.5)):
        trial = study.ask({"x": optuna.distributions.FloatDistribution(0, 1)})
        trial.set_constraint("latency", limit)
        study.tell(trial, value)
    adopted = adopt(store, space={"x": SPACE["x"]})
    assert adopted.study.best is not None
    assert adopted.study.best.value == 2.0
    assert store.trials.get("theirs", 0).constraints == {"latency": 0.5}
    clone = replace(adopted.study.definition, name="clone")
    assert store.cloning.clone("theirs", clone).n_imported == 2
