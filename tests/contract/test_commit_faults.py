"""One commit in five fails, before it or after it: everything is stored, and stored once.

A commit that fails afterwards is the worst that a database can do: the work is done, and the
answer says that it is not.
"""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import psycopg
import pytest
import sqlalchemy as sa

from hpo.errors import Unavailable
from hpo.space import Categorical, IntRange
from hpo.study import Algorithm, StudyState
from hpo.trial import Measurement, TrialState
from storage.records import Claimed, LogChunk, StudyRecord
from storage.store import Store
from tests.builders import definition, lease_of, register, request

T = TypeVar("T")

N_TRIALS, N_REPORTS = 30, 5


def cut(connection: Any) -> None:
    """What a server or a network does to a connection."""
    if isinstance(connection.driver_connection, psycopg.Connection):
        connection.driver_connection.close()


FAULTS: dict[str, list[tuple[str, Callable[[], Exception]]]] = {
    "postgresql": [
        ("deadlock", lambda: psycopg.errors.DeadlockDetected("deadlock detected")),
        ("serialization", lambda: psycopg.errors.SerializationFailure("could not serialize")),
        ("lock", lambda: psycopg.errors.LockNotAvailable("canceling: lock timeout")),
        ("disconnect", lambda: psycopg.OperationalError("server closed the connection")),
    ],
    "sqlite": [
        ("lock", lambda: sqlite3.OperationalError("database is locked")),
        ("disconnect", lambda: sqlite3.OperationalError("disk I/O error")),
    ],
}


Choose = Callable[[], tuple[int, bool] | None]


class FaultyCommits:
    """Stands in the way of an engine's commits.

    `choose` says of each commit which kind of fault it meets, and whether it is done all the same.
    """

    def __init__(self, dialect: sa.Dialect, choose: Choose) -> None:
        self._commit, self._choose = dialect.do_commit, choose
        self._faults, self._lock = FAULTS[dialect.name], threading.Lock()
        self.injected: Counter[str] = Counter()

    def __call__(self, connection: Any) -> None:
        with self._lock:
            chosen = self._choose()
        if chosen is None:
            self._commit(connection)
            return
        kind, make = self._faults[chosen[0] % len(self._faults)]
        is_answer_lost = kind == "disconnect" and chosen[1]
        self.injected[f"{kind}, done" if is_answer_lost else kind] += 1
        if is_answer_lost:
            self._commit(connection)
        else:
            connection.rollback()
        if kind == "disconnect":
            cut(connection)
        raise make()


class FaultyStatements(FaultyCommits):
    """Stands in the way of statements that are transactions by themselves, on PostgreSQL."""

    def __init__(self, dialect: sa.Dialect, choose: Choose) -> None:
        super().__init__(dialect, choose)
        self._execute = dialect.do_execute

    def __call__(self, cursor: Any, text: str, values: Any, context: Any = None) -> None:
        chosen = None
        if cursor.connection.autocommit:
            with self._lock:
                chosen = self._choose()
        if chosen is None:
            self._execute(cursor, text, values, context)
            return
        kind, make = self._faults[chosen[0] % len(self._faults)]
        is_answer_lost = kind == "disconnect" and chosen[1]
        self.injected[f"{kind}, done" if is_answer_lost else kind] += 1
        if is_answer_lost:
            self._execute(cursor, text, values, context)
        if kind == "disconnect":
            cursor.connection.close()
        raise make()


def one_in_five(seed: int) -> Choose:
    draw = random.Random(seed)
    return lambda: (draw.randrange(4), draw.random() < 0.5) if draw.random() < 0.2 else None


Break = Callable[[Callable[[int], Choose]], list[FaultyCommits]]


@pytest.fixture
def break_commits(store: Store, monkeypatch: pytest.MonkeyPatch) -> Break:
    """Lets commits of the store's engines fail from now on; answers who counts the faults."""

    def begin(chooser: Callable[[int], Choose]) -> list[FaultyCommits]:
        found = (store._database.engine, store._database._lock_engine)
        dialects = [engine.dialect for engine in found if engine is not None]
        injectors = [FaultyCommits(dialect, chooser(n)) for n, dialect in enumerate(dialects)]
        for dialect, injector in zip(dialects, injectors, strict=True):
            monkeypatch.setattr(dialect, "do_commit", injector)
        if not store._database.is_sqlite:
            statements = FaultyStatements(dialects[0], chooser(len(dialects)))
            monkeypatch.setattr(dialects[0], "do_execute", statements)
            injectors.append(statements)
        return injectors

    return begin


