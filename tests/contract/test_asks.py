"""Ask and tell: trials for any program, under leases of the length that it asks for."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hpo.errors import Conflict, IdempotencyKeyReused, NotFound, TrialFinished
from hpo.study import StudyState
from hpo.trial import Measurement, TrialState
from storage.records import Asked, AskRequest
from storage.store import Store
from tests.builders import lease_of, request
from tests.clock import Clock


@pytest.fixture
def clock(database_url: str) -> Iterator[Clock]:
    opened = Clock(database_url)
    yield opened
    opened.engine.dispose()


def ask(store: Store, count: int = 1, **fields: Any) -> Asked:
    wanted = AskRequest(**{"worker": "shell", "count": count, "lease_seconds": 100.0, **fields})
    return store.claims.ask("demo", wanted)


def test_a_trial_is_asked_for_and_told(store: Store, create: Callable[..., Any]) -> None:
    create(objective=None, n_trials=1, settings={"epochs": 3})
    (trial,) = ask(store).trials
    assert (trial.number, trial.attempt, trial.lease_seconds) == (0, 1, 100.0)
    assert trial.params.keys() == {"x", "kind"}
    assert trial.definition.settings == {"epochs": 3}
    assert ask(store).reason == (
        "All 1 trials have been started and 1 of them run; one that is lost can be asked for again."
    )
    store.claims.report(lease_of(trial), Measurement(step=0, value=2.0), {})
    assert store.claims.complete(lease_of(trial), None, {}).state is TrialState.COMPLETE
    asked = ask(store)
    assert (list(asked.trials), asked.state) == ([], StudyState.COMPLETED)
    assert asked.reason == "The study is completed: All 1 trials have ended."
    record = store.trials.get("demo", 0)
    assert (record.value, record.worker_name, record.attempts[0].device) == (2.0, "shell", "")


def test_workers_get_no_trial_of_a_study_for_asking(
    store: Store, create: Callable[..., Any], worker_id: uuid.UUID
) -> None:
    create(objective=None)
    assert store.claims.claim(request(worker_id)) is None
    assert store.studies.get("demo").blocked is None


def test_a_study_for_workers_is_not_asked(store: Store, create: Callable[..., Any]) -> None:
    create()
    with pytest.raises(Conflict, match="without `objective`"):
        ask(store)
    with pytest.raises(NotFound):
        store.claims.ask("none", AskRequest(worker="shell", count=1, lease_seconds=10))


def test_a_paused_study_says_why_it_gives_nothing(store: Store, create: Callable[..., Any]) -> None:
    create(objective=None, max_parallel_trials=2)
    assert len(ask(store, 3).trials) == 2
    assert ask(store).reason == "2 trials run, and max_parallel_trials is 2."
    store.lifecycle.pause("demo")
    assert ask(store).reason == "The study is paused: Paused on request."


def test_the_same_key_gets_the_same_answer_also_after_the_end(
    store: Store, create: Callable[..., Any]
) -> None:
    create(objective=None, n_trials=5)
    first = ask(store, 2, key="k", fingerprint="f")
    assert [trial.number for trial in first.trials] == [0, 1]
    assert ask(store, 2, key="k", fingerprint="f").trials == first.trials
    for trial in first.trials:
        store.claims.complete(lease_of(trial), 1.0, {})
    assert ask(store, 2, key="k", fingerprint="f").trials == first.trials
    with pytest.raises(IdempotencyKeyReused):
        ask(store, 3, key="k", fingerprint="g")
    assert [trial.number for trial in ask(store, key="l", fingerprint="f").trials] == [2]


def test_the_same_key_twice_at_once_takes_one_trial(
    store: Store, create: Callable[..., Any]
) -> None:
    create(objective=None, n_trials=8)
    with ThreadPoolExecutor(4) as pool:
        asked = list(pool.map(lambda _: ask(store, 2, key="k", fingerprint="f"), range(4)))
    assert {tuple(trial.number for trial in one.trials) for one in asked} == {(0, 1)}
    assert len({trial.token for one in asked for trial in one.trials}) == 2


def test_an_answer_without_trials_is_not_kept(store: Store, create: Callable[..., Any]) -> None:
    create(objective=None)
    store.lifecycle.pause("demo")
    assert not ask(store, key="k", fingerprint="f").trials
    store.lifecycle.resume("demo")
    assert ask(store, key="k", fingerprint="f").trials


def test_a_report_renews_the_lease_by_its_own_length(
    store: Store, create: Callable[..., Any], clock: Clock
) -> None:
    create(objective=None)
    (trial,) = ask(store).trials
    clock.advance(90)
    store.claims.report(lease_of(trial), Measurement(step=0, value=1.0), {})
    clock.advance(90)
    store.claims.keep(lease_of(trial))
    clock.advance(90)
    store.claims.reap()
    assert store.claims.complete(lease_of(trial), 1.0, {}).state is TrialState.COMPLETE


def test_a_trial_that_is_not_heard_of_again_is_handed_out_anew(
    store: Store, create: Callable[..., Any], clock: Clock
) -> None:
    create(objective=None, n_trials=1, retry_backoff_seconds=0.0, max_attempts=2)
    (lost,) = ask(store).trials
    clock.advance(101)
    store.claims.reap()
    (again,) = ask(store).trials
    assert (again.number, again.attempt, again.params) == (0, 2, lost.params)
    attempt = store.trials.get("demo", 0).attempts[0]
    assert attempt.message == "The worker was silent for 100 s."
    clock.advance(101)
    store.claims.reap()
    assert store.trials.get("demo", 0).state is TrialState.FAIL
    with pytest.raises(TrialFinished):
        store.claims.complete(lease_of(again), 1.0, {})


def test_many_ask_at_once_and_each_number_is_given_once(
    store: Store, create: Callable[..., Any]
) -> None:
    create(objective=None, n_trials=20)

    def run(_: int) -> list[int]:
        numbers: list[int] = []
        while trials := ask(store, 2).trials:
            for trial in trials:
                store.claims.complete(lease_of(trial), float(trial.number), {})
                numbers.append(trial.number)
        return numbers

    with ThreadPoolExecutor(8) as pool:
        given = Counter(number for numbers in pool.map(run, range(8)) for number in numbers)
    assert given == Counter(range(20))
    assert store.studies.get("demo").state is StudyState.COMPLETED
