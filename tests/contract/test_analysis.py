"""Analysis on every backend: importances, history, Pareto front and pruning."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import optuna
import pytest
import sqlalchemy as sa
from optuna.distributions import FloatDistribution
from optuna.storages import RDBStorage
from optuna.trial import TrialState as OptunaState
from optuna.trial import create_trial

from hpo.errors import NotFound, TooFewTrials
from hpo.space import FloatRange
from hpo.study import Direction, StudyDefinition
from hpo.trial import Measurement, TrialState
from storage import tables as t
from storage.analysis import Course
from storage.records import Claimed
from storage.store import Store
from tests.builders import lease_of

Create = Callable[..., StudyDefinition]
Claim = Callable[[], Claimed]
Add = Callable[..., None]
UNIT = FloatDistribution(0, 1)


@pytest.fixture
def add(store: Store, create: Create, stock: RDBStorage) -> Add:
    """Adds complete trials with these values and parameters to `demo`, quickly."""

    def add(values: list[float], params: list[dict[str, float]] | None = None) -> None:
        study = optuna.load_study(study_name="demo", storage=stock)
        for value, point in zip(values, params or [{}] * len(values), strict=True):
            unit = dict.fromkeys(point, UNIT)
            study.add_trial(create_trial(value=value, params=point, distributions=unit))

    return add


def count_statements(store: Store, call: Callable[[], Any]) -> int:
    statements: list[str] = []
    engine = store._database.engine

    def note(*args: Any) -> None:
        statements.append(args[2])

    sa.event.listen(engine, "before_cursor_execute", note)
    call()
    sa.event.remove(engine, "before_cursor_execute", note)
    return len(statements)


class TestImportances:
    def test_the_parameter_that_matters_comes_first(
        self, store: Store, create: Create, add: Add
    ) -> None:
        create(space={"x": FloatRange(low=0, high=1), "y": FloatRange(low=0, high=1)})
        draw = random.Random(1)
        params = [{"y": draw.random(), "x": draw.random()} for _ in range(60)]
        add([(point["x"] - 0.3) ** 2 for point in params], params)
        found = store.analysis.importances("demo")
        assert list(found.by_parameter) == ["x", "y"]
        assert found.n_trials == 60
        assert math.isclose(sum(found.by_parameter.values()), 1)
        assert found.by_parameter["x"] > 0.8

    def test_excluded_trials_and_infinite_values_are_left_out(
        self, store: Store, create: Create, add: Add
    ) -> None:
        create()
        add([1.0, 2.0, 3.0, 4.0, 5.0, math.inf], [{"x": i / 6} for i in range(6)])
        assert store.analysis.importances("demo").n_trials == 5
        store.trial_changes.exclude("demo", 0, "")
        with pytest.raises(TooFewTrials, match="5 completed trials or more") as refused:
            store.analysis.importances("demo")
        assert refused.value.facts == {"study": "demo", "n_trials": 4, "needed": 5}

    def test_equal_values_say_nothing(self, store: Store, create: Create, add: Add) -> None:
        create()
        add([1.0] * 8, [{"x": i / 8} for i in range(8)])
        with pytest.raises(TooFewTrials, match="8 trials with 1 values"):
            store.analysis.importances("demo")

    def test_without_parameters_there_is_nothing_to_rank(
        self, store: Store, create: Create, add: Add
    ) -> None:
        create(space=None)
        add([1.0, 2.0, 3.0, 4.0, 5.0])
        assert store.analysis.importances("demo").by_parameter == {}


class TestHistory:
    @pytest.mark.parametrize(
        ("direction", "improving"),
        [(Direction.MINIMIZE, [0, 2, 5]), (Direction.MAXIMIZE, [0, 1, 4])],
    )
    def test_only_what_was_better_than_all_before(
        self, store: Store, create: Create, add: Add, direction: Direction, improving: list[int]
    ) -> None:
        create(direction=direction)
        add([3.0, 4.0, 2.0, math.inf, 5.0, -1.0, 2.0, -1.0])
        found = store.analysis.history("demo", course=Course.NUMBER, limit=10)
        assert [step.number for step in found.improvements] == improving
        assert found.n_improvements == len(improving)

    def test_by_time_it_is_the_end_of_a_trial_that_counts(
        self, store: Store, create: Create, claim: Claim
    ) -> None:
        create()
        first, second = claim(), claim()
        store.claims.complete(lease_of(second), 1.0, {})
        store.claims.complete(lease_of(first), 2.0, {})

        def numbers(course: Course) -> list[int]:
            found = store.analysis.history("demo", course=course, limit=10)
            return [step.number for step in found.improvements]

        assert numbers(Course.NUMBER) == [0, 1]
        assert numbers(Course.TIME) == [1]

    def test_excluded_trials_are_left_out(self, store: Store, create: Create, add: Add) -> None:
        create()
        add([3.0, 1.0, 2.0])
        store.trial_changes.exclude("demo", 1, "")
        found = store.analysis.history("demo", course=Course.NUMBER, limit=10)
        assert [step.value for step in found.improvements] == [3.0, 2.0]

    def test_many_improvements_are_thinned_between_their_ends(
        self, store: Store, create: Create, add: Add
    ) -> None:
        create()
        add([float(-index) for index in range(30)])
        found = store.analysis.history("demo", course=Course.NUMBER, limit=4)
        assert found.n_improvements == 30
        assert [step.number for step in found.improvements] == [0, 10, 19, 29]


def test_the_front_of_one_objective_is_its_best_trial(
    store: Store, create: Create, add: Add
) -> None:
    create()
    assert store.analysis.pareto("demo").trials == []
    add([3.0, 1.0])
    (trial,) = store.analysis.pareto("demo").trials
    assert (trial.number, trial.values) == (1, [1.0])


class TestPruning:
    def test_what_it_spared_and_which_was_the_closest_call(
        self, store: Store, create: Create, claim: Claim, stock: RDBStorage
    ) -> None:
        create(n_trials=20, max_steps=10, direction=Direction.MAXIMIZE)
        curves: list[tuple[OptunaState, list[float]]] = [
            (OptunaState.COMPLETE, [0.5] * 9 + [0.9]),
            (OptunaState.PRUNED, [0.1, 0.2]),
            (OptunaState.PRUNED, [0.1, 0.2, 0.45]),
            (OptunaState.PRUNED, [math.inf]),
            (OptunaState.PRUNED, []),
            (OptunaState.COMPLETE, [0.4] * 10),
            (OptunaState.FAIL, [0.6]),
        ]
        study = optuna.load_study(study_name="demo", storage=stock)
        for state, curve in curves:
            value = curve[-1] if state is OptunaState.COMPLETE else None
            values = dict(enumerate(curve))
            study.add_trial(create_trial(state=state, value=value, intermediate_values=values))
        found = store.analysis.pruning("demo")
        assert (found.n_pruned, found.n_complete, found.max_steps) == (4, 2, 10)
        assert (found.done_steps, found.saved_steps) == (26, 34)
        assert found.share == 34 / 60
        assert found.by_reason == {"pruner": 4}
        assert found.nearest is not None
        assert (found.nearest.number, found.nearest.step) == (2, 2)
        assert (found.nearest.value, found.nearest.best_value) == (0.45, 0.5)
        assert found.nearest.gap == 0.5 - 0.45
        store.trial_changes.exclude("demo", 2, "")
        again = store.analysis.pruning("demo")
        assert again.n_pruned == 3
        assert again.nearest is not None
        assert again.nearest.number == 1

    def test_reasons_are_told_apart(self, store: Store, create: Create, claim: Claim) -> None:
        create()
        held = claim()
        store.claims.report(lease_of(held), Measurement(step=0, value=math.nan), {})
        store.claims.prune(lease_of(held), {})
        assert store.analysis.pruning("demo").by_reason == {"diverged": 1}

    def test_without_max_steps_the_longest_complete_curve_counts(
        self, store: Store, create: Create, claim: Claim, stock: RDBStorage
    ) -> None:
        create()
        empty = store.analysis.pruning("demo")
        assert (empty.max_steps, empty.saved_steps, empty.share, empty.nearest) == (None,) * 4
        study = optuna.load_study(study_name="demo", storage=stock)
        values = {0: 1e308, 2**31 - 1: -1e308}
        study.add_trial(create_trial(value=1.0, intermediate_values=values))
        pruned = create_trial(state=OptunaState.PRUNED, intermediate_values={0: -1e308})
        study.add_trial(pruned)
        found = store.analysis.pruning("demo")
        assert found.max_steps == 2**31
        assert found.saved_steps == 2**31 - 1
        assert found.nearest is not None
        assert found.nearest.gap == -math.inf


def test_analysis_of_no_study_is_not_found(store: Store) -> None:
    for call in (
        store.analysis.importances,
        store.analysis.pareto,
        store.analysis.pruning,
        lambda name: store.analysis.history(name, course=Course.TIME, limit=2),
    ):
        with pytest.raises(NotFound):
            call("nobody")


def test_ten_thousand_trials_take_no_more_statements(store: Store, create: Create) -> None:
    create(n_trials=10_000)
    calls: list[Callable[[], Any]] = [
        lambda: store.analysis.importances("demo"),
        lambda: store.analysis.history("demo", course=Course.TIME, limit=500),
        lambda: store.analysis.pareto("demo"),
        lambda: store.analysis.pruning("demo"),
    ]
    fill(store, 0, 20)
    few = [count_statements(store, call) for call in calls]
    fill(store, 20, 10_000)
    many = [count_statements(store, call) for call in calls]
    # Optuna's cache asks once more for what has ended since.
    assert all(after <= before for before, after in zip(few, many, strict=True)), (few, many)
    assert max(many) <= 11
    course = store.analysis.history("demo", course=Course.NUMBER, limit=500)
    assert (course.n_improvements, len(course.improvements)) == (10_000, 500)
    assert store.studies.get("demo").counts[TrialState.COMPLETE] == 10_000


def fill(store: Store, first: int, last: int) -> None:
    """Complete trials, each better than the one before."""

    def write(connection: sa.Connection) -> None:
        study_id = connection.execute(sa.select(t.hpo_study.c.study_id)).scalar_one()
        numbers = range(first, last)
        facts = {"study_id": study_id, "state": "COMPLETE"}
        insert = t.trials.insert().returning(t.trials.c.trial_id, sort_by_parameter_order=True)
        times = {name: sa.func.now() for name in ("datetime_start", "datetime_complete")}
        ids = (
            connection.execute(
                insert.values(times), [{**facts, "number": number} for number in numbers]
            )
            .scalars()
            .all()
        )
        rows = [
            {"trial_id": i, "objective": 0, "value": -float(n), "value_type": "FINITE"}
            for i, n in zip(ids, numbers, strict=True)
        ]
        connection.execute(t.trial_values.insert(), rows)
        params = [
            {
                "trial_id": i,
                "param_name": "x",
                "param_value": n / 10_000,
                "distribution_json": optuna.distributions.distribution_to_json(UNIT),
            }
            for i, n in zip(ids, numbers, strict=True)
        ]
        connection.execute(t.trial_params.insert(), params)

    store._database.write(write)