def insist(call: Callable[[], T]) -> T:
    """Repeats a call as a worker does."""
    give_up_at = time.monotonic() + 30
    while True:
        try:
            return call()
        except Unavailable:
            assert time.monotonic() < give_up_at


def perform(store: Store, claimed: Claimed) -> None:
    """What a worker says of a trial, every word until it is answered."""
    lease, claims = lease_of(claimed), store.claims
    insist(lambda: claims.start(lease, None))
    for step in range(N_REPORTS):
        value = float(claimed.number + step)
        measurement = Measurement(step=step, value=value, elapsed_seconds=0.1)
        attrs = {"step": step} if step == N_REPORTS - 1 else {}  # with them, the slow path
        first = insist(lambda m=measurement, a=attrs: claims.report(lease, m, a))
        assert insist(lambda m=measurement: claims.report(lease, m, {})) == first
        chunk = LogChunk(sequence=step, text=f"line {step}\n")
        insist(lambda c=chunk: store.logs.append(lease, [c]))
    attrs = {"done": True} if claimed.number % 2 else {}
    insist(lambda: claims.complete(lease, float(claimed.number), attrs))


@pytest.mark.parametrize("nth", range(6))
def test_a_claim_that_is_done_without_an_answer_is_not_lost(
    store: Store, break_commits: Break, nth: int
) -> None:
    """The trial is the study's last, so the second try finds no other."""
    store.studies.create(definition(n_trials=1), given=frozenset())
    asked = request(register(store))
    script = iter([*[None] * nth, (-1, True)])  # of the kinds, the last: a lost connection
    break_commits(lambda _: lambda: next(script, None))
    claimed = insist(lambda: store.claims.claim(asked))
    assert claimed is not None
    assert (claimed.number, claimed.attempt) == (0, 1)
    assert store.studies.get("demo").n_started == 1


def test_all_is_stored_once(store: Store, break_commits: Break) -> None:
    """The grid's sampler writes attributes by Optuna's own storage as well."""
    made = definition(
        n_trials=N_TRIALS,
        max_attempts=1,
        space={"x": IntRange(low=0, high=14), "kind": Categorical(choices=("a", "b"))},
        sampler=Algorithm(name="grid"),
        pruner=Algorithm(name="none"),
    )
    injectors = break_commits(one_in_five)
    insist(lambda: store.studies.create(made, given=frozenset()))
    worker_id = insist(lambda: register(store))

    def work() -> list[int]:
        numbers = []
        while has_work(insist(lambda: store.studies.get("demo"))):
            asked = request(worker_id)
            claimed = insist(lambda a=asked: store.claims.claim(a))
            if claimed is not None:
                assert claimed.attempt == 1
                perform(store, claimed)
                numbers.append(claimed.number)
        return numbers

    with ThreadPoolExecutor(4) as pool:
        numbers = [n for found in pool.map(lambda _: work(), range(4)) for n in found]
    study = insist(lambda: store.studies.get("demo"))
    assert (study.state, study.reason) == (StudyState.COMPLETED, "All 30 trials have ended.")
    assert sorted(numbers) == list(range(N_TRIALS)), "a claim's answer was lost with its trial"
    study = insist(lambda: store.studies.get("demo"))
    assert (study.state, study.n_started) == (StudyState.COMPLETED, N_TRIALS)
    trials = insist(lambda: store.trials.page("demo", limit=100, curves=True)).items
    assert [trial.number for trial in trials] == list(range(N_TRIALS))
    for trial in trials:
        assert (trial.state, trial.value) == (TrialState.COMPLETE, float(trial.number))
        assert [(p.step, p.value) for p in trial.curve] == [
            (step, float(trial.number + step)) for step in range(N_REPORTS)
        ]
        assert [attempt.outcome for attempt in trial.attempts] == ["complete"]
        done = {"done": True} if trial.number % 2 else {}
        assert trial.user_attrs == {"step": N_REPORTS - 1, **done}
        log = insist(lambda n=trial.number: store.logs.page("demo", n, after=None, limit=99)).items
        assert [line.text for line in log] == [f"line {step}\n" for step in range(N_REPORTS)]
    assert len({(t.params["x"], t.params["kind"]) for t in trials}) == N_TRIALS
    injected = sum((injector.injected for injector in injectors), Counter())
    assert set(injected) >= {kind for kind, _ in FAULTS[store._database.url.get_backend_name()]}
    assert injected["disconnect, done"] >= 5
    assert sum(injected.values()) > 50


def has_work(study: StudyRecord) -> bool:
    return study.state is StudyState.RUNNING and study.n_started < N_TRIALS
