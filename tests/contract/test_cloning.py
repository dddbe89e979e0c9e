"""Clones and warm starts on every backend: what fits goes along, and samplers learn from it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import optuna
import pytest
from optuna.storages import RDBStorage

from hpo.errors import Conflict, IdempotencyKeyReused, InvalidField, NotFound, StudyExists
from hpo.space import Categorical, FloatRange, IntRange
from hpo.study import Algorithm, Direction, StudyDefinition, StudyState
from hpo.trial import Failure, Measurement, Reason, TrialState, Verdict
from storage.enqueueing import Point, Request
from storage.records import Claimed
from storage.store import Store
from tests.builders import lease_of, request

Create = Callable[..., StudyDefinition]
Claim = Callable[[], Claimed]

BATCH = {
    "x": FloatRange(low=0, high=1),
    "batch": Categorical(choices=(64, [128, 1])),
}
ONCE = Request()


def tried(
    store: Store, claim: Claim, value: float | None, *, curve: Any = (), **params: Any
) -> int:
    """A trial with these parameters that has ended with this value, or as FAIL."""
    (number,) = store.enqueueing.enqueue("demo", [Point(params=params)], ONCE)
    claimed = claim()
    assert claimed.number == number
    for step, reported in enumerate(curve):
        store.claims.report(lease_of(claimed), Measurement(step=step, value=reported))
    if value is None:
        store.claims.fail(lease_of(claimed), Failure(reason=Reason.OBJECTIVE_ERROR))
    else:
        store.claims.complete(lease_of(claimed), value)
    return number


def test_a_clone_has_the_trials_that_still_fit(
    store: Store, create: Create, claim: Claim, stock: RDBStorage
) -> None:
    made = create(space=BATCH, n_trials=10)
    tried(store, claim, 3.0, curve=[5.0, float("nan"), 3.0], x=0.1, batch=64)
    tried(store, claim, 1.0, x=0.9, batch=[128, 1])
    tried(store, claim, None, x=0.2, batch=64)
    tried(store, claim, 2.0, x=0.3, batch=64)
    store.trial_changes.exclude("demo", tried(store, claim, 0.0, x=0.4, batch=64), "wrong")
    space = {"x": FloatRange(low=0, high=0.5), "batch": Categorical(choices=(32, [128, 1], 64))}
    clone = replace(made, name="clone", space=space)
    cloned = store.cloning.clone("demo", clone)
    assert (cloned.n_imported, cloned.n_left_out, cloned.misfits) == (2, 1, {"x": 1})
    study = store.studies.get("clone")
    assert (study.definition, study.n_started, study.state) == (clone, 0, StudyState.RUNNING)
    assert study.best is not None
    assert (study.best.number, study.best.value) == (1, 2.0)
    first = store.trials.get("clone", 0)
    assert first.params == {"x": 0.1, "batch": 64}
    assert first.user_attrs == {"hpo:imported_from": "demo/0"}
    assert [repr(point.value) for point in first.curve] == ["5.0", "nan", "3.0"]
    assert first.started_at == store.trials.get("demo", 0).started_at
    theirs = optuna.load_study(study_name="clone", storage=stock).get_trials(deepcopy=False)
    assert {trial.distributions["batch"] for trial in theirs} == {
        optuna.distributions.CategoricalDistribution((32, "json:[128, 1]", 64))
    }


def test_imported_trials_are_no_part_of_the_budget(
    store: Store, create: Create, claim: Claim
) -> None:
    made = create(n_trials=2)
    for x in (0.1, 0.2):
        tried(store, claim, x, x=x, kind="a")
    store.cloning.clone("demo", replace(made, name="clone"))
    numbers = []
    for _ in range(2):
        claimed = claim()
        numbers.append((claimed.study_name, claimed.number))
        store.claims.complete(lease_of(claimed), 1.0)
    assert numbers == [("clone", 2), ("clone", 3)]
    assert store.studies.get("clone").state is StudyState.COMPLETED


def test_samplers_learn_from_what_was_imported(store: Store, create: Create, claim: Claim) -> None:
    tpe = Algorithm(name="tpe", options={"n_startup_trials": 10})
    made = create(n_trials=40, sampler=tpe, space={"x": FloatRange(low=0, high=1)})
    for index in range(30):
        x = index / 30
        tried(store, claim, abs(x - 0.8), x=x)
    store.lifecycle.stop("demo")
    store.cloning.clone("demo", replace(made, name="clone"))
    store.cloning.clone("demo", replace(made, name="empty"), import_trials=False)
    found: dict[str, list[float]] = {"clone": [], "empty": []}
    for _ in range(16):
        claimed = claim()
        found[claimed.study_name].append(float(claimed.params["x"] or 0))
    errors = {name: sum(abs(x - 0.8) for x in xs) / len(xs) for name, xs in found.items()}
    assert errors["clone"] < 0.1 < 0.2 < errors["empty"]


def test_pruners_compare_with_imported_curves(store: Store, create: Create, claim: Claim) -> None:
    made = create(n_trials=10, pruner=Algorithm(name="median", options={"n_startup_trials": 3}))
    for _ in range(3):
        tried(store, claim, 1.0, curve=[1.0, 1.0], x=0.5, kind="a")
    store.lifecycle.stop("demo")
    store.cloning.clone("demo", replace(made, name="clone"))
    claimed = claim()
    decision = store.claims.report(lease_of(claimed), Measurement(step=0, value=9.0))
    assert decision.verdict is Verdict.PRUNE
    store.claims.prune(lease_of(claimed))
    assert store.cloning.clone("clone", replace(made, name="again")).n_imported == 4
    assert store.studies.get("again").counts[TrialState.PRUNED] == 1


def test_conditions_decide_which_parameters_a_trial_must_have(
    store: Store, create: Create, claim: Claim
) -> None:
    space = {
        "kind": Categorical(choices=("a", "b")),
        "n": IntRange(low=1, high=9, when={"kind": ("b",)}),
    }
    made = create(space=space, n_trials=5)
    tried(store, claim, 1.0, kind="a")
    tried(store, claim, 2.0, kind="b", n=3)
    always = {**space, "n": IntRange(low=1, high=9)}
    cloned = store.cloning.clone("demo", replace(made, name="always", space=always))
    assert (cloned.n_imported, cloned.misfits) == (1, {"n": 1})
    never = {"kind": space["kind"]}
    cloned = store.cloning.clone("demo", replace(made, name="never", space=never))
    assert (cloned.n_imported, cloned.misfits) == (1, {"n": 1})
    same = store.cloning.clone("demo", replace(made, name="same"))
    assert (same.n_imported, same.misfits) == (2, {})


def test_an_infeasible_trial_is_infeasible_in_the_clone(
    store: Store, create: Create, claim: Claim
) -> None:
    made = create(n_trials=4)
    for value, limit in ((1.0, 0.5), (2.0, -0.5)):
        claimed = claim()
        store.claims.complete(lease_of(claimed), value, constraints={"latency": limit})
    store.cloning.clone("demo", replace(made, name="clone"))
    best = store.studies.get("clone").best
    assert best is not None
    assert best.value == 2.0
    assert store.trials.get("clone", 0).constraints == {"latency": 0.5}
    assert store.studies.get("clone").n_started == 0


def test_a_repeated_clone_gets_the_first_answer(store: Store, create: Create, claim: Claim) -> None:
    made = create(n_trials=3)
    tried(store, claim, 1.0, x=0.5, kind="a")
    clone = replace(made, name="clone")
    first = store.cloning.clone("demo", clone, key="k", fingerprint="f")
    tried(store, claim, 2.0, x=0.5, kind="a")
    assert store.cloning.clone("demo", clone, key="k", fingerprint="f") == first
    with pytest.raises(IdempotencyKeyReused):
        store.cloning.clone("demo", clone, key="k", fingerprint="g")
    with pytest.raises(StudyExists):
        store.cloning.clone("demo", clone)
    with pytest.raises(NotFound):
        store.cloning.clone("none", replace(made, name="other"))
    assert len(store.trials.page("clone").items) == 1


def test_of_two_clones_of_one_name_the_second_is_told(
    store: Store, create: Create, claim: Claim
) -> None:
    made = create(n_trials=3)
    tried(store, claim, 1.0, x=0.5, kind="a")
    told: list[type] = []

    def clone() -> None:
        try:
            told.append(type(store.cloning.clone("demo", replace(made, name="clone"))))
        except StudyExists as error:
            told.append(type(error))

    threads = [threading.Thread(target=clone) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(kind.__name__ for kind in told) == ["Cloned", *["StudyExists"] * 3]
    assert len(store.trials.page("clone").items) == 1


def test_what_is_being_deleted_is_neither_copied_nor_in_the_way_for_long(
    store: Store, create: Create
) -> None:
    made = create()
    create(name="other")
    store.deleting.mark("demo", force=True)
    with pytest.raises(Conflict, match="being deleted"):
        store.cloning.clone("demo", replace(made, name="clone"))
    with pytest.raises(Conflict, match="being deleted"):
        store.cloning.warm_start("other", "demo", 1, ONCE)
    with pytest.raises(StudyExists, match="being deleted; try again"):
        store.cloning.clone("other", made)


def test_trials_with_another_number_of_values_stay_behind(store: Store, create: Create) -> None:
    made = create()
    two = (Direction.MINIMIZE, Direction.MAXIMIZE)
    none = Algorithm(name="none")
    clone = replace(made, name="clone", directions=two, metrics=(), pruner=none)
    with pytest.raises(InvalidField, match="import_trials"):
        store.cloning.clone("demo", clone)
    assert store.cloning.clone("demo", clone, import_trials=False).n_imported == 0


def test_postgresql_plans_for_many_new_trials(
    store: Store,
    create: Create,
    claim: Claim,
    stock: RDBStorage,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("storage.bulk.MANY", 1)
    made = create(n_trials=3)
    tried(store, claim, 1.0, x=0.5, kind="a")
    assert store.cloning.clone("demo", replace(made, name="clone")).n_imported == 1
    if stock.engine.dialect.name == "postgresql":
        with stock.engine.connect() as connection:
            known = "SELECT reltuples FROM pg_class WHERE relname = 'trials'"
            assert connection.exec_driver_sql(known).scalar_one() == 2


def test_a_warm_start_tries_the_best_that_fit(
    store: Store, create: Create, claim: Claim, worker_id: Any
) -> None:
    create(n_trials=9)
    for x, kind in ((0.3, "a"), (0.1, "b"), (0.2, "a"), (0.2, "a"), (0.9, "a")):
        tried(store, claim, x, x=x, kind=kind)
    store.lifecycle.stop("demo")
    create(name="target", n_trials=2, space={"x": FloatRange(low=0, high=1),
                                             "kind": Categorical(choices=("a", "c"))})  # fmt: skip
    asked = Request(key="k", fingerprint="f")
    started = [store.cloning.warm_start("target", "demo", 2, asked) for _ in range(2)]
    assert started[0] == started[1]
    assert (started[0].numbers, started[0].misfits) == ([0, 1], {"kind": 1})
    claims = [store.claims.claim(request(worker_id)) for _ in range(2)]
    assert [claimed and claimed.params["x"] for claimed in claims] == [0.2, 0.3]
    assert store.trials.get("target", 0).user_attrs == {"hpo:imported_from": "demo/2"}
    with pytest.raises(Conflict, match="extend"):
        store.cloning.warm_start("target", "demo", 1, ONCE)
    assert store.cloning.warm_start("target", "demo", 1, Request(extend=True)).numbers == [2]


def test_a_warm_start_from_a_study_without_results_enqueues_nothing(
    store: Store, create: Create
) -> None:
    create()
    create(name="target")
    assert store.cloning.warm_start("target", "demo", 5, ONCE).numbers == []
    assert sum(store.studies.get("target").counts.values()) == 0


def test_a_warm_start_needs_the_same_directions(store: Store, create: Create) -> None:
    create()
    create(name="up", direction=Direction.MAXIMIZE)
    with pytest.raises(InvalidField, match=r"from: .*minimize"):
        store.cloning.warm_start("up", "demo", 1, ONCE)
