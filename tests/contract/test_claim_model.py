"""The claim protocol as a state machine: whatever comes between, no trial is lost or run twice.

Hypothesis draws what workers, users and faults do, in any order; after each step the database is
held against what must be true of it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from hpo.errors import Conflict, InvalidField, LeaseLost, StepReported, TrialFinished
from hpo.study import Algorithm, StudyState
from hpo.trial import Decision, Failure, Measurement, Reason, TrialState, Verdict
from storage.records import Claimed, ClaimRequest, Lease, Settled, StudyRecord, TrialRecord
from storage.store import Store, open_store
from tests.builders import definition, lease_of, register, request
from tests.clock import Clock

N_WORKERS = 3
TIMEOUT_SECONDS = 1000.0
FAILURES = [
    Reason.OBJECTIVE_ERROR,
    Reason.LOST,
    Reason.DEVICE_ERROR,
    Reason.TIMED_OUT,
    Reason.OUT_OF_MEMORY,
]
VALUES = st.sampled_from([0.1, 0.5, 2.0, float("nan")])
ENDS = ("complete", "prune", "fail", "release")
ALLOWED = {
    "pause": ("running", "paused"),
    "resume": ("running", "paused"),
    "stop": ("running", "paused", "stopping", "stopped"),
    "cancel": ("running", "paused", "stopping", "stopped"),
}
LEADS_TO = {
    "pause": ("paused",),
    "resume": ("running",),
    "stop": ("stopping", "stopped"),
    "cancel": ("stopping", "stopped"),
}
Databases = Callable[[], AbstractContextManager[str]]


class Died(BaseException):
    """A process ends in the middle of something."""


@dataclass
class Held:
    """A trial as its worker knows it."""

    claimed: Claimed
    request: ClaimRequest
    reports: dict[int, tuple[float, Decision]] = field(default_factory=dict)
    has_expired: bool = False

    @property
    def lease(self) -> Lease:
        return lease_of(self.claimed)


@dataclass(frozen=True)
class Settlement:
    """A call that ended an attempt, and what it was answered."""

    lease: Lease
    call: Callable[[], Settled]
    verb: str
    answer: Settled


class ClaimProtocol(RuleBasedStateMachine):
    """One study, some workers, the people who run it, and what goes wrong."""

    def __init__(self, databases: Databases) -> None:
        super().__init__()
        self.resources = contextlib.ExitStack()
        url = self.resources.enter_context(databases())
        self.store: Store = open_store(url)
        self.resources.callback(self.store.close)
        self.clock = Clock(url)
        self.workers = [register(self.store) for _ in range(N_WORKERS)]
        self.held: dict[str, Held] = {}
        self.stale: list[Lease] = []
        self.settlements: list[Settlement] = []
        self.ended: dict[int, TrialRecord] = {}
        self.is_due = False

    @initialize(
        n_trials=st.integers(1, 6),
        max_parallel=st.none() | st.integers(1, 3),
        max_failed=st.none() | st.integers(1, 3),
        timeout=st.none() | st.just(TIMEOUT_SECONDS),
        max_attempts=st.integers(1, 3),
    )
    def create(
        self,
        n_trials: int,
        max_parallel: int | None,
        max_failed: int | None,
        timeout: float | None,
        max_attempts: int,
    ) -> None:
        made = definition(
            n_trials=n_trials,
            max_parallel_trials=max_parallel,
            max_failed_trials=max_failed,
            timeout_seconds=timeout,
            max_attempts=max_attempts,
            retry_backoff_seconds=0,
            sampler=Algorithm(name="random"),
            pruner=Algorithm(name="median", options={"n_startup_trials": 1}),
        )
        self.store.studies.create(made, given=frozenset())

    # What workers do.

    @rule(worker=st.integers(0, N_WORKERS - 1))
    def claim(self, worker: int) -> None:
        before = self.study()
        asked = request(self.workers[worker])
        claimed = self.store.claims.claim(asked)
        if claimed is None:
            assert before.state is not StudyState.RUNNING or self.is_due or not has_room(before)
            return
        assert before.state is StudyState.RUNNING
        assert not self.is_due
        assert claimed.number not in self.ended
        assert claimed.number not in {held.claimed.number for held in self.held.values()}
        self.held[claimed.token] = Held(claimed=claimed, request=asked)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def repeat_a_claim(self, data: st.DataObject) -> None:
        held = self.draw(data)
        with self.nothing_changes():
            again = self.store.claims.claim(held.request)
        assert again is not None
        # The budget is the one in force now.
        assert replace(again, definition=held.claimed.definition) == held.claimed

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        held = self.draw(data)
        tokens = [held.claimed.token, *(lease.token for lease in self.stale)]
        lost = self.store.claims.renew(held.request.worker_id, tokens)
        assert lost == tokens[1:]
        held.has_expired = False

    @precondition(lambda self: self.held)
    @rule(data=st.data(), from_step=st.none() | st.integers(0, 2))
    def start(self, data: st.DataObject, from_step: int | None) -> None:
        held = self.draw(data)
        if held.reports:
            return
        self.store.claims.start(held.lease, from_step)
        held.has_expired = False

    @precondition(lambda self: self.held)
    @rule(data=st.data(), value=VALUES, dies=st.booleans())
    def report(self, data: st.DataObject, value: float, dies: bool) -> None:
        held = self.draw(data)
        step = len(held.reports)
        if dies:
            with self.dying("decide"):
                self.store.claims.report(held.lease, Measurement(step=step, value=value), {})
        order = self.study().state
        decision = self.store.claims.report(held.lease, Measurement(step=step, value=value), {})
        held.reports[step] = (value, decision)
        held.has_expired = False
        if order is StudyState.PAUSED:
            assert decision.verdict in (Verdict.PAUSE, Verdict.PRUNE)
        if order.is_ended or (self.is_due and order is StudyState.RUNNING):
            assert decision.verdict is Verdict.STOP

    @precondition(lambda self: any(held.reports for held in self.held.values()))
    @rule(data=st.data())
    def repeat_a_report(self, data: st.DataObject) -> None:
        held = self.draw(data)
        for step, (value, decision) in held.reports.items():
            with self.nothing_changes():
                again = Measurement(step=step, value=value)
                assert self.store.claims.report(held.lease, again, {}) == decision
                with pytest.raises(StepReported):
                    self.store.claims.report(held.lease, Measurement(step=step, value=9.0), {})
        held.has_expired = held.has_expired and not held.reports

    @precondition(lambda self: self.held)
    @rule(data=st.data(), verb=st.sampled_from(ENDS), value=VALUES, why=st.sampled_from(FAILURES))
    def end(self, data: st.DataObject, verb: str, value: float, why: Reason) -> None:
        held = self.draw(data)
        call = self.ending(held.lease, verb, value, why)
        answer = call()
        self.drop(held)
        self.settlements.append(Settlement(held.lease, call, verb, answer))
        trial = self.store.trials.get("demo", held.claimed.number)
        assert (trial.state, trial.reason) == (answer.state, answer.reason)
        assert trial.awaiting_attempt is answer.awaiting_attempt or self.study().state.is_ended

    @precondition(lambda self: self.settlements)
    @rule(data=st.data())
    def repeat_an_end(self, data: st.DataObject) -> None:
        settled = data.draw(st.sampled_from(self.settlements), "settlement")
        with self.nothing_changes():
            assert settled.call() == settled.answer

    @precondition(lambda self: self.stale)
    @rule(data=st.data(), verb=st.sampled_from(ENDS))
    def write_with_a_stale_token(self, data: st.DataObject, verb: str) -> None:
        lease = data.draw(st.sampled_from(self.stale), "stale lease")
        said = {settled.verb for settled in self.settlements if settled.lease == lease}
        with self.nothing_changes():
            for call in (
                lambda: self.store.claims.start(lease, None),
                lambda: self.store.claims.report(lease, Measurement(step=9, value=0.0), {}),
                self.ending(lease, verb, 0.0, Reason.LOST),
            )[: 2 if verb in said else 3]:
                with pytest.raises((LeaseLost, TrialFinished)):
                    call()

    # What goes wrong.

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def a_lease_expires(self, data: st.DataObject) -> None:
        held = self.draw(data)
        self.clock.expire(held.claimed.token)
        held.has_expired = True

    @rule()
    def reap(self) -> None:
        self.store.claims.reap()
        for held in [held for held in self.held.values() if held.has_expired]:
            self.drop(held)
        assert not (self.is_due and self.study().state is StudyState.RUNNING)

    @rule(worker=st.integers(0, N_WORKERS - 1), expires=st.booleans())
    def a_claimant_dies_while_it_samples(self, worker: int, expires: bool) -> None:
        n_leases = len(self.clock.leases())
        with self.dying("sample"):
            claimed = self.store.claims.claim(asked := request(self.workers[worker]))
            if claimed is not None:  # the next attempt of a trial: nothing to sample
                self.held[claimed.token] = Held(claimed=claimed, request=asked)
        assert len(self.clock.leases()) <= n_leases + 1
        if expires:
            self.clock.expire_sampling()

    @precondition(lambda self: self.study().definition.budget.timeout_seconds is not None)
    @rule()
    def the_time_of_the_study_is_over(self) -> None:
        study = self.study()
        if study.state is not StudyState.RUNNING or not study.n_started:
            return
        self.clock.age(TIMEOUT_SECONDS)
        self.is_due = True

    # What people do.

    @rule(verb=st.sampled_from(["pause", "pause", "resume", "resume", "stop", "cancel"]))
    def change_the_state(self, verb: str) -> None:
        call: Callable[[str], StudyRecord] = getattr(self.store.lifecycle, verb)
        before = self.study().state
        if before not in ALLOWED[verb]:
            with self.nothing_changes(), pytest.raises(Conflict, match=before):
                call("demo")
            return
        after = call("demo")
        if after.state in ALLOWED[verb]:
            assert call("demo") == after
        assert after.state in LEADS_TO[verb] or self.is_due

    @rule(more=st.integers(-2, 3), field_name=st.sampled_from(["n_trials", "max_failed_trials"]))
    def extend(self, more: int, field_name: str) -> None:
        before = self.study()
        wanted = max(1, (getattr(before.definition.budget, field_name) or 1) + more)
        try:
            after = self.store.lifecycle.amend("demo", {field_name: wanted})
        except Conflict:
            assert before.state.is_ended or before.state is StudyState.STOPPING
            return
        except InvalidField:
            assert field_name == "n_trials"
            assert wanted < before.n_started
            return
        assert getattr(after.definition.budget, field_name) == wanted
        if before.state is StudyState.COMPLETED and field_name == "n_trials" and more > 0:
            assert after.state is StudyState.RUNNING
        if before.state is StudyState.STOPPED:
            assert after.state is StudyState.STOPPED

    # What must hold.

    @invariant()
    def the_database_holds_the_promises(self) -> None:
        study = self.study()
        trials = self.trials()
        leases = self.clock.leases()
        assert study.n_started == len(trials) <= study.definition.budget.n_trials
        running = {trial.number for trial in trials if trial.state is TrialState.RUNNING}
        awaiting = {trial.number for trial in trials if trial.awaiting_attempt}
        assert running == awaiting | leases.keys()
        assert not awaiting & leases.keys()
        tokens = {token for token, phase in leases.values() if phase == "running"}
        assert tokens == self.held.keys()
        for trial in trials:
            self.check_trial(trial, leases)
        self.check_state(study, n_running=len(running), n_awaiting=len(awaiting))

    def check_trial(self, trial: TrialRecord, leases: dict[int, tuple[str, str]]) -> None:
        if trial.state.is_finished:
            assert self.ended.setdefault(trial.number, trial) == trial, "a settled trial changed"
        else:
            assert trial.number not in self.ended
        open_attempts = [attempt for attempt in trial.attempts if attempt.ended_at is None]
        is_held = leases.get(trial.number, ("", ""))[1] == "running"
        assert len(open_attempts) == int(is_held)
        assert [attempt.attempt for attempt in trial.attempts] == list(
            range(1, len(trial.attempts) + 1)
        )

    def check_state(self, study: StudyRecord, *, n_running: int, n_awaiting: int) -> None:
        has_ended = study.state.is_ended
        assert has_ended == (study.ended_at is not None)
        assert study.reason or study.state is StudyState.RUNNING
        if study.state in (StudyState.COMPLETED, StudyState.STOPPED):
            assert not n_running
        elif study.state is StudyState.FAILED:
            assert not n_awaiting
        elif study.state is StudyState.STOPPING:
            assert n_running > n_awaiting == 0
        else:
            assert n_running or study.n_started < study.definition.budget.n_trials

    def teardown(self) -> None:
        """Lets healthy workers finish: the study comes to its end."""
        try:
            if hasattr(self, "store") and self.store.studies.page().items:
                self.finish()
        finally:
            self.resources.close()

    def finish(self) -> None:
        if self.study().state is StudyState.PAUSED:
            self.store.lifecycle.resume("demo")
        for held in list(self.held.values()):
            self.store.claims.complete(held.lease, 1.0, {})
            self.drop(held)
        self.clock.expire_sampling()
        self.store.claims.reap()
        while (claimed := self.store.claims.claim(request(self.workers[0]))) is not None:
            self.store.claims.complete(lease_of(claimed), 1.0, {})
        study = self.study()
        assert study.state.is_ended
        assert study.counts[TrialState.RUNNING] == 0
        for trial in self.trials():
            assert self.ended.get(trial.number, trial) == trial

    # How the rules do it.

    def study(self) -> StudyRecord:
        return self.store.studies.get("demo")

    def trials(self) -> list[TrialRecord]:
        return list(self.store.trials.page("demo", limit=500, curves=True).items)

    def draw(self, data: st.DataObject) -> Held:
        return self.held[data.draw(st.sampled_from(sorted(self.held)), "token")]

    def drop(self, held: Held) -> None:
        del self.held[held.claimed.token]
        self.stale.append(held.lease)

    def ending(self, lease: Lease, verb: str, value: float, why: Reason) -> Callable[[], Settled]:
        claims = self.store.claims
        calls: dict[str, Callable[[], Settled]] = {
            "complete": lambda: claims.complete(lease, value, {}),
            "prune": lambda: claims.prune(lease, {}),
            "fail": lambda: claims.fail(lease, Failure(reason=why, message="why"), {}),
            "release": lambda: claims.release(lease),
        }
        return calls[verb]

    @contextlib.contextmanager
    def nothing_changes(self) -> Iterator[None]:
        before = (self.study(), self.trials(), self.clock.leases())
        yield
        assert (self.study(), self.trials(), self.clock.leases()) == before

    @staticmethod
    @contextlib.contextmanager
    def dying(where: str) -> Iterator[None]:
        def die(*_: object) -> None:
            raise Died

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(f"storage.search.{where}", die)
            with contextlib.suppress(Died):
                yield


def has_room(study: StudyRecord) -> bool:
    """Whether a claim must be given a new trial."""
    budget = study.definition.budget
    return budget.max_parallel_trials is None and study.n_started < budget.n_trials


@pytest.fixture
def databases(request: pytest.FixtureRequest, backend: str) -> Databases:
    """Makes a database with the schema for each example; SQLite's in memory where that can be."""
    if backend == "sqlite":
        prepared: Path = request.getfixturevalue("prepared_sqlite")
        memory = "/dev/shm" if os.path.isdir("/dev/shm") else None

        @contextlib.contextmanager
        def sqlite() -> Iterator[str]:
            with tempfile.TemporaryDirectory(dir=memory) as folder:
                path = Path(folder) / "hpo.db"
                shutil.copy(prepared, path)
                yield f"sqlite:///{path}"

        return sqlite
    made: Any = request.getfixturevalue("postgres_databases")
    template: str = request.getfixturevalue("prepared_postgres")

    @contextlib.contextmanager
    def postgresql() -> Iterator[str]:
        url = made.create(template=template)
        yield url
        made.drop(url)

    return postgresql


@pytest.mark.parametrize(("backend", "n_examples"), [("sqlite", 25), ("postgresql", 4)])
def test_no_order_of_events_breaks_the_protocol(databases: Databases, n_examples: int) -> None:
    run_state_machine_as_test(
        lambda: ClaimProtocol(databases),
        settings=settings(
            max_examples=n_examples,
            stateful_step_count=40,
            deadline=None,
            # Making the order shorter takes minutes here; it is printed as it was drawn.
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
