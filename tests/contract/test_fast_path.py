"""The fast path of reports and outcomes: few statements, and the same rows as the slow one."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa

from hpo.errors import Conflict, InvalidResult, StepReported
from hpo.events import EventKind
from hpo.study import Algorithm, StudyDefinition, StudyState
from hpo.trial import Decision, Failure, Measurement, Reason, TrialState, Verdict
from storage import tables as t
from storage.curves import to_step_columns
from storage.ending import end_if_done
from storage.events import BEGINNING
from storage.optuna_cache import cached
from storage.records import Claimed, Lease
from storage.search import Search
from storage.statements import Guarded
from storage.step_history import VIEW_SECONDS, StepHistory
from storage.store import Leased, Store
from storage.studies import lock_study, study_row
from tests.builders import lease_of, request
from tests.proxy_kit import await_fact
from tests.statements import sent_by

Create = Callable[..., StudyDefinition]
Claim = Callable[[], Claimed]

# SQLite has no one statement for all; there BEGIN, the parts and COMMIT are counted.
A_REPORT = {"postgresql": 1, "sqlite": 6}
A_PRUNING = {"postgresql": 1, "sqlite": 7}
AN_END = {"postgresql": 1, "sqlite": 9}
A_START = {"postgresql": 1, "sqlite": 3}
A_HEARTBEAT = {"postgresql": 1, "sqlite": 4}


def process(store: Store) -> Leased:
    """What another API process on the same database would be, with an exact view of it."""
    database = store._database
    leased = Leased(database, Search(database, cached(database)), store.times)
    leased._history._view_seconds = 0.0
    return leased


def slow_process(store: Store) -> Leased:
    """One that knows no attempt, and takes the slow path for all."""
    leased = process(store)
    leased._attempts.find = lambda lease: None  # type: ignore[method-assign]
    return leased


def measured(step: int, value: float) -> Measurement:
    return Measurement(step=step, value=value, elapsed_seconds=1.0, metrics={"loss": value})


class TestFewStatements:
    @pytest.fixture
    def running(self, store: Store, create: Create, claim: Claim) -> Lease:
        create(n_trials=20, pruner=Algorithm(name="median", options={"n_startup_trials": 1}))
        for _ in range(2):
            lease = lease_of(claim())
            for step in range(3):
                store.claims.report(lease, measured(step, 1.0))
            store.claims.complete(lease, 1.0)
        store.claims._history._view_seconds = 3600.0
        return lease_of(claim())

    def test_a_trial(self, store: Store, running: Lease) -> None:
        name = store._database.engine.dialect.name
        for step in range(3):
            with sent_by(store) as sent:
                decision = store.claims.report(running, measured(step, 0.5))
            assert decision.verdict is Verdict.CONTINUE
            assert len(sent) == A_REPORT[name], sent
        with sent_by(store) as sent:
            settled = store.claims.complete(running)
        assert settled.state is TrialState.COMPLETE
        assert len(sent) == AN_END[name], sent

    def test_a_pruned_trial(self, store: Store, running: Lease) -> None:
        name = store._database.engine.dialect.name
        with sent_by(store) as sent:
            decision = store.claims.report(running, measured(0, 9.0))
        assert decision.verdict is Verdict.PRUNE
        assert len(sent) == A_PRUNING[name], sent
        with sent_by(store) as sent:
            settled = store.claims.prune(running)
        assert settled.state is TrialState.PRUNED
        assert len(sent) == AN_END[name], sent

    def test_a_start_and_a_heartbeat(
        self, store: Store, running: Lease, worker_id: uuid.UUID
    ) -> None:
        name = store._database.engine.dialect.name
        with sent_by(store) as sent:
            store.claims.start(running, None)
        assert len(sent) == A_START[name], sent
        tokens = [running.token, "unknown", "lost"]
        with sent_by(store) as sent:
            assert store.claims.renew(worker_id, tokens) == ["unknown", "lost"]
        assert len(sent) == A_HEARTBEAT[name], sent


def test_the_end_of_a_study_is_told_after_that_of_its_last_trial(
    store: Store, create: Create, claim: Claim
) -> None:
    """A trial may end while others hold the study's lock, in a transaction that began before."""
    if store._database.is_sqlite:
        pytest.skip("SQLite has one writer at a time")
    name, lease = create(n_trials=1).name, lease_of(claim())
    with ThreadPoolExecutor(1) as pool:
        with store._database.engine.begin() as connection:
            study = study_row(connection, t.hpo_study.c.name == name)
            assert study is not None
            lock_study(connection, study.study_id)
            ending = pool.submit(store.claims.complete, lease, 1.0)
            await_fact(lambda: store.trials.get(name, 0).state is TrialState.COMPLETE)
            assert end_if_done(connection, study) is StudyState.RUNNING
        assert ending.result(timeout=30).state is TrialState.COMPLETE
    assert store.studies.get(name).state is StudyState.COMPLETED
    told = [event.kind for event in store.events.after(BEGINNING)]
    assert told[-2:] == [EventKind.TRIAL_ENDED, EventKind.STUDY_STATE]


