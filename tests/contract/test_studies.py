"""Studies on every backend: create, compare, count, best."""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Callable
from typing import Any

import optuna
import pytest
import sqlalchemy as sa
from optuna.storages import RDBStorage

from hpo.errors import NoCompletedTrial, NotFound, StudyExists
from hpo.search.samplers import SAMPLERS
from hpo.space import FloatRange, IntRange
from hpo.study import Algorithm, Direction, StudyDefinition, StudyState, ValueRule
from hpo.trial import Failure, Measurement, Reason, TrialState
from storage.records import Claimed, Lease
from storage.store import Store, open_store
from storage.studies import Filter
from tests.builders import definition, lease_of, register

Create = Callable[..., StudyDefinition]
Claim = Callable[[], Claimed]


def test_a_study_comes_back_as_it_was_defined(store: Store, create: Create) -> None:
    made = create(
        space={
            "lr": FloatRange(low=1e-5, high=0.1, log=True),
            "n": IntRange(low=1, high=9, step=4),
        },
        pruner=Algorithm(name="percentile", options={"percentile": 30.0, "n_warmup_steps": 2}),
        settings={"epochs": 20, "nested": {"a": [1, 2.5, None]}},
        metric="accuracy",
        max_steps=20,
        max_parallel_trials=2,
        max_failed_trials=4,
        timeout_seconds=3600.5,
        trial_timeout_seconds=60.0,
        no_progress_seconds=30.0,
        priority=7,
        direction=Direction.MAXIMIZE,
    )
    found = store.studies.get("demo")
    assert found.definition == made
    assert found.state is StudyState.RUNNING
    assert found.counts == dict.fromkeys(TrialState, 0)
    assert found.best is None
    assert found.created_at.tzinfo is not None


def test_a_study_created_twice_is_one_study(store: Store) -> None:
    first, is_new = store.studies.create(definition(), given=frozenset({"n_trials"}))
    again, is_new_again = store.studies.create(definition(seed=2), given=frozenset({"n_trials"}))
    assert (is_new, is_new_again) == (True, False)
    assert first.uuid == again.uuid


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n_trials", 4),
        ("seed", 2),
        ("space", {"x": FloatRange(low=0, high=2)}),
        ("sampler", Algorithm(name="random")),
        ("direction", Direction.MAXIMIZE),
        ("settings", {"epochs": 3}),
    ],
)
def test_a_taken_name_is_refused_with_the_difference(
    store: Store, create: Create, field: str, value: object
) -> None:
    create()
    with pytest.raises(StudyExists) as refused:
        store.studies.create(definition(**{field: value}), given=frozenset({field}))
    assert set(refused.value.facts["difference"]) == {field}
    assert store.studies.get("demo").definition == definition()


def test_a_name_that_another_optuna_program_took_is_refused(
    store: Store, stock: RDBStorage
) -> None:
    optuna.create_study(storage=stock, study_name="demo")
    with pytest.raises(StudyExists, match="another Optuna program"):
        store.studies.create(definition(), given=frozenset())
    with pytest.raises(NotFound):
        store.studies.get("demo")


def test_studies_are_listed_page_by_page_newest_first(store: Store, create: Create) -> None:
    for index in range(5):
        create(name=f"study-{index}")
    names, after = [], None
    while True:
        page = store.studies.page(limit=2, after=after)
        names += [record.definition.name for record in page.items]
        if (after := page.next) is None:
            break
    assert names == [f"study-{index}" for index in (4, 3, 2, 1, 0)]
    assert store.studies.page(Filter(states=[StudyState.COMPLETED])).items == []


@pytest.mark.parametrize("direction", list(Direction))
def test_best_is_the_best_finite_complete_value_and_the_smaller_number(
    store: Store, create: Create, claim: Claim, direction: Direction
) -> None:
    create(n_trials=6, direction=direction, max_failed_trials=5)
    with pytest.raises(NoCompletedTrial) as none_yet:
        store.studies.best("demo")
    assert none_yet.value.facts["counts"]["COMPLETE"] == 0
    values = [0.5, 0.1, 0.9, 0.1, 0.9]
    for value in values:
        store.claims.complete(lease_of(claim()), value, {})
    pruned = claim()
    store.claims.report(lease_of(pruned), Measurement(step=0, value=float("inf")), {})
    store.claims.prune(lease_of(pruned), {})
    best = store.studies.best("demo")
    assert best.value == direction.best(values)
    assert best.number == values.index(best.value)
    assert set(best.params) == {"x", "kind"}


@pytest.mark.parametrize(
    ("rule", "returned", "value", "step"),
    [
        ("last", None, 0.8, 2),
        ("best", None, 0.95, 1),  # of two equal ones the first
        ("last", 0.77, 0.77, None),
    ],
)
def test_the_best_says_its_step_and_pruned_trials_stand_apart(
    store: Store,
    create: Create,
    claim: Claim,
    rule: str,
    returned: float | None,
    value: float,
    step: int | None,
) -> None:
    create(n_trials=6, direction=Direction.MAXIMIZE, value_rule=ValueRule(rule), max_steps=9)

    def trial(*reports: float) -> Lease:
        lease = lease_of(claim())
        for number, reported in enumerate(reports):
            store.claims.report(lease, Measurement(step=number, value=reported), {})
        return lease

    store.claims.complete(trial(0.9, 0.95, 0.8), returned, {})
    assert store.studies.best("demo").best_pruned is None
    store.claims.complete(trial(0.1, 0.1), None, {})
    for last in (0.2, 0.99, 0.3):
        store.claims.prune(trial(0.5, last), {})
    store.claims.prune(trial(math.nan), {})
    best = store.studies.best("demo")
    assert (best.number, best.value, best.step, best.value_rule) == (0, value, step, rule)
    pruned = best.best_pruned
    assert pruned is not None
    assert (pruned.number, pruned.value, pruned.step) == (3, 0.99, 1)
    assert set(pruned.params) == {"x", "kind"}


