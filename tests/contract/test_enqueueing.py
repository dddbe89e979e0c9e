"""Enqueued points on every backend: each is tried once, and the budget stays exact."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import Any

import optuna
import pytest
from optuna.storages import RDBStorage

from hpo.errors import Conflict, IdempotencyKeyReused, InvalidFields, NotFound
from hpo.space import Categorical, FloatRange, IntRange
from hpo.study import StudyDefinition, StudyState
from hpo.trial import Failure, Reason, TrialState
from storage.enqueueing import Point, Request
from storage.records import Claimed
from storage.store import Store
from tests.builders import lease_of, register, request

Create = Callable[..., StudyDefinition]
Claim = Callable[[], Claimed]
ONCE, EXTEND = Request(), Request(extend=True)
N_POINTS, N_WORKERS = 24, 4


def enqueue(store: Store, *points: dict[str, Any], asked: Request = ONCE) -> list[int]:
    return store.enqueueing.enqueue("demo", [Point(params=params) for params in points], asked)


def test_a_conditional_parameter_comes_with_those_it_depends_on(
    store: Store, create: Create
) -> None:
    """Drawn by the sampler, they might leave no room for it, and the point would be lost."""
    create(
        space={
            "kind": Categorical(choices=("adam", "sgd")),
            "momentum": FloatRange(low=0, high=1, when={"kind": ("sgd",)}),
        }
    )
    with pytest.raises(InvalidFields, match=r"points\.0\.params\.momentum: .*give kind as well"):
        enqueue(store, {"momentum": 0.5})
    with pytest.raises(InvalidFields, match="not part of a trial with these values"):
        enqueue(store, {"momentum": 0.5, "kind": "adam"})
    assert enqueue(store, {"momentum": 0.5, "kind": "sgd"}) == [0]


def test_points_come_before_what_the_sampler_draws(
    store: Store, create: Create, claim: Claim
) -> None:
    create(n_trials=3)
    assert enqueue(store, {"x": 0.25, "kind": "b"}, {"kind": "a"}) == [0, 1]
    first, second, third = claim(), claim(), claim()
    assert [claimed.number for claimed in (first, second, third)] == [0, 1, 2]
    assert first.params == {"x": 0.25, "kind": "b"}
    assert second.params["kind"] == "a"
    assert 0 <= float(second.params["x"] or 0) <= 1
    store.claims.complete(lease_of(first), 1.0, {})
    assert store.studies.get("demo").n_started == 3


def test_a_point_is_shown_while_it_waits_and_afterwards(
    store: Store, create: Create, claim: Claim
) -> None:
    create()
    store.enqueueing.enqueue(
        "demo", [Point(params={"x": 0.5}, user_attrs={"from": "a paper"})], ONCE
    )
    waiting = store.trials.get("demo", 0)
    assert waiting.state is TrialState.WAITING
    assert waiting.enqueued == {"x": 0.5}
    assert waiting.user_attrs == {"from": "a paper"}
    claim()
    running = store.trials.get("demo", 0)
    assert running.enqueued == {"x": 0.5}
    assert running.params["x"] == 0.5


def test_points_look_like_those_of_optuna(store: Store, create: Create, stock: RDBStorage) -> None:
    create(n_trials=5)
    study = optuna.load_study(study_name="demo", storage=stock)
    study.enqueue_trial({"x": 0.5}, user_attrs={"a": 1})
    store.enqueueing.enqueue("demo", [Point(params={"x": 0.5}, user_attrs={"a": 1})], ONCE)
    theirs, ours = study.get_trials(deepcopy=False)
    assert (theirs.state, theirs.system_attrs) == (ours.state, ours.system_attrs)
    assert (theirs.user_attrs, theirs.datetime_start) == (ours.user_attrs, ours.datetime_start)


def test_every_point_goes_to_one_claim(store: Store, create: Create) -> None:
    create(n_trials=N_POINTS)
    points = [{"x": index / N_POINTS, "kind": "a"} for index in range(N_POINTS)]
    key = Request(key="k", fingerprint="f")
    numbers = [enqueue(store, *points, asked=key) for _ in range(3)]
    assert numbers == [list(range(N_POINTS))] * 3
    taken: list[float] = []

    def work(worker_id: uuid.UUID) -> None:
        while (claimed := store.claims.claim(request(worker_id))) is not None:
            taken.append(float(claimed.params["x"] or 0))
            store.claims.complete(lease_of(claimed), 1.0, {})

    threads = [threading.Thread(target=work, args=[register(store)]) for _ in range(N_WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == [point["x"] for point in points]
    assert store.studies.get("demo").state is StudyState.COMPLETED


def test_the_same_key_with_other_points_is_refused(store: Store, create: Create) -> None:
    create()
    enqueue(store, {"x": 0.5}, asked=Request(key="k", fingerprint="a"))
    with pytest.raises(IdempotencyKeyReused):
        enqueue(store, {"x": 0.6}, asked=Request(key="k", fingerprint="b"))
    assert store.studies.get("demo").counts[TrialState.WAITING] == 1


@pytest.mark.parametrize(
    ("params", "name", "sentence"),
    [
        ({"lr": 0.2}, "lr", "a number from 0.001 to 0.1"),
        ({"lr": True}, "lr", "a number from"),
        ({"lr": "0.01"}, "lr", "a number from"),
        ({"width": 3.5}, "width", "a whole number from 2 to 8 in steps of 2"),
        ({"width": 3}, "width", "in steps of 2 from 2"),
        ({"width": 10**400}, "width", "a whole number"),
        ({"drop": 0.15}, "drop", "in steps of 0.1"),
        ({"kind": "c"}, "kind", "one of 'a', 'b', None"),
        ({"kind": []}, "kind", "one of"),
        ({"lrr": 0.01}, "lrr", "did you mean 'lr'?"),
    ],
)
def test_a_value_that_the_space_has_not_is_named(
    store: Store, create: Create, params: dict[str, Any], name: str, sentence: str
) -> None:
    create(
        space={
            "lr": FloatRange(low=0.001, high=0.1, log=True),
            "width": IntRange(low=2, high=9, step=2),
            "drop": FloatRange(low=0.0, high=0.5, step=0.1),
            "kind": Categorical(choices=("a", "b", None)),
        }
    )
    with pytest.raises(InvalidFields) as refused:
        enqueue(store, {"lr": 0.01}, params)
    (fault,) = refused.value.facts["errors"]
    assert fault["field"] == f"points.1.params.{name}"
    assert sentence in fault["message"]
    assert store.studies.get("demo").counts[TrialState.WAITING] == 0


def test_values_at_the_edges_are_taken_as_they_are(
    store: Store, create: Create, claim: Claim
) -> None:
    create(
        space={
            "lr": FloatRange(low=0.001, high=0.1, log=True),
            "drop": FloatRange(low=0.0, high=0.5, step=0.1),
            "width": IntRange(low=2, high=9, step=2),
        }
    )
    enqueue(store, {"lr": 0.1, "drop": 0.30000000000000004, "width": 8.0}, {"lr": 0.001})
    assert claim().params == {"lr": 0.1, "drop": 0.30000000000000004, "width": 8}
    assert claim().params["lr"] == 0.001


def test_without_a_space_any_name_is_taken_when_the_objective_asks_for_it(
    store: Store, create: Create, claim: Claim
) -> None:
    create(space=None)
    enqueue(store, {"depth": 3, "lr": 0.5})
    held = lease_of(claim())
    assert store.claims.suggest(held, "depth", IntRange(low=1, high=9)) == 3
    assert store.claims.suggest(held, "lr", FloatRange(low=0, high=1)) == 0.5
    with pytest.raises(InvalidFields, match=r"points\.0\.params\.n: must be a number"):
        enqueue(store, {"n": 10**400})


def test_points_that_the_budget_has_no_room_for_are_refused_with_the_cure(
    store: Store, create: Create, claim: Claim
) -> None:
    create(n_trials=3)
    claim()
    enqueue(store, {"x": 0.1})
    with pytest.raises(Conflict, match="raise n_trials to 4") as refused:
        enqueue(store, {"x": 0.2}, {"x": 0.3})
    assert refused.value.facts["needed_n_trials"] == 4
    assert enqueue(store, {"x": 0.2}) == [2]


def test_points_may_bring_their_room_along_and_reopen_a_study(
    store: Store, create: Create, claim: Claim
) -> None:
    create(n_trials=1)
    store.claims.complete(lease_of(claim()), 1.0, {})
    assert store.studies.get("demo").state is StudyState.COMPLETED
    with pytest.raises(Conflict, match="send extend: true"):
        enqueue(store, {"x": 0.2})
    assert enqueue(store, {"x": 0.2}, {"x": 0.3}, asked=EXTEND) == [1, 2]
    study = store.studies.get("demo")
    assert (study.state, study.definition.budget.n_trials) == (StudyState.RUNNING, 3)
    for _ in range(2):
        store.claims.complete(lease_of(claim()), 1.0, {})
    assert store.studies.get("demo").state is StudyState.COMPLETED


@pytest.mark.parametrize("asked", [ONCE, EXTEND])
def test_a_stopped_study_takes_no_points(store: Store, create: Create, asked: Request) -> None:
    create()
    store.lifecycle.stop("demo")
    with pytest.raises(Conflict, match="is stopped and starts no trials"):
        enqueue(store, {"x": 0.2}, asked=asked)


def test_points_end_with_a_study_that_is_stopped(
    store: Store, create: Create, claim: Claim
) -> None:
    create(n_trials=4)
    held = claim()
    enqueue(store, {"x": 0.1}, {"x": 0.2})
    store.lifecycle.stop("demo")
    assert store.studies.get("demo").counts[TrialState.WAITING] == 2
    store.claims.complete(lease_of(held), 1.0, {})
    study = store.studies.get("demo")
    assert (study.state, study.n_started) == (StudyState.STOPPED, 1)
    trials = store.trials.page("demo").items[1:]
    assert {(trial.state, trial.reason) for trial in trials} == {
        (TrialState.FAIL, Reason.CANCELLED)
    }


def test_a_paused_study_takes_points_for_later(store: Store, create: Create, claim: Claim) -> None:
    create()
    store.lifecycle.pause("demo")
    enqueue(store, {"x": 0.125})
    store.lifecycle.resume("demo")
    assert claim().params["x"] == 0.125


def test_a_trial_that_has_ended_is_tried_once_more(
    store: Store, create: Create, claim: Claim
) -> None:
    create()
    first = claim()
    with pytest.raises(Conflict, match="when it has ended"):
        store.enqueueing.requeue("demo", 0, ONCE)
    store.claims.fail(lease_of(first), Failure(reason=Reason.OBJECTIVE_ERROR), {})
    key = Request(key="again", fingerprint="0")
    assert [store.enqueueing.requeue("demo", 0, key) for _ in range(2)] == [1, 1]
    second = claim()
    assert (second.number, second.params) == (1, first.params)
    assert store.studies.get("demo").n_started == 2


def test_what_does_not_exist_is_not_found(store: Store, create: Create) -> None:
    with pytest.raises(NotFound):
        enqueue(store, {"x": 0.5})
    create()
    with pytest.raises(NotFound):
        store.enqueueing.requeue("demo", 7, ONCE)