class TestTheView:
    """What pruners compare with is brought up to date now and then, and never twice the same."""

    def test_it_is_read_once_in_a_while(self, store: Store, create: Create, claim: Claim) -> None:
        create(n_trials=9)
        now = 100.0
        history = StepHistory(store._database, clock=lambda: now)
        uuid_of_study = str(claim().study_uuid)
        assert history.view(uuid_of_study).values.n_trials == 0
        lease = lease_of(claim())
        store.claims.report(lease, measured(0, 4.0))
        store.claims.complete(lease, 4.0)
        now += VIEW_SECONDS * 0.9
        assert history.view(uuid_of_study).values.n_trials == 0
        now += VIEW_SECONDS * 0.2
        values = history.view(uuid_of_study).values
        assert (values.n_trials, list(values.at(0))) == (1, [4.0])

    def test_what_the_process_completes_is_in_it_at_once(
        self, store: Store, create: Create, claim: Claim
    ) -> None:
        create(n_trials=9)
        store.claims._history._view_seconds = 3600.0
        view = store.claims._history.view
        leases = [lease_of(claim()) for _ in range(2)]
        study_uuid = str(claim().study_uuid)
        assert view(study_uuid).values.n_trials == 0
        leases.append(lease_of(claim()))  # one that the view has not seen
        for lease in leases:
            store.claims.report(lease, measured(0, float(lease.number)))
            store.claims.complete(lease, 1.0)
        assert sorted(view(study_uuid).values.at(0)) == [0.0, 1.0, 3.0]
        store.claims._history._view_seconds = 0.0
        assert sorted(view(study_uuid).values.at(0)) == [0.0, 1.0, 3.0]

    def test_so_it_is_when_the_slow_path_completes(
        self, store: Store, create: Create, claim: Claim
    ) -> None:
        create(n_trials=9)
        store.claims._history._view_seconds = 3600.0
        first, study_uuid = lease_of(claim()), str(claim().study_uuid)
        assert store.claims._history.view(study_uuid).values.n_trials == 0
        store.claims.complete(first, 1.0, {"size": 3})
        assert store.claims._history.view(study_uuid).values.n_trials == 1

    def test_an_exclusion_counts_at_the_next_report(
        self, store: Store, create: Create, claim: Claim
    ) -> None:
        create(n_trials=9, pruner=Algorithm(name="median", options={"n_startup_trials": 1}))
        store.claims._history._view_seconds = 3600.0
        for value in (1.0, 9.0):
            lease = lease_of(claim())
            store.claims.report(lease, measured(0, value))
            store.claims.complete(lease, value)
        first, second = lease_of(claim()), lease_of(claim())
        assert store.claims.report(first, measured(0, 6.0)).verdict is Verdict.PRUNE
        store.trial_changes.exclude("demo", 0, "a mistake")
        assert store.claims.report(second, measured(0, 6.0)).verdict is Verdict.CONTINUE


