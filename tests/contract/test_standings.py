"""How studies stand, from memory: as the database says at every look, by few statements."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import optuna
import pytest
import sqlalchemy as sa
from optuna.storages import RDBStorage

from hpo.errors import NoCompletedTrial
from hpo.study import Direction, StudyDefinition
from hpo.trial import Failure, Reason, TrialState
from storage import tables as t
from storage.records import Claimed
from storage.store import Store
from storage.studies import Studies
from tests.builders import lease_of, request

Create = Callable[..., StudyDefinition]
Claim = Callable[[], Claimed]


def afresh(store: Store) -> Studies:
    """The same studies for somebody who remembers nothing."""
    return Studies(store._database, store.workers, models_blocked=store.models.obstacle)


def best(studies: Studies, name: str) -> Any:
    try:
        return studies.best(name)
    except NoCompletedTrial as error:
        return error.facts


class Walk:
    """Does what the service and other Optuna programs do to a study, in any order."""

    def __init__(self, store: Store, stock: RDBStorage, claim: Claim, seed: int) -> None:
        self.store, self._claim, self.random = store, claim, random.Random(seed)
        self.study = optuna.load_study(study_name="demo", storage=stock)
        self.claimed: list[Claimed] = []
        self.asked: list[optuna.Trial] = []

    def value(self) -> float:
        return self.random.choice([0.0, 0.5, 1.0, float("inf"), self.random.random()])

    def claim(self) -> None:
        self.claimed.append(self._claim())

    def settle(self) -> None:
        if not self.claimed:
            return
        lease = lease_of(self.claimed.pop(self.random.randrange(len(self.claimed))))
        claims = self.store.claims
        self.random.choice(
            [
                lambda: claims.complete(lease, self.value(), {}, {"c": self.random.choice([0, 1])}),
                lambda: claims.complete(lease, self.value()),
                lambda: claims.prune(lease),
                lambda: claims.fail(lease, Failure(reason=Reason.LOST)),
                lambda: claims.fail(lease, Failure(reason=Reason.OBJECTIVE_ERROR)),
            ]
        )()

    def ask(self) -> None:
        self.asked.append(self.study.ask())

    def tell(self) -> None:
        if self.asked:
            trial = self.asked.pop(self.random.randrange(len(self.asked)))
            if self.random.random() < 0.3:
                trial.report(self.random.random(), 0)
                self.study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            else:
                self.study.tell(trial, self.value())

    def enqueue(self) -> None:
        self.study.enqueue_trial({"x": 0.5})

    def exclude(self) -> None:
        ended = [n for n, state in self._states() if state.is_finished]
        if ended:
            self.store.trial_changes.exclude("demo", self.random.choice(ended), "")

    def include(self) -> None:
        ended = [n for n, state in self._states() if state.is_finished]
        if ended:
            self.store.trial_changes.include("demo", self.random.choice(ended))

    def _states(self) -> list[tuple[int, TrialState]]:
        return [(trial.number, trial.state) for trial in self.store.trials.page("demo").items]

    def step(self) -> None:
        moves = [self.claim, self.settle, self.settle, self.ask, self.tell, self.enqueue]
        self.random.choice([*moves, self.exclude, self.include])()


@pytest.mark.parametrize(
    ("seed", "direction", "max_open"), [(1, Direction.MINIMIZE, 1000), (2, Direction.MAXIMIZE, 2)]
)
def test_a_look_from_memory_is_as_a_first_look(
    store: Store,
    stock: RDBStorage,
    create: Create,
    claim: Claim,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    direction: Direction,
    max_open: int,
) -> None:
    monkeypatch.setattr("storage.standings.MAX_OPEN", max_open)
    create(n_trials=1000, direction=direction, max_failed_trials=None)
    create(name="other", n_trials=1000, priority=-1)
    walk = Walk(store, stock, claim, seed)
    for _ in range(25):
        walk.step()
        known, first = store.studies, afresh(store)
        assert known.get("demo") == first.get("demo")
        assert best(known, "demo") == best(first, "demo")
    assert store.studies.page().items == afresh(store).page().items


def test_what_is_undone_was_never_seen(store: Store, create: Create, claim: Claim) -> None:
    create()
    claim()
    before = store.studies.get("demo")

    def fails(connection: sa.Connection) -> None:
        connection.execute(t.trials.update().values(state="FAIL"))
        assert store.studies.read(connection, "demo").counts[TrialState.FAIL] == 1
        raise KeyError

    with pytest.raises(KeyError):
        store._database.write(fails)
    assert store.studies.get("demo") == before


def test_looks_take_few_statements_however_many_trials_there_are(
    store: Store, stock: RDBStorage, create: Create, worker_id: Any
) -> None:
    statements: list[str] = []
    engine = store._database.engine
    sa.event.listen(engine, "before_cursor_execute", lambda *facts: statements.append(facts[2]))

    def count(call: Callable[[], Any]) -> int:
        statements.clear()
        call()
        return sum(text != "BEGIN" for text in statements)

    create(n_trials=3000)
    for n in range(12):
        create(name=f"other-{n}")
    looks: list[Callable[[], Any]] = [
        lambda: store.studies.get("demo"),
        lambda: store.studies.best("demo"),
        store.studies.page,
    ]
    study_id = stock.get_study_id_from_name("demo")
    for first, last in ((0, 10), (1000, 2000)):
        with stock.engine.begin() as connection:
            ids = connection.execute(
                t.trials.insert().returning(t.trials.c.trial_id, sort_by_parameter_order=True),
                [
                    {"number": n, "study_id": study_id, "state": "COMPLETE"}
                    for n in range(first, last)
                ],
            ).scalars()
            values = [
                {
                    "trial_id": trial_id,
                    "objective": 0,
                    "value": -1.0 * first - n,
                    "value_type": "FINITE",
                }
                for n, trial_id in enumerate(ids)
            ]
            connection.execute(t.trial_values.insert(), values)
        assert store.claims.claim(request(worker_id)) is not None
        # The study, what is new, the parameters of a new best, its model, and the workers.
        assert count(looks[0]) == 5
        # That of the best needs no worker, but the curve.
        assert [count(look) for look in looks] == [4, 4, 4]