def test_counts_and_end_of_a_study(store: Store, create: Create, claim: Claim) -> None:
    create(n_trials=3)
    store.claims.complete(lease_of(claim()), 1.0, {})
    failure = Failure(reason=Reason.OBJECTIVE_ERROR, message="boom", traceback="line 1")
    store.claims.fail(lease_of(claim()), failure, {})
    running = store.studies.get("demo")
    assert (running.counts[TrialState.COMPLETE], running.counts[TrialState.FAIL]) == (1, 1)
    assert running.state is StudyState.RUNNING
    store.claims.complete(lease_of(claim()), 2.0, {})
    ended = store.studies.get("demo")
    assert (ended.state, ended.reason) == (StudyState.COMPLETED, "All 3 trials have ended.")
    assert ended.ended_at is not None


def test_a_study_whose_first_trials_all_fail_is_failed_with_the_cause(
    store: Store, create: Create, claim: Claim, worker_id: uuid.UUID
) -> None:
    create(n_trials=100)
    for _ in range(5):
        failure = Failure(reason=Reason.OBJECTIVE_ERROR, message="No module named 'nowhere'")
        store.claims.fail(lease_of(claim()), failure, {})
    study = store.studies.get("demo")
    assert study.state is StudyState.FAILED
    assert study.reason is not None
    assert "No module named 'nowhere'" in study.reason


def test_max_failed_trials_ends_a_study(store: Store, create: Create, claim: Claim) -> None:
    create(n_trials=10, max_failed_trials=2)
    for index in range(3):
        if index == 1:
            store.claims.complete(lease_of(claim()), 1.0, {})
        else:
            store.claims.fail(lease_of(claim()), Failure(reason=Reason.INVALID_RESULT), {})
    assert store.studies.get("demo").state is StudyState.FAILED


def test_a_grid_has_no_more_trials_than_cells(store: Store, create: Create, claim: Claim) -> None:
    create(n_trials=50, sampler=Algorithm(name="grid"), space={"n": IntRange(low=1, high=4)})
    seen = set()
    for _ in range(4):
        claimed = claim()
        seen.add(claimed.params["n"])
        store.claims.complete(lease_of(claimed), 1.0, {})
    assert seen == {1, 2, 3, 4}
    assert store.studies.get("demo").state is StudyState.COMPLETED


@pytest.mark.parametrize("sampler", sorted(SAMPLERS.keys() - {"grid"}))
def test_every_sampler_draws_inside_the_space(
    store: Store, create: Create, claim: Claim, sampler: str
) -> None:
    space = {"x": FloatRange(low=1e-3, high=1, log=True), "n": IntRange(low=2, high=5)}
    create(n_trials=14, sampler=Algorithm(name=sampler), space=space)
    points = []
    for _ in range(14):
        claimed = claim()
        x, n = claimed.params["x"], claimed.params["n"]
        assert isinstance(x, float)
        assert isinstance(n, int)
        assert 1e-3 <= x <= 1
        assert 2 <= n <= 5
        points.append((x, n))
        store.claims.complete(lease_of(claimed), x * n, {})
    assert len(set(points)) == 14
    assert store.studies.get("demo").state is StudyState.COMPLETED


def test_blocked_says_why_nobody_can_serve_a_study(store: Store, create: Create) -> None:
    create(objective="mine.train:run")
    assert "No worker is connected" in (store.studies.get("demo").blocked or "")
    register(store, allow=("objectives.*",))
    assert "--allow 'mine.train'" in (store.studies.get("demo").blocked or "")
    register(store, allow=("mine.*",))
    assert store.studies.get("demo").blocked is None


def test_showing_a_study_reads_no_table_of_trials_from_end_to_end(sqlite_url: str) -> None:
    """SQLite plans without statistics; once it looked through hpo_trial for each trial."""
    store = open_store(sqlite_url)
    store.prepare()
    store.studies.create(definition(), given=frozenset())
    engine, plans = store._database.engine, []

    @sa.event.listens_for(engine, "before_cursor_execute")
    def explain(connection: Any, _cursor: Any, statement: str, given: Any, *_: Any) -> None:
        if statement.startswith("SELECT"):
            cursor = connection.connection.cursor()
            cursor.execute(f"EXPLAIN QUERY PLAN {statement}", given)
            plans.extend(row[3] for row in cursor)

    store.studies.get("demo")
    store.close()
    assert any(plan.startswith("SEARCH hpo_trial") for plan in plans)
    assert [plan for plan in plans if re.match(r"SCAN (hpo_)?trial", plan)] == []