@pytest.mark.parametrize("seed", range(2))
def test_whoever_completes_trials_the_view_is_that_of_the_database(
    store: Store, create: Create, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trials begin, end here or elsewhere, in any order; also more than are asked for by name."""
    monkeypatch.setattr("storage.step_history.MAX_NAMED", 3 if seed else 10_000)
    create()
    draw, history = random.Random(seed), StepHistory(store._database, view_seconds=0.0)
    running: list[int] = []
    complete: dict[int, float] = {}
    with store._database.engine.connect() as connection:
        study = connection.execute(sa.select(t.hpo_study.c.uuid, t.hpo_study.c.study_id)).one()

    def begin(connection: sa.Connection) -> int:
        number = len(running) + len(complete)
        row = {"study_id": study.study_id, "number": number, "state": "RUNNING"}
        return int(connection.execute(t.trials.insert(), row).inserted_primary_key[0])

    def end(connection: sa.Connection, trial_id: int, state: str, value: float) -> None:
        mine = t.trials.c.trial_id == trial_id
        connection.execute(t.trials.update().where(mine).values(state=state))
        row = {"trial_id": trial_id, "step": 0, **to_step_columns(value)}
        connection.execute(t.trial_steps.insert(), row)

    for _ in range(60):
        word = draw.random()
        if word < 0.4 or not running:
            running.append(store._database.write(begin))
        elif word < 0.8:
            trial_id = running.pop(draw.randrange(len(running)))
            state, value = draw.choice(["COMPLETE", "COMPLETE", "FAIL"]), draw.random()
            store._database.write(lambda c, i=trial_id, s=state, v=value: end(c, i, s, v))
            if state == "COMPLETE":
                complete[trial_id] = value
                if draw.random() < 0.5:  # this process has completed it
                    history.add(study.uuid, trial_id, {0: value})
        else:
            values = history.view(study.uuid).values
            assert sorted(values.at(0)) == sorted(complete.values())
            assert values.n_trials == len(complete)


class Players:
    """Performs a study after a script: some trials at a time, each word by a chosen process."""

    def __init__(self, store: Store, study: str, seed: int, choose: Callable[[], Leased]) -> None:
        self._store, self._study, self._choose = store, study, choose
        self._draw = random.Random(seed)
        self._running: dict[int, tuple[Claimed, list[Measurement]]] = {}
        self.answers: list[Any] = []

    def perform(self, worker_id: uuid.UUID) -> None:
        for _ in range(400):
            if len(self._running) < 3:
                claimed = self._choose().claim(request(worker_id))
                if claimed is not None:
                    self._start(claimed)
            if not self._running:
                return
            self._word(self._draw.choice(sorted(self._running)))
        raise AssertionError("the study does not come to its end")

    def _start(self, claimed: Claimed) -> None:
        has_steps = bool(self._store.trials.get(self._study, claimed.number).curve)
        resumed = 0 if has_steps else None
        self._say(lambda c, lease: c.start(lease, resumed), claimed)
        self._running[claimed.number] = (claimed, [])

    def _word(self, number: int) -> None:
        claimed, made = self._running[number]
        kind = self._draw.random()
        if kind < 0.7 and len(made) < 4:
            self._report(number, measured(len(made) + (claimed.attempt > 1), self._value()))
        elif kind < 0.8 and made:
            self._report(number, self._draw.choice(made))
        elif kind < 0.85 and made:
            self._report(number, measured(made[-1].step, 77.0))
        elif kind < 0.88:
            self._change()
        else:
            self._end(number)

    def _value(self) -> float:
        return self._draw.choice([float("nan"), float("inf"), *[self._draw.random()] * 30])

    def _report(self, number: int, measurement: Measurement) -> None:
        claimed, made = self._running[number]
        decision = self._say(lambda c, lease: c.report(lease, measurement), claimed)
        if not isinstance(decision, Decision):
            return
        if measurement not in made:
            made.append(measurement)
        if decision.verdict is Verdict.PRUNE:
            self._say(lambda c, lease: c.prune(lease), claimed)
            del self._running[number]

    def _change(self) -> None:
        """A user changes what the processes have in mind."""
        complete = [
            trial.number
            for trial in self._store.trials.page(self._study, limit=100).items
            if trial.state is TrialState.COMPLETE
        ]
        if complete:
            number = self._draw.choice(complete)
            change = self._draw.choice(["exclude", "include"])
            reason = ("a mistake",) if change == "exclude" else ()
            getattr(self._store.trial_changes, change)(self._study, number, *reason)

    def _end(self, number: int) -> None:
        claimed, _ = self._running[number]
        failure = Failure(reason=Reason.OBJECTIVE_ERROR, message="boom", traceback="line 1")
        value = self._draw.choice([None, self._draw.random()])
        calls: list[Callable[[Leased, Lease], Any]] = [
            lambda c, lease: c.complete(lease, value),
            lambda c, lease: c.complete(lease, value),
            lambda c, lease: c.complete(lease, value, {"size": 3}),
            lambda c, lease: c.fail(lease, failure),
            lambda c, lease: c.release(lease),
        ]
        call = self._draw.choice(calls)
        answer = self._say(call, claimed)
        assert answer == self._say(call, claimed)  # also when it comes again
        if answer is not InvalidResult:
            del self._running[number]

    def _say(self, call: Callable[[Leased, Lease], Any], claimed: Claimed) -> Any:
        try:
            answer = call(self._choose(), lease_of(claimed))
        except (StepReported, Conflict, InvalidResult) as error:
            answer = type(error)
        self.answers.append(repr(answer))
        return answer


@pytest.mark.parametrize("seed", [1, 4])
def test_two_processes_store_what_the_slow_path_stores(
    store: Store, create: Create, worker_id: uuid.UUID, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {
        "n_trials": 9,
        "retry_backoff_seconds": 0,
        "max_failed_trials": 9,
        "pruner": Algorithm(name="median", options={"n_startup_trials": 1}),
    }
    written = note_guarded(monkeypatch)
    slow = slow_process(store)
    create(name="mixed", **made)
    mixed = Players(store, "mixed", seed, in_turns(seed, process(store), process(store), slow))
    mixed.perform(worker_id)
    assert written[True] > 10, "the fast path was taken"
    assert written[False] > 0, "and given up where another process had written"
    create(name="plain", **made)
    plain = Players(store, "plain", seed, lambda: slow)
    plain.perform(worker_id)
    assert mixed.answers == plain.answers
    assert list(rows_of(store, "mixed")) == list(rows_of(store, "plain"))
    assert store.studies.get("mixed").state is StudyState.COMPLETED


def in_turns(seed: int, *processes: Leased) -> Callable[[], Leased]:
    """One for some words, then another."""
    draw, current = random.Random(seed), processes[0]

    def choose() -> Leased:
        nonlocal current
        if draw.random() < 0.3:
            current = draw.choice(processes)
        return current

    return choose


def note_guarded(monkeypatch: pytest.MonkeyPatch) -> Counter[bool]:
    """Counts how many guarded writes were done, and how many refused."""
    written: Counter[bool] = Counter()
    write = Guarded.write

    def noted(self: Guarded, *args: Any) -> Any:
        found = write(self, *args)
        written[found is not None] += 1
        return found

    monkeypatch.setattr(Guarded, "write", noted)
    return written


def rows_of(store: Store, study: str) -> Iterator[Any]:
    """All that is stored of a study but for ids and times."""
    times = {"started_at", "ended_at", "excluded_at", "exclusion"}
    for trial in store.trials.page(study, limit=100, curves=True).items:
        facts = {name: repr(getattr(trial, name)) for name in trial.__slots__}
        attempts = [
            [repr(getattr(one, name)) for name in one.__slots__ if name not in times]
            for one in trial.attempts
        ]
        yield {name: fact for name, fact in facts.items() if name not in {"attempts", *times}}
        yield attempts
    with store._database.engine.connect() as connection:
        named = sa.select(t.hpo_study.c.uuid).where(t.hpo_study.c.name == study).scalar_subquery()
        verdict, event, ours = t.hpo_verdict.c, t.hpo_event.c, t.hpo_trial.c
        columns = [column for column in verdict if column.name != "study_uuid"]
        mine = sa.select(*columns).where(verdict.study_uuid == named)
        yield [repr(row) for row in connection.execute(mine.order_by(*columns[:3]))]
        columns = [event.number, event.kind, event.data]
        mine = sa.select(*columns).where(event.study_uuid == named)
        yield [repr(row) for row in connection.execute(mine.order_by(event.id))]
        columns = [ours.number, ours.told, ours.reason, ours.message, ours.n_attempts]
        mine = sa.select(*columns).where(ours.study_uuid == named)
        yield [repr(row) for row in connection.execute(mine.order_by(ours.number))]
