"""The life of a study on every backend: its states, its limits, and how it can end."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from hpo.errors import Conflict, InvalidField, NotFound
from hpo.space import IntRange
from hpo.study import Algorithm, StudyDefinition, StudyState
from hpo.trial import Failure, Measurement, Reason, TrialState, Verdict
from storage.records import Claimed
from storage.store import Store, open_store
from tests.builders import lease_of, request
from tests.clock import Clock

Create = Callable[..., StudyDefinition]
Claim = Callable[[], Claimed]

TIMEOUT = 100.0
OBJECTIVE_ERROR = Failure(reason=Reason.OBJECTIVE_ERROR, message="boom")
LOST = Failure(reason=Reason.LOST, message="silent")


@pytest.fixture
def clock(database_url: str) -> Clock:
    return Clock(database_url)


def report(store: Store, claimed: Claimed, step: int = 0) -> tuple[Verdict, Reason | None]:
    decision = store.claims.report(lease_of(claimed), Measurement(step=step, value=0.5), {})
    return decision.verdict, decision.reason


def state_of(store: Store, number: int) -> tuple[TrialState, Reason | None]:
    trial = store.trials.get("demo", number)
    return trial.state, trial.reason


def complete_all(store: Store, worker_id: uuid.UUID) -> int:
    """Serves the study until it has nothing more to give; answers how many trials it gave."""
    for n_trials in range(100):
        claimed = store.claims.claim(request(worker_id))
        if claimed is None:
            return n_trials
        store.claims.complete(lease_of(claimed), 1.0, {})
    raise AssertionError("the study never ends")


# Each of these brings a study with one running trial to its end.


def end_by_trials(store: Store, held: Claimed, claim: Claim, clock: Clock) -> None:
    store.claims.complete(lease_of(held), 1.0, {})
    for _ in range(5):
        store.claims.complete(lease_of(claim()), 1.0, {})


def end_by_failures(store: Store, held: Claimed, claim: Claim, clock: Clock) -> None:
    store.claims.complete(lease_of(held), 1.0, {})
    for _ in range(3):
        store.claims.fail(lease_of(claim()), OBJECTIVE_ERROR, {})


def end_by_first_failures(store: Store, held: Claimed, claim: Claim, clock: Clock) -> None:
    store.lifecycle.amend("demo", {"max_failed_trials": None})
    store.claims.fail(lease_of(held), OBJECTIVE_ERROR, {})
    for _ in range(4):
        store.claims.fail(lease_of(claim()), OBJECTIVE_ERROR, {})


def end_by_failures_only(store: Store, held: Claimed, claim: Claim, clock: Clock) -> None:
    store.lifecycle.amend("demo", {"max_failed_trials": None, "n_trials": 2})
    store.claims.fail(lease_of(held), OBJECTIVE_ERROR, {})
    store.claims.fail(lease_of(claim()), OBJECTIVE_ERROR, {})


def end_by_stop(store: Store, held: Claimed, claim: Claim, clock: Clock) -> None:
    assert store.lifecycle.stop("demo").state is StudyState.STOPPING
    store.claims.complete(lease_of(held), 1.0, {})


def end_by_stop_and_a_lost_worker(store: Store, held: Claimed, claim: Claim, clock: Clock) -> None:
    store.lifecycle.stop("demo")
    clock.expire(held.token)
    assert store.claims.reap() == 1


def end_by_stop_of_a_paused_study(store: Store, held: Claimed, claim: Claim, clock: Clock) -> None:
    store.lifecycle.pause("demo")
    store.claims.release(lease_of(held))
    store.lifecycle.stop("demo")


def end_by_cancel(store: Store, held: Claimed, claim: Claim, clock: Clock) -> None:
    store.lifecycle.cancel("demo")
    assert report(store, held) == (Verdict.STOP, Reason.CANCELLED)
    store.claims.prune(lease_of(held), {})


def end_by_time(store: Store, held: Claimed, claim: Claim, clock: Clock) -> None:
    clock.age(TIMEOUT)
    assert report(store, held) == (Verdict.STOP, Reason.TIMED_OUT)
    store.claims.prune(lease_of(held), {})


def end_by_time_seen_by_the_reaper(store: Store, held: Claimed, claim: Claim, clock: Clock) -> None:
    store.claims.fail(lease_of(held), LOST, {})
    clock.age(TIMEOUT)
    store.claims.reap()


def end_by_amendment(store: Store, held: Claimed, claim: Claim, clock: Clock) -> None:
    store.claims.complete(lease_of(held), 1.0, {})
    store.lifecycle.amend("demo", {"n_trials": 1})


ENDS = [
    (end_by_trials, StudyState.COMPLETED, "All 6 trials have ended."),
    (end_by_failures, StudyState.FAILED, "3 trials failed; max_failed_trials is 3"),
    (end_by_first_failures, StudyState.FAILED, "5 trials failed; no trial has ended otherwise"),
    (end_by_failures_only, StudyState.FAILED, "Every trial failed. The last one: boom"),
    (end_by_stop, StudyState.STOPPED, "Stopped on request."),
    (end_by_stop_and_a_lost_worker, StudyState.STOPPED, "Stopped on request."),
    (end_by_stop_of_a_paused_study, StudyState.STOPPED, "Stopped on request."),
    (end_by_cancel, StudyState.STOPPED, "Cancelled on request."),
    (end_by_time, StudyState.COMPLETED, "The study has run for its timeout_seconds (100)."),
    (end_by_time_seen_by_the_reaper, StudyState.COMPLETED, "its timeout_seconds (100)."),
    (end_by_amendment, StudyState.COMPLETED, "All 1 trials have ended."),
]


@pytest.mark.parametrize(("end", "state", "reason"), ENDS, ids=[end.__name__ for end, *_ in ENDS])
def test_a_study_ends_in_the_right_state_with_a_reason(
    store: Store,
    create: Create,
    claim: Claim,
    clock: Clock,
    worker_id: uuid.UUID,
    end: Callable[..., None],
    state: StudyState,
    reason: str,
) -> None:
    create(n_trials=6, max_failed_trials=3, timeout_seconds=TIMEOUT)
    end(store, claim(), claim, clock)
    study = store.studies.get("demo")
    assert (study.state, study.counts[TrialState.RUNNING]) == (state, 0)
    assert study.reason is not None
    assert reason in study.reason
    assert study.ended_at is not None
    # Workers that come to an ended study get nothing, and it does not change.
    assert store.claims.claim(request(worker_id)) is None
    store.claims.reap()
    assert store.studies.get("demo") == study


VERBS = ("pause", "resume", "stop", "cancel")
ALLOWED = {
    StudyState.RUNNING: {"pause", "resume", "stop", "cancel"},
    StudyState.PAUSED: {"pause", "resume", "stop", "cancel"},
    StudyState.STOPPING: {"stop", "cancel"},
    StudyState.STOPPED: {"stop", "cancel"},
    StudyState.COMPLETED: set(),
    StudyState.FAILED: set(),
    StudyState.DELETING: set(),
}


def bring_to(store: Store, held: Claimed, state: StudyState) -> None:
    if state is StudyState.PAUSED:
        store.lifecycle.pause("demo")
    elif state is StudyState.STOPPING:
        store.lifecycle.stop("demo")
    elif state is StudyState.STOPPED:
        store.lifecycle.stop("demo")
        store.claims.complete(lease_of(held), 1.0, {})
    elif state is StudyState.COMPLETED:
        store.claims.complete(lease_of(held), 1.0, {})
    elif state is StudyState.FAILED:
        store.claims.fail(lease_of(held), OBJECTIVE_ERROR, {})
    elif state is StudyState.DELETING:
        store.deleting.mark("demo", force=True)
    assert store.studies.get("demo").state is state


@pytest.mark.parametrize("state", list(StudyState))
def test_changes_of_state_are_safe_to_repeat_or_refused(
    store: Store, create: Create, claim: Claim, state: StudyState
) -> None:
    create(n_trials=1, max_failed_trials=1)
    bring_to(store, claim(), state)
    for verb in VERBS:
        call: Callable[[str], Any] = getattr(store.lifecycle, verb)
        if verb in ALLOWED[state]:
            assert call("demo") == call("demo")
            if state is StudyState.RUNNING:
                return  # the others are looked at from the states that they lead to
        else:
            before = store.studies.get("demo")
            with pytest.raises(Conflict, match=f"is {state} and cannot become"):
                call("demo")
            assert store.studies.get("demo") == before
    with pytest.raises(NotFound):
        store.lifecycle.pause("nothing")


def test_a_pause_gives_running_trials_back_and_costs_no_attempt(
    store: Store, create: Create, claim: Claim, worker_id: uuid.UUID, database_url: str
) -> None:
    create(n_trials=2, max_attempts=1)
    held = claim()
    assert report(store, held) == (Verdict.CONTINUE, None)
    store.lifecycle.pause("demo")
    assert report(store, held, 1) == (Verdict.PAUSE, Reason.PREEMPTED)
    assert report(store, held, 1) == (Verdict.PAUSE, Reason.PREEMPTED)
    assert store.claims.release(lease_of(held)).awaiting_attempt
    assert store.claims.claim(request(worker_id)) is None
    store.close()
    again = open_store(database_url)  # the state is in the database, not in a process
    assert again.studies.get("demo").state is StudyState.PAUSED
    assert again.claims.claim(request(worker_id)) is None
    assert again.lifecycle.resume("demo").reason is None
    resumed = again.claims.claim(request(worker_id))
    assert resumed is not None
    assert (resumed.number, resumed.attempt, resumed.params) == (0, 2, held.params)
    again.claims.start(lease_of(resumed), 1)
    assert report(again, resumed, 2) == (Verdict.CONTINUE, None)
    again.claims.complete(lease_of(resumed), 1.0, {})
    assert [point.step for point in again.trials.get("demo", 0).curve] == [0, 1, 2]
    again.close()


def test_a_trial_that_is_pruned_anyhow_is_not_paused(
    store: Store, create: Create, claim: Claim
) -> None:
    create(n_trials=2)
    held = claim()
    store.lifecycle.pause("demo")
    decision = store.claims.report(lease_of(held), Measurement(step=0, value=float("nan")), {})
    assert (decision.verdict, decision.reason) == (Verdict.PRUNE, Reason.DIVERGED)


def test_a_paused_study_whose_trials_have_ended_is_completed(
    store: Store, create: Create, claim: Claim
) -> None:
    create(n_trials=1)
    held = claim()
    store.lifecycle.pause("demo")
    store.claims.complete(lease_of(held), 1.0, {})
    assert store.studies.get("demo").state is StudyState.COMPLETED


def test_stop_lets_running_trials_end_as_they_would_and_cancels_awaiting_ones(
    store: Store, create: Create, claim: Claim
) -> None:
    create(n_trials=9)
    running, given_back = claim(), claim()
    store.claims.release(lease_of(given_back))
    store.lifecycle.stop("demo")
    assert state_of(store, given_back.number) == (TrialState.FAIL, Reason.CANCELLED)
    assert report(store, running) == (Verdict.CONTINUE, None)
    store.claims.complete(lease_of(running), 0.5, {})
    study = store.studies.get("demo")
    assert (study.state, study.best and study.best.value) == (StudyState.STOPPED, 0.5)


@pytest.mark.parametrize("verb", ["prune", "release", "fail", "complete", "silence"])
def test_a_trial_that_was_told_to_stop_ends_however_its_worker_says_it(
    store: Store, create: Create, claim: Claim, clock: Clock, verb: str
) -> None:
    create(n_trials=9)
    held = claim()
    store.lifecycle.cancel("demo")
    assert report(store, held) == report(store, held) == (Verdict.STOP, Reason.CANCELLED)
    lease = lease_of(held)
    calls: dict[str, Callable[[], object]] = {
        "prune": lambda: store.claims.prune(lease, {}),
        "release": lambda: store.claims.release(lease),
        "fail": lambda: store.claims.fail(lease, LOST, {}),
        "complete": lambda: store.claims.complete(lease, 0.25, {}),
        "silence": lambda: (clock.expire(held.token), store.claims.reap()),
    }
    calls[verb]()
    trial = store.trials.get("demo", 0)
    if verb == "complete":  # it had come to its end: the value stands
        assert (trial.state, trial.value) == (TrialState.COMPLETE, 0.25)
    else:
        assert (trial.state, trial.reason) == (TrialState.FAIL, Reason.CANCELLED)
        assert trial.message == "Cancelled on request."
        assert trial.attempts[-1].outcome == "stopped"
    assert store.studies.get("demo").state is StudyState.STOPPED


def test_trials_that_outlive_a_failed_study_are_told_to_stop(
    store: Store, create: Create, claim: Claim
) -> None:
    create(n_trials=9, max_failed_trials=1)
    other, third = claim(), claim()
    store.claims.fail(lease_of(claim()), OBJECTIVE_ERROR, {})
    assert store.studies.get("demo").state is StudyState.FAILED
    assert report(store, other) == (Verdict.STOP, Reason.CANCELLED)
    assert store.claims.release(lease_of(third)).state is TrialState.FAIL
    store.claims.prune(lease_of(other), {})
    assert store.studies.get("demo").counts[TrialState.RUNNING] == 0


def test_trials_that_a_study_cut_off_are_not_counted_as_failed(
    store: Store, create: Create, claim: Claim, clock: Clock, worker_id: uuid.UUID
) -> None:
    create(n_trials=8, timeout_seconds=TIMEOUT)
    held = [claim() for _ in range(6)]
    store.claims.release(lease_of(held.pop()))
    clock.age(TIMEOUT)
    for claimed in held:
        assert report(store, claimed) == (Verdict.STOP, Reason.TIMED_OUT)
        store.claims.prune(lease_of(claimed), {})
    study = store.studies.get("demo")
    assert (study.state, study.counts[TrialState.FAIL]) == (StudyState.COMPLETED, 6)
    assert state_of(store, 5) == (TrialState.FAIL, Reason.CANCELLED)
    reopened = store.lifecycle.amend(
        "demo", {"timeout_seconds": 2 * TIMEOUT, "max_failed_trials": 1}
    )
    assert (reopened.state, reopened.ended_at) == (StudyState.RUNNING, None)
    assert complete_all(store, worker_id) == 2
    assert store.studies.get("demo").state is StudyState.COMPLETED


def test_the_time_of_a_study_runs_from_its_first_claim_and_not_while_it_is_paused(
    store: Store, create: Create, claim: Claim, clock: Clock, worker_id: uuid.UUID
) -> None:
    create(n_trials=9, timeout_seconds=TIMEOUT)
    clock.advance(10 * TIMEOUT)
    held = claim()
    clock.age(0.6 * TIMEOUT)
    store.lifecycle.pause("demo")
    clock.age(10 * TIMEOUT)
    assert report(store, held) == (Verdict.PAUSE, Reason.PREEMPTED)
    store.lifecycle.resume("demo")
    assert report(store, held, 1) == (Verdict.CONTINUE, None)
    clock.age(0.6 * TIMEOUT)
    assert store.claims.claim(request(worker_id)) is None
    assert store.studies.get("demo").state is StudyState.STOPPING
    assert report(store, held, 2) == (Verdict.STOP, Reason.TIMED_OUT)


def test_more_trials_reopen_a_completed_study_for_exactly_the_difference(
    store: Store, create: Create, worker_id: uuid.UUID
) -> None:
    create(n_trials=3)
    assert complete_all(store, worker_id) == 3
    assert store.claims.claim(request(worker_id)) is None
    for _ in range(2):  # repeated, it changes nothing more
        assert store.lifecycle.amend("demo", {"n_trials": 5}).state is StudyState.RUNNING
    assert complete_all(store, worker_id) == 2
    study = store.lifecycle.amend("demo", {"n_trials": 5})
    assert (study.state, study.n_started) == (StudyState.COMPLETED, 5)
    assert study.counts[TrialState.COMPLETE] == 5


def test_a_failed_study_goes_on_when_more_trials_may_fail(
    store: Store, create: Create, claim: Claim, worker_id: uuid.UUID
) -> None:
    create(n_trials=4, max_failed_trials=2)
    for _ in range(2):
        store.claims.fail(lease_of(claim()), OBJECTIVE_ERROR, {})
    with pytest.raises(Conflict, match="Raise max_failed_trials"):
        store.lifecycle.amend("demo", {"n_trials": 6})
    assert store.studies.get("demo").definition.budget.n_trials == 4
    assert store.lifecycle.amend("demo", {"max_failed_trials": 3}).state is StudyState.RUNNING
    assert complete_all(store, worker_id) == 2
    assert store.studies.get("demo").state is StudyState.COMPLETED


def test_a_study_whose_trials_all_failed_goes_on_with_more_of_them(
    store: Store, create: Create, claim: Claim
) -> None:
    create(n_trials=1)
    store.claims.fail(lease_of(claim()), OBJECTIVE_ERROR, {})
    assert store.studies.get("demo").state is StudyState.FAILED
    # Nothing is left to go on with.
    assert store.lifecycle.amend("demo", {"timeout_seconds": 60}).state is StudyState.FAILED
    assert store.lifecycle.amend("demo", {"n_trials": 2}).state is StudyState.RUNNING
    store.claims.complete(lease_of(claim()), 1.0, {})
    assert store.studies.get("demo").state is StudyState.COMPLETED


def test_a_stopped_study_stays_so(store: Store, create: Create, claim: Claim) -> None:
    create(n_trials=2)
    held = claim()
    store.lifecycle.stop("demo")
    with pytest.raises(Conflict, match="is stopping"):
        store.lifecycle.amend("demo", {"n_trials": 3})
    store.claims.complete(lease_of(held), 1.0, {})
    with pytest.raises(Conflict, match="Create another study"):
        store.lifecycle.amend("demo", {"n_trials": 3})


def test_what_a_study_may_spend_is_checked_and_can_be_lifted(
    store: Store, create: Create, claim: Claim, worker_id: uuid.UUID
) -> None:
    create(n_trials=5, max_parallel_trials=1)
    claim()
    assert store.claims.claim(request(worker_id)) is None
    study = store.lifecycle.amend("demo", {"max_parallel_trials": None, "priority": 7})
    assert study.definition.budget.max_parallel_trials is None
    assert study.definition.priority == 7
    claim()
    with pytest.raises(InvalidField, match="must be 2 or more"):
        store.lifecycle.amend("demo", {"n_trials": 1, "priority": 1})
    with pytest.raises(InvalidField, match="timeout_seconds: must be above 0"):
        store.lifecycle.amend("demo", {"timeout_seconds": 0.0})
    assert store.studies.get("demo").definition.priority == 7


def test_a_grid_is_not_extended_beyond_its_cells(
    store: Store, create: Create, worker_id: uuid.UUID
) -> None:
    create(n_trials=2, sampler=Algorithm(name="grid"), space={"n": IntRange(low=1, high=4)})
    assert complete_all(store, worker_id) == 2
    assert store.lifecycle.amend("demo", {"n_trials": 50}).definition.budget.n_trials == 4
    assert complete_all(store, worker_id) == 2
    study = store.lifecycle.amend("demo", {"n_trials": 50})
    assert (study.state, study.n_started) == (StudyState.COMPLETED, 4)


def test_a_claim_says_what_is_left_of_a_trials_time_over_its_attempts(
    store: Store, create: Create, claim: Claim, clock: Clock
) -> None:
    create(n_trials=1, trial_timeout_seconds=60.0, no_progress_seconds=7.0)
    first = claim()
    assert first.seconds_left == 60
    assert first.definition.budget.no_progress_seconds == 7
    clock.advance(40)
    store.lifecycle.pause("demo")
    store.claims.release(lease_of(first))
    clock.advance(1000)  # what lies between attempts is not the trial's time
    store.lifecycle.resume("demo")
    second = claim()
    assert second.seconds_left == pytest.approx(20, abs=10)
    clock.advance(100)
    store.claims.release(lease_of(second))
    assert claim().seconds_left == 0


def test_a_trial_that_hangs_does_not_keep_a_cancelled_study(
    store: Store, create: Callable[..., Any], claim: Callable[[], Any], worker_id: uuid.UUID
) -> None:
    create(n_trials=3)
    hanging = claim()
    store.lifecycle.cancel("demo")
    give_up_at = time.monotonic() + 20
    while store.claims.reap() == 0:  # its worker goes on renewing, as its child lives
        assert store.claims.renew(worker_id, [hanging.token]) == []
        assert time.monotonic() < give_up_at
        time.sleep(0.1)
    assert store.claims.renew(worker_id, [hanging.token]) == [hanging.token]
    trial, study = store.trials.get("demo", 0), store.studies.get("demo")
    assert (trial.state, trial.reason) == (TrialState.FAIL, Reason.CANCELLED)
    assert study.state is StudyState.STOPPED
