"""The first promise on every backend: no trial is lost, and one attempt of it can write."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import optuna
import pytest
from optuna.storages import RDBStorage

from hpo.errors import InvalidField, LeaseLost, NotFound, StepReported, TrialFinished
from hpo.objective import Descriptor
from hpo.space import Categorical, FloatRange, IntRange
from hpo.study import Algorithm, Direction, OnFault, StudyDefinition, StudyState, ValueRule
from hpo.trial import Decision, Failure, Measurement, Reason, TrialState, Verdict
from storage import tables as t
from storage.records import Claimed, Lease, LogChunk, WorkerRegistration
from storage.store import Store, open_store
from tests.builders import definition, lease_of, register, request
from tests.clock import Clock

Create = Callable[..., StudyDefinition]
Claim = Callable[[], Claimed]


def await_fact(fact: Callable[[], Any], seconds: float = 15.0) -> Any:
    """Waits until `fact` is true and answers it."""
    give_up_at = time.monotonic() + seconds
    while not (found := fact()):
        assert time.monotonic() < give_up_at, "waited in vain"
        time.sleep(0.02)
    return found


def expire(store: Store) -> None:
    """Waits until the reaper has found one expired lease."""
    await_fact(lambda: store.claims.reap())


def measurement(step: int, value: float) -> Measurement:
    return Measurement(step=step, value=value)


def test_claims_spend_the_budget_exactly(
    store: Store, create: Create, worker_id: uuid.UUID
) -> None:
    create(n_trials=20)

    def work() -> list[int]:
        numbers = []
        while (claimed := store.claims.claim(request(worker_id))) is not None:
            numbers.append(claimed.number)
            store.claims.complete(lease_of(claimed), 1.0, {})
        return numbers

    with ThreadPoolExecutor(8) as threads:
        claimed = [n for batch in threads.map(lambda _: work(), range(8)) for n in batch]
    assert sorted(claimed) == list(range(20))
    study = store.studies.get("demo")
    assert (study.state, study.n_started) == (StudyState.COMPLETED, 20)
    assert study.counts[TrialState.COMPLETE] == 20


@pytest.mark.parametrize("sampler", ["random", "grid"])
def test_two_services_and_plain_optuna_number_the_trials_of_one_study(
    postgres_url: str, sampler: str
) -> None:
    """On SQLite there is one service."""
    stores = [open_store(postgres_url) for _ in range(2)]
    for opened in stores:
        opened.prepare()
    worker_id, space = register(stores[0]), {"x": IntRange(low=0, high=99)}
    made = definition(n_trials=16, space=space, sampler=Algorithm(name=sampler))
    stores[0].studies.create(made, given=frozenset())
    stock = RDBStorage(postgres_url)
    study = optuna.load_study(study_name="demo", storage=stock)

    def work(opened: Store) -> list[Claimed]:
        mine = []
        while (claimed := opened.claims.claim(request(worker_id))) is not None:
            mine.append(claimed)
            opened.claims.complete(lease_of(claimed), 1.0, {})
        return mine

    with ThreadPoolExecutor(7) as threads:
        asked = threads.submit(lambda: [study.ask().number for _ in range(8)])
        found = [one for batch in threads.map(work, stores * 3) for one in batch]
        numbers = [*asked.result(), *(claimed.number for claimed in found)]
    assert sorted(numbers) == list(range(24))
    if sampler == "grid":
        assert len({claimed.params["x"] for claimed in found}) == 16
    stock.remove_session()
    stock.engine.dispose()
    for opened in stores:
        opened.close()


def test_a_repeated_claim_gets_the_same_trial(
    store: Store, create: Create, worker_id: uuid.UUID
) -> None:
    create(n_trials=5)
    asked = request(worker_id)
    first, again = store.claims.claim(asked), store.claims.claim(asked)
    assert first == again
    assert store.studies.get("demo").n_started == 1


def test_the_same_claim_in_two_threads_gets_one_trial(
    store: Store, create: Create, worker_id: uuid.UUID
) -> None:
    create(n_trials=5)
    asked = request(worker_id)
    with ThreadPoolExecutor(4) as threads:
        claims = list(threads.map(lambda _: store.claims.claim(asked), range(4)))
    assert len({claimed.token for claimed in claims if claimed is not None}) == 1
    assert store.studies.get("demo").n_started == 1


def test_max_parallel_trials_holds(
    store: Store, create: Create, claim: Claim, worker_id: uuid.UUID
) -> None:
    create(n_trials=5, max_parallel_trials=2)
    first, _second = claim(), claim()
    assert store.claims.claim(request(worker_id)) is None
    store.claims.complete(lease_of(first), 1.0, {})
    assert store.claims.claim(request(worker_id)) is not None


def test_only_allowed_modules_are_claimed(store: Store, create: Create) -> None:
    create(objective="mine.train:run")
    assert store.claims.claim(request(register(store, allow=("objectives.*",)))) is None
    assert store.claims.claim(request(register(store, allow=("mine.*",)))) is not None


def test_an_unregistered_worker_is_told_to_register(store: Store, create: Create) -> None:
    create()
    with pytest.raises(NotFound, match="register it again"):
        store.claims.claim(request(uuid.uuid4()))
    with pytest.raises(NotFound, match="register it again"):
        store.claims.renew(uuid.uuid4(), ["t"])


def test_as_many_waiting_claims_are_called_as_there_are_trials(
    store: Store, create: Create, claim: Claim, worker_id: uuid.UUID
) -> None:
    other = register(store, allow=("other",))
    waiting = [request(worker) for worker in (worker_id, other, worker_id, worker_id)]
    places = {asked.claim_key: place for place, asked in enumerate(waiting)}

    def called() -> list[int]:
        return sorted(places[key] for key in store.claims.callable_claims(waiting))

    assert called() == []
    create(n_trials=3, max_parallel_trials=2, retry_backoff_seconds=0)
    assert called() == [0, 2]
    first = claim()
    assert called() == [0]
    claim()
    assert called() == []
    store.claims.release(lease_of(first))
    assert called() == [0]
    repeated = waiting[3]
    assert store.claims.claim(repeated) is not None
    assert called() == [3]
    create(name="second", objective="other:f")
    assert called() == [1, 3]
    waiting.append(request(uuid.uuid4()))  # of a worker that has to register again
    places[waiting[4].claim_key] = 4
    assert called() == [1, 3, 4]


def test_priority_goes_first_then_the_study_with_fewest_running(
    store: Store, create: Create, claim: Claim
) -> None:
    create(name="low", priority=0)
    create(name="high", priority=1, n_trials=1)
    create(name="other", priority=0)
    assert [claim().study_name for _ in range(4)] == ["high", "low", "other", "low"]


def test_a_waiting_trial_of_another_program_is_taken_first_with_its_parameters(
    store: Store, create: Create, claim: Claim, stock: RDBStorage
) -> None:
    create()
    study = optuna.load_study(study_name="demo", storage=stock)
    study.enqueue_trial({"x": 0.25, "kind": "b"})
    claimed = claim()
    assert claimed.params == {"x": 0.25, "kind": "b"}
    assert store.studies.get("demo").n_started == 1


def test_parameters_are_in_optunas_tables_before_the_trial_runs(
    store: Store, create: Create, claim: Claim, stock: RDBStorage
) -> None:
    create()
    claimed = claim()
    (trial,) = optuna.load_study(study_name="demo", storage=stock).trials
    assert trial.params == claimed.params
    assert trial.state.name == "RUNNING"


def stale_calls(store: Store, lease: Lease) -> dict[str, Callable[[], object]]:
    return {
        "start": lambda: store.claims.start(lease, None),
        "suggest": lambda: store.claims.suggest(lease, "y", FloatRange(low=0, high=1)),
        "report": lambda: store.claims.report(lease, measurement(7, 0.1), {"late": True}),
        "complete": lambda: store.claims.complete(lease, 0.1, {"late": True}),
        "prune": lambda: store.claims.prune(lease, {"late": True}),
        "fail": lambda: store.claims.fail(lease, Failure(reason=Reason.OBJECTIVE_ERROR), {}),
        "release": lambda: store.claims.release(lease),
    }


def test_a_stale_token_writes_nothing(store: Store, create: Create, claim: Claim) -> None:
    create(retry_backoff_seconds=0)
    stale = lease_of(claim())
    expire(store)
    await_fact(lambda: store.trials.get("demo", 0).awaiting_attempt)
    current = claim()
    assert (current.number, current.attempt) == (0, 2)
    before = store.trials.get("demo", 0)
    for name, call in stale_calls(store, stale).items():
        with pytest.raises(LeaseLost):
            call()
        assert store.trials.get("demo", 0) == before, name


def test_a_finished_trial_is_not_written_to(store: Store, create: Create, claim: Claim) -> None:
    create()
    lease = lease_of(claim())
    store.claims.complete(lease, 0.5, {})
    before = store.trials.get("demo", 0)
    for name, call in stale_calls(store, lease).items():
        if name == "complete":
            continue  # the same call again: its first answer, tested below
        with pytest.raises(TrialFinished):
            call()
        assert store.trials.get("demo", 0) == before, name


def test_settling_calls_are_idempotent(store: Store, create: Create, claim: Claim) -> None:
    create(n_trials=4, retry_backoff_seconds=0)
    calls: list[Callable[[Lease], object]] = [
        lambda lease: store.claims.complete(lease, 0.5, {"a": 1}),
        lambda lease: store.claims.prune(lease, {}),
        lambda lease: store.claims.fail(lease, Failure(reason=Reason.OBJECTIVE_ERROR), {}),
        lambda lease: store.claims.release(lease),
    ]
    for call in calls:
        lease = lease_of(claim())
        assert call(lease) == call(lease)


def test_a_token_of_one_trial_does_not_open_another(
    store: Store, create: Create, claim: Claim
) -> None:
    create(n_trials=3)
    first, second = lease_of(claim()), lease_of(claim())
    crossed = Lease(study_name="demo", number=second.number, token=first.token)
    with pytest.raises(LeaseLost):
        store.claims.complete(crossed, 1.0, {})
    assert store.studies.get("demo").counts[TrialState.RUNNING] == 2


def test_a_lost_worker_leads_to_another_attempt_of_the_same_trial(
    store: Store, create: Create, claim: Claim
) -> None:
    create(n_trials=1, retry_backoff_seconds=0)
    first = claim()
    store.claims.report(lease_of(first), measurement(0, 0.5), {})
    store.claims.report(lease_of(first), measurement(1, 0.4), {})
    expire(store)
    waiting = store.trials.get("demo", 0)
    assert (waiting.state, waiting.awaiting_attempt) == (TrialState.RUNNING, True)
    assert store.studies.get("demo").awaiting_attempt == 1
    second = claim()
    assert (second.number, second.attempt, second.params) == (0, 2, first.params)
    assert second.seed == first.seed
    store.claims.start(lease_of(second), 0)
    assert [point.step for point in store.trials.get("demo", 0).curve] == [0]
    store.claims.report(lease_of(second), measurement(1, 0.3), {})
    store.claims.complete(lease_of(second), 0.3, {})
    trial = store.trials.get("demo", 0)
    assert [(p.step, p.value, p.attempt) for p in trial.curve] == [(0, 0.5, 1), (1, 0.3, 2)]
    assert [(a.outcome, a.reason) for a in trial.attempts] == [
        ("failed", Reason.LOST),
        ("complete", None),
    ]
    assert trial.attempts[1].resumed_from_step == 0
    assert store.studies.get("demo").state is StudyState.COMPLETED


def test_attempts_are_limited_and_the_last_one_ends_the_trial(
    store: Store, create: Create, claim: Claim
) -> None:
    create(n_trials=1, retry_backoff_seconds=0, max_attempts=2)
    for _ in range(2):
        failure = Failure(reason=Reason.DEVICE_ERROR, message="device-side assert")
        store.claims.fail(lease_of(claim()), failure, {})
    trial = store.trials.get("demo", 0)
    assert (trial.state, trial.reason) == (TrialState.FAIL, Reason.DEVICE_ERROR)
    assert len(trial.attempts) == 2


def test_releases_do_not_count_as_failed_attempts(
    store: Store, create: Create, claim: Claim
) -> None:
    create(n_trials=1, max_attempts=1)
    for _ in range(4):
        assert store.claims.release(lease_of(claim())).awaiting_attempt
    store.claims.complete(lease_of(claim()), 1.0, {})
    assert store.trials.get("demo", 0).state is TrialState.COMPLETE


def test_releases_without_progress_are_limited(store: Store, create: Create, claim: Claim) -> None:
    create(n_trials=1)
    while store.claims.release(lease_of(claim())).awaiting_attempt:
        assert len(store.trials.get("demo", 0).attempts) < 20
    assert store.trials.get("demo", 0).reason is Reason.PREEMPTED


def test_renewing_keeps_a_lease_and_names_the_lost_ones(
    store: Store, create: Create, claim: Claim, worker_id: uuid.UUID
) -> None:
    create()
    held = claim()
    give_up_at = time.monotonic() + 2.5  # longer than a lease
    while time.monotonic() < give_up_at:
        assert store.claims.renew(worker_id, [held.token, "stranger"]) == ["stranger"]
        assert store.claims.reap() == 0
        time.sleep(0.1)
    store.claims.complete(lease_of(held), 1.0, {})


def test_an_expired_lease_that_nobody_reaped_still_works(
    store: Store, create: Create, claim: Claim, worker_id: uuid.UUID
) -> None:
    create()
    held = claim()
    time.sleep(1.6)
    assert store.claims.renew(worker_id, [held.token]) == []
    assert store.claims.reap() == 0
    assert store.claims.complete(lease_of(held), 1.0, {}).state is TrialState.COMPLETE


def test_a_claimant_that_died_while_sampling_costs_no_trial_and_no_attempt(
    store: Store, create: Create, worker_id: uuid.UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(n_trials=1)
    died = threading.Event()

    def die(*_: object) -> None:
        died.set()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("storage.search.sample", die)
        with pytest.raises(KeyboardInterrupt):
            store.claims.claim(request(worker_id))
    assert died.is_set()
    claimed = await_fact(lambda: store.claims.claim(request(worker_id)))
    assert (claimed.number, claimed.attempt) == (0, 1)
    assert len(store.trials.get("demo", 0).attempts) == 1
    assert store.studies.get("demo").n_started == 1


def test_a_trial_that_is_handed_over_late_is_not_taken_away(postgres_url: str) -> None:
    """On SQLite there is one writer at a time, so nothing comes in between."""
    store = open_store(postgres_url)
    store.prepare()
    worker_id = register(store)
    store.studies.create(definition(), given=frozenset())
    held = store.claims.claim(request(worker_id))
    assert held is not None
    clock = Clock(postgres_url)
    lease = t.hpo_lease.update().where(t.hpo_lease.c.token == held.token)
    with clock.engine.begin() as connection:  # as it stood before it was handed over
        connection.execute(lease.values(phase="sampling"))
    clock.expire_sampling()
    with ThreadPoolExecutor(1) as threads:
        with clock.engine.begin() as connection:
            connection.execute(lease.values(phase="running"))
            other = threads.submit(store.claims.claim, request(worker_id))
            await_fact(lambda: clock.is_anyone_waiting())
        claimed = other.result(timeout=30)
    assert claimed is not None
    assert claimed.number == held.number + 1
    store.claims.complete(lease_of(held), 1.0, {})
    store.close()


def test_a_sampler_that_fails_ends_the_study_with_the_cause(
    store: Store, create: Create, worker_id: uuid.UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(n_trials=5)

    def fail(*_: object) -> None:
        raise RuntimeError("singular matrix")

    monkeypatch.setattr("storage.search.sample", fail)
    assert store.claims.claim(request(worker_id)) is None
    study = store.studies.get("demo")
    assert study.state is StudyState.FAILED
    assert "singular matrix" in (study.reason or "")
    assert study.counts[TrialState.RUNNING] == 0


def test_reports_are_idempotent_by_step(store: Store, create: Create, claim: Claim) -> None:
    create()
    lease = lease_of(claim())
    first = store.claims.report(lease, measurement(0, 0.5), {})
    assert store.claims.report(lease, measurement(0, 0.5), {}) == first
    with pytest.raises(StepReported, match=r"0\.5"):
        store.claims.report(lease, measurement(0, 0.6), {})
    assert [point.value for point in store.trials.get("demo", 0).curve] == [0.5]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e-300, 0.1 + 0.2])
def test_values_round_trip_bit_for_bit(
    store: Store, create: Create, claim: Claim, stock: RDBStorage, value: float
) -> None:
    create()
    lease = lease_of(claim())
    store.claims.report(lease, Measurement(step=3, value=value, metrics={"m": value}), {"a": 1})
    (point,) = store.trials.get("demo", 0).curve
    assert repr(point.value) == repr(value)
    assert repr(point.metrics["m"]) == repr(value)
    (trial,) = optuna.load_study(study_name="demo", storage=stock).trials
    assert repr(trial.intermediate_values[3]) == repr(value)
    assert trial.user_attrs == {"a": 1}


def test_a_step_beyond_the_last_is_refused(store: Store, create: Create, claim: Claim) -> None:
    create(max_steps=3)
    lease = lease_of(claim())
    store.claims.report(lease, measurement(2, 0.5), {})
    with pytest.raises(InvalidField, match="max_steps"):
        store.claims.report(lease, measurement(3, 0.5), {})
    with pytest.raises(ValueError, match="step"):
        measurement(-1, 0.5)


def run_curve(store: Store, claimed: Claimed, values: list[float]) -> Verdict:
    """Reports until told to end; settles the trial."""
    lease = lease_of(claimed)
    for step, value in enumerate(values):
        decision = store.claims.report(lease, measurement(step, value), {})
        if decision.verdict is Verdict.PRUNE:
            store.claims.prune(lease, {})
            return Verdict.PRUNE
    store.claims.complete(lease, values[-1], {})
    return Verdict.CONTINUE


def test_the_median_pruner_prunes_and_its_numbers_are_kept(
    store: Store, create: Create, claim: Claim
) -> None:
    create(n_trials=7)
    for index in range(5):
        assert run_curve(store, claim(), [1.0 + index, 0.5 + index]) is Verdict.CONTINUE
    assert run_curve(store, claim(), [9.0, 9.0]) is Verdict.PRUNE
    trial = store.trials.get("demo", 5)
    assert (trial.state, trial.value, trial.last_step) == (TrialState.PRUNED, 9.0, 0)
    assert trial.prune == {
        "pruner": "median",
        "step": 0,
        "value": 9.0,
        "median": 3.0,
        "n_trials": 5,
    }
    assert run_curve(store, claim(), [2.0, 1.0]) is Verdict.CONTINUE


def test_a_trial_that_was_told_to_prune_is_pruned_when_its_worker_dies(
    store: Store, create: Create, claim: Claim
) -> None:
    create(n_trials=6)
    for index in range(5):
        run_curve(store, claim(), [1.0 + index])
    told = claim()
    assert store.claims.report(lease_of(told), measurement(0, 9.0), {}).verdict is Verdict.PRUNE
    expire(store)
    assert store.trials.get("demo", 5).state is TrialState.PRUNED
    assert store.studies.get("demo").state is StudyState.COMPLETED


def test_a_verdict_that_comes_after_the_lease_was_lost_is_told_to_nobody(
    store: Store, create: Create, claim: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    pruner = Algorithm(name="threshold", options={"upper": 9.0})  # one that is asked outside
    create(n_trials=1, retry_backoff_seconds=0, pruner=pruner)
    slow = claim()
    successor: list[Claimed] = []

    def decide_slowly(*_: object) -> Decision:
        expire(store)
        successor.append(claim())
        return Decision(verdict=Verdict.PRUNE, evidence={"step": 0, "value": 1.0})

    with monkeypatch.context() as patch:
        patch.setattr("storage.search.decide", decide_slowly)
        with pytest.raises(LeaseLost):
            store.claims.report(lease_of(slow), measurement(0, 1.0), {})
    settled = store.claims.release(lease_of(successor[0]))
    assert (settled.state, settled.awaiting_attempt) == (TrialState.RUNNING, True)


@pytest.mark.parametrize(("resumed_from_step", "n_rungs"), [(None, 0), (0, 0), (1, 1), (2, 2)])
def test_rungs_of_later_steps_go_with_the_steps(
    store: Store,
    create: Create,
    claim: Claim,
    stock: RDBStorage,
    resumed_from_step: int | None,
    n_rungs: int,
) -> None:
    options = {"min_resource": 1, "reduction_factor": 2, "min_early_stopping_rate": 0}
    pruner = Algorithm(name="successive_halving", options=options)
    create(n_trials=1, retry_backoff_seconds=0, pruner=pruner)
    first = claim()
    for step in range(4):
        store.claims.report(lease_of(first), measurement(step, 1 - step / 10), {})
    expire(store)
    second = claim()
    store.claims.start(lease_of(second), resumed_from_step)
    (trial,) = optuna.load_study(study_name="demo", storage=stock).trials
    rungs = [key for key in trial.system_attrs if key.startswith("completed_rung_")]
    assert len(rungs) == n_rungs


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    ("policy", "state"), [(OnFault.PRUNE, TrialState.PRUNED), (OnFault.FAIL, TrialState.FAIL)]
)
def test_a_diverged_report_ends_the_trial_by_policy(
    store: Store,
    create: Create,
    claim: Claim,
    value: float,
    policy: OnFault,
    state: TrialState,
) -> None:
    create(on_diverged=policy)
    lease = lease_of(claim())
    store.claims.report(lease, measurement(0, 0.5), {})
    decision = store.claims.report(lease, measurement(1, value), {})
    assert (decision.verdict, decision.reason) == (Verdict.PRUNE, Reason.DIVERGED)
    settled = store.claims.prune(lease, {})
    assert (settled.state, settled.reason) == (state, Reason.DIVERGED)


def test_a_diverged_trial_that_goes_on_is_not_complete(
    store: Store, create: Create, claim: Claim
) -> None:
    create()
    lease = lease_of(claim())
    store.claims.report(lease, measurement(0, float("nan")), {})
    settled = store.claims.complete(lease, -1.0, {})
    assert (settled.state, settled.reason) == (TrialState.PRUNED, Reason.DIVERGED)
    assert store.studies.get("demo").best is None


@pytest.mark.parametrize("reason", [Reason.DIVERGED, Reason.OUT_OF_MEMORY])
@pytest.mark.parametrize(
    ("policy", "state"), [(OnFault.PRUNE, TrialState.PRUNED), (OnFault.FAIL, TrialState.FAIL)]
)
def test_faults_of_the_parameters_end_by_policy(
    store: Store, create: Create, claim: Claim, reason: Reason, policy: OnFault, state: TrialState
) -> None:
    create(on_diverged=policy, on_out_of_memory=policy)
    settled = store.claims.fail(lease_of(claim()), Failure(reason=reason, message="why"), {})
    assert (settled.state, settled.awaiting_attempt) == (state, False)
    assert store.trials.get("demo", 0).reason is reason


@pytest.mark.parametrize(
    ("rule", "direction", "expected"),
    [
        (ValueRule.LAST, Direction.MAXIMIZE, 0.80),
        (ValueRule.BEST, Direction.MAXIMIZE, 0.95),
        (ValueRule.BEST, Direction.MINIMIZE, 0.80),
    ],
)
def test_the_value_rule_picks_the_value_when_the_objective_returns_none(
    store: Store,
    create: Create,
    claim: Claim,
    rule: ValueRule,
    direction: Direction,
    expected: float,
) -> None:
    create(value_rule=rule, direction=direction)
    lease = lease_of(claim())
    for step, value in enumerate([0.9, 0.95, 0.80]):
        store.claims.report(lease, measurement(step, value), {})
    store.claims.complete(lease, None, {})
    assert store.trials.get("demo", 0).value == expected


@pytest.mark.parametrize(
    ("first", "same"), [(0.5, 0.5), (float("nan"), float("nan")), (1e300, 1e300), (-0.0, 0.0)]
)
def test_a_completion_told_again_gets_its_first_answer(
    store: Store, create: Create, claim: Claim, first: float, same: float
) -> None:
    create()
    lease = lease_of(claim())
    settled = store.claims.complete(lease, first)
    assert store.claims.complete(lease, same) == settled


@pytest.mark.parametrize(
    ("first", "other", "said"),
    [
        (0.5, 0.25, "value: the trial was completed with 0.5, which stands; got 0.25"),
        (0.5, None, "value: the trial was completed with 0.5, which stands; got none"),
        (None, 0.5, "value: the trial was completed with none, which stands; got 0.5"),
        (float("nan"), 1.0, "completed with NaN"),
        (0.5, (0.5, 0.5), "values: the trial was completed with 0.5, which stands; got 0.5, 0.5"),
    ],
)
def test_a_completion_with_another_value_is_refused(
    store: Store, create: Create, claim: Claim, first: Any, other: Any, said: str
) -> None:
    create()
    lease = lease_of(claim())
    store.claims.report(lease, measurement(0, 0.5), {})
    store.claims.complete(lease, first)
    before = store.trials.get("demo", 0)
    with pytest.raises(TrialFinished, match=said) as refused:
        store.claims.complete(lease, other, {"note": "lost"})
    (fault,) = refused.value.facts["errors"]
    assert fault["field"] in ("value", "values")
    assert store.trials.get("demo", 0) == before


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_non_finite_result_is_diverged_and_never_best(
    store: Store, create: Create, claim: Claim, value: float
) -> None:
    create(direction=Direction.MAXIMIZE)
    settled = store.claims.complete(lease_of(claim()), value, {})
    assert (settled.state, settled.reason) == (TrialState.PRUNED, Reason.DIVERGED)
    assert store.studies.get("demo").best is None


def test_an_objective_may_suggest_by_running(store: Store, create: Create, claim: Claim) -> None:
    create(space=None, n_trials=2, sampler=Algorithm(name="tpe"))
    for _ in range(2):
        claimed = claim()
        lease = lease_of(claimed)
        assert claimed.params == {}
        x = store.claims.suggest(lease, "x", FloatRange(low=0, high=1))
        assert isinstance(x, float)
        assert 0 <= x <= 1
        assert store.claims.suggest(lease, "x", FloatRange(low=0, high=1)) == x
        with pytest.raises(InvalidField):
            store.claims.suggest(lease, "x", Categorical(choices=("a", "b")))
        store.claims.complete(lease, x, {})
        assert store.trials.get("demo", claimed.number).params == {"x": x}


def test_a_declared_space_is_not_extended(store: Store, create: Create, claim: Claim) -> None:
    create()
    with pytest.raises(InvalidField, match="declared"):
        store.claims.suggest(lease_of(claim()), "y", FloatRange(low=0, high=1))


def test_a_trial_that_another_program_ended_frees_its_slot(
    store: Store, create: Create, claim: Claim, stock: RDBStorage
) -> None:
    create(n_trials=1)
    claimed = claim()
    optuna.load_study(study_name="demo", storage=stock).tell(claimed.number, 0.7)
    with pytest.raises(TrialFinished):
        store.claims.report(lease_of(claimed), measurement(0, 0.1), {})
    assert store.claims.reap() == 1
    study = store.studies.get("demo")
    assert (study.state, study.best and study.best.value) == (StudyState.COMPLETED, 0.7)


def test_a_study_that_another_program_deleted_is_swept_up(
    store: Store, create: Create, claim: Claim, stock: RDBStorage
) -> None:
    create()
    claimed = claim()
    optuna.delete_study(study_name="demo", storage=stock)
    store.deleting.purge()
    with pytest.raises(NotFound):
        store.studies.get("demo")
    with pytest.raises(NotFound):
        store.claims.complete(lease_of(claimed), 1.0, {})
    create()
    assert claim().number == 0


def test_logs_are_kept_in_order_once_and_within_a_limit(
    store: Store, create: Create, claim: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    create()
    lease = lease_of(claim())
    chunks = [LogChunk(sequence=n, text=f"line {n}\x00\n") for n in range(3)]
    store.logs.append(lease, chunks[:2])
    store.logs.append(lease, chunks)
    page = store.logs.page("demo", 0, after=None, limit=2)
    assert [line.text for line in page.items] == ["line 0�\n", "line 1�\n"]
    assert [
        line.sequence for line in store.logs.page("demo", 0, after=page.next, limit=9).items
    ] == [2]
    store.claims.complete(lease, 1.0, {})
    monkeypatch.setattr("storage.logs.MAX_LOG_CHARACTERS", 100)
    store.logs.append(lease, [LogChunk(sequence=n, text="x" * 90) for n in (3, 4)])
    texts = [line.text for line in store.logs.page("demo", 0, after=None, limit=9).items]
    assert len(texts) == 4
    assert "full" in texts[-1]
    with pytest.raises(LeaseLost):
        store.logs.append(Lease(study_name="demo", number=0, token="other"), chunks)


def test_workers_offer_objectives_until_they_fall_silent(store: Store) -> None:
    worker_id = uuid.uuid4()
    descriptor = Descriptor(
        space={"x": FloatRange(low=0, high=1)}, direction=Direction.MAXIMIZE, max_steps=5
    )
    registration = WorkerRegistration(
        id=worker_id,
        name="node:1",
        version="0.1.0",
        slots=1,
        devices=["cpu"],
        allow=["demo"],
        objectives={"demo:objective": descriptor},
    )
    times = store.workers.register(registration)
    store.workers.register(registration)
    assert times.lease_seconds >= 3 * times.heartbeat_seconds
    (offer,) = store.workers.offers()
    assert (offer.objective, offer.descriptor, offer.n_workers) == (
        "demo:objective",
        descriptor,
        1,
    )
    await_fact(lambda: store.workers.offers() == [])
    assert store.workers.descriptor("demo:objective") == descriptor
    (record,) = store.workers.page()
    assert not record.is_alive
