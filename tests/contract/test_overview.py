"""A study at one look, on every backend: columns of trials, curves, the pruner's line."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from hpo.errors import NotFound
from hpo.study import Algorithm, Direction, StudyDefinition
from hpo.trial import Failure, Measurement, Reason, TrialState, Verdict
from storage.records import Claimed
from storage.store import Store
from tests.builders import lease_of

Create = Callable[..., StudyDefinition]
Claim = Callable[[], Claimed]


def n_statements(store: Store, call: Callable[[], Any]) -> int:
    statements: list[str] = []
    engine = store._database.engine

    def note(*args: Any) -> None:
        statements.append(args[2])

    sa.event.listen(engine, "before_cursor_execute", note)
    call()
    sa.event.remove(engine, "before_cursor_execute", note)
    return len(statements)


def report(store: Store, claimed: Claimed, *values: float) -> list[Any]:
    lease = lease_of(claimed)
    store.claims.start(lease, None)
    return [
        store.claims.report(lease, Measurement(step=step, value=value, elapsed_seconds=0.0))
        for step, value in enumerate(values)
    ]


class TestColumns:
    def test_columns_say_what_the_list_of_trials_says(
        self, store: Store, create: Create, claim: Claim
    ) -> None:
        create(n_trials=5)
        complete, failed, pruned, excluded, _ = [claim() for _ in range(5)]
        store.claims.complete(lease_of(complete), 0.5)
        store.claims.fail(lease_of(failed), Failure(reason=Reason.OBJECTIVE_ERROR, message="no"))
        report(store, pruned, 7.0)
        store.claims.prune(lease_of(pruned))
        store.claims.complete(lease_of(excluded), math.inf)
        store.trial_changes.exclude("demo", excluded.number, "wrong data")
        found = store.overview.columns("demo", after=None, limit=10)
        listed = store.trials.page("demo").items
        assert list(found.numbers) == [trial.number for trial in listed]
        assert list(found.states) == [trial.state for trial in listed]
        assert [list(column) for column in found.values] == [[trial.value for trial in listed]]
        assert {name: list(column) for name, column in found.params.items()} == {
            name: [trial.params[name] for trial in listed] for name in ("x", "kind")
        }
        assert list(found.left_out) == [excluded.number]
        assert found.next is None

    def test_pages_follow_each_other(self, store: Store, create: Create, claim: Claim) -> None:
        create(n_trials=5)
        for _ in range(5):
            claim()
        whole = store.overview.columns("demo", after=None, limit=10)
        first = store.overview.columns("demo", after=None, limit=3)
        second = store.overview.columns("demo", after=first.next, limit=3)
        assert (first.next, second.next) == (2, None)
        assert [*first.numbers, *second.numbers] == list(whole.numbers)
        assert [*first.params["x"], *second.params["x"]] == list(whole.params["x"])
        assert store.overview.columns("demo", after=4, limit=3).numbers == []

    def test_several_directions_have_a_column_each(
        self, store: Store, create: Create, claim: Claim
    ) -> None:
        create(directions=(Direction.MINIMIZE, Direction.MAXIMIZE), pruner=Algorithm(name="none"))
        store.claims.complete(lease_of(claim()), [1.0, 2.0])
        claim()
        found = store.overview.columns("demo", after=None, limit=10)
        assert [list(column) for column in found.values] == [[1.0, None], [2.0, None]]

    def test_more_trials_cost_no_more_statements(
        self, store: Store, create: Create, claim: Claim
    ) -> None:
        create(n_trials=9)
        claim()

        def look() -> None:
            store.overview.columns("demo", after=None, limit=100)

        few = n_statements(store, look)
        for _ in range(8):
            claim()
        assert n_statements(store, look) == few <= 5

    def test_no_study(self, store: Store) -> None:
        with pytest.raises(NotFound):
            store.overview.columns("nobody", after=None, limit=10)
        with pytest.raises(NotFound):
            store.overview.curves("nobody", limit=10, max_points=10)


class TestCurves:
    def test_the_line_is_the_one_that_the_verdict_names(
        self, store: Store, create: Create, claim: Claim
    ) -> None:
        create(n_trials=5, pruner=Algorithm(name="median", options={"n_startup_trials": 3}))
        for value in (1.0, 2.0, 4.0):
            claimed = claim()
            report(store, claimed, value + 1, value)
            store.claims.complete(lease_of(claimed), value)
        running, hopeless = claim(), claim()
        report(store, running, 1.5)
        told = report(store, hopeless, 2.5, 3.0)
        assert [decision.verdict for decision in told] == [Verdict.CONTINUE, Verdict.PRUNE]
        store.claims.prune(lease_of(hopeless))
        found = store.overview.curves("demo", limit=10, max_points=100)
        line = found.thresholds
        assert line is not None
        assert (list(line.steps), list(line.values), list(line.n_trials)) == (
            [0, 1],
            [3.0, 2.0],
            [3, 3],
        )
        assert (line.pruner, line.n_startup_trials, line.n_complete) == ("median", 3, 3)
        evidence = told[-1].evidence
        assert evidence["median"] == line.values[evidence["step"]]
        curves = {curve.number: curve for curve in found.trials}
        assert list(curves) == [0, 1, 2, 3, 4]
        assert (curves[3].state, curves[3].values) == (TrialState.RUNNING, [1.5])
        assert (curves[4].state, curves[4].prune) == (TrialState.PRUNED, evidence)
        assert [curve.number for curve in found.trials if curve.is_best] == [0]

    def test_few_are_the_newest_and_the_best_without_excluded_ones(
        self, store: Store, create: Create, claim: Claim
    ) -> None:
        create(n_trials=6)
        for value in (1.0, 2.0, 3.0, 4.0, 0.5):
            claimed = claim()
            report(store, claimed, *[value] * 9)
            store.claims.complete(lease_of(claimed), value)
        store.trial_changes.exclude("demo", 4, "")
        found = store.overview.curves("demo", limit=2, max_points=3)
        assert [curve.number for curve in found.trials] == [0, 3]
        assert all(list(curve.steps) == [0, 4, 8] for curve in found.trials)
        assert found.thresholds is not None
        assert (list(found.thresholds.steps), found.thresholds.n_complete) == ([0, 4, 8], 4)

    def test_a_pruner_without_such_a_line(self, store: Store, create: Create, claim: Claim) -> None:
        create(pruner=Algorithm(name="none"))
        report(store, claim(), 1.0)
        found = store.overview.curves("demo", limit=10, max_points=10)
        assert (found.thresholds, len(found.trials)) == (None, 1)
