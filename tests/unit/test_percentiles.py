"""Verdicts from arrays are those of Optuna's own pruners, with the same evidence."""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.storages import InMemoryStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from hpo.search.percentiles import StepValues, decide_from, is_known, thresholds
from hpo.search.pruning import decide
from hpo.search.sampling import SearchStudy
from hpo.study import Algorithm, Budget, Direction, StudyDefinition

values = st.one_of(
    st.floats(-3, 3, allow_nan=False),
    st.sampled_from([0.0, 1.0, math.inf, -math.inf, math.nan]),
)
curves = st.dictionaries(st.integers(0, 6), values, max_size=5)
pruners = st.one_of(
    st.builds(
        lambda name, options: Algorithm(name=name, options=options),
        st.just("median"),
        st.fixed_dictionaries(
            {},
            optional={
                "n_startup_trials": st.integers(0, 4),
                "n_warmup_steps": st.integers(0, 3),
                "interval_steps": st.integers(1, 3),
                "n_min_trials": st.integers(1, 3),
            },
        ),
    ),
    st.builds(
        lambda percentile, options: Algorithm(
            name="percentile", options={"percentile": percentile, **options}
        ),
        st.sampled_from([0.0, 10.0, 25.0, 50.0, 80.0, 100.0]),
        st.fixed_dictionaries({"n_startup_trials": st.integers(0, 2)}),
    ),
    st.just(Algorithm(name="none")),
)


def define(pruner: Algorithm, direction: Direction) -> StudyDefinition:
    return StudyDefinition(
        name="s",
        objective="m:f",
        direction=direction,
        budget=Budget(n_trials=9),
        seed=1,
        pruner=pruner,
    )


def ended(curve: dict[int, float], state: TrialState) -> FrozenTrial:
    return create_trial(
        state=state,
        value=1.0 if state is TrialState.COMPLETE else None,
        intermediate_values=dict(curve),
    )


@given(
    pruner=pruners,
    direction=st.sampled_from(Direction),
    others=st.lists(
        st.tuples(curves, st.sampled_from([TrialState.COMPLETE, TrialState.PRUNED])), max_size=6
    ),
    own=curves,
    newest=st.tuples(st.integers(0, 6), st.floats(-3, 3)),
)
def test_the_verdict_is_optuna_s(
    pruner: Algorithm,
    direction: Direction,
    others: list[tuple[dict[int, float], TrialState]],
    own: dict[int, float],
    newest: tuple[int, float],
) -> None:
    definition = define(pruner, direction)
    own = {**own, newest[0]: newest[1]}
    storage = InMemoryStorage()
    study_id = storage.create_new_study([StudyDirection[direction.name]], "s")
    known = StepValues()
    for curve, state in others:
        storage.create_new_trial(study_id, template_trial=ended(curve, state))
        if state is TrialState.COMPLETE:
            known.add(curve)
    running = create_trial(state=TrialState.RUNNING, intermediate_values=own)
    trial_id = storage.create_new_trial(study_id, template_trial=running)
    expected = decide(SearchStudy(definition, storage, study_id), storage.get_trial(trial_id))
    found = decide_from(definition, lambda: own, lambda: known)
    assert found.verdict is expected.verdict
    assert found.evidence.keys() == expected.evidence.keys()
    for name, fact in expected.evidence.items():
        assert found.evidence[name] == pytest.approx(fact, nan_ok=True), name
    line = thresholds(definition, known, known.steps)
    assert (line is None) is (pruner.name == "none")
    if line is not None and newest[0] in line.steps and found.evidence:
        named = found.evidence.get("median", found.evidence.get("percentile_value"))
        assert line.values[line.steps.index(newest[0])] == pytest.approx(named, nan_ok=True)


@pytest.mark.parametrize(("n_min_trials", "verdict"), [(1, "prune"), (3, "continue")])
def test_a_step_that_few_trials_reached_may_be_left_alone(n_min_trials: int, verdict: str) -> None:
    known = StepValues()
    for last in (10, 10, 10, 10, 10, 100):
        known.add(dict.fromkeys(range(last + 1), 0.5))
    options = {"n_startup_trials": 0, "n_min_trials": n_min_trials}
    definition = define(Algorithm(name="median", options=options), Direction.MINIMIZE)
    own = {11: 0.51}
    assert decide_from(definition, lambda: own, lambda: known).verdict == verdict


@pytest.mark.parametrize("name", ["hyperband", "successive_halving", "patient", "threshold"])
def test_other_pruners_are_asked(name: str) -> None:
    assert not is_known(define(Algorithm(name=name), Direction.MINIMIZE))


def test_what_the_pruner_does_not_look_at_is_not_read() -> None:
    def nothing() -> Any:
        raise AssertionError("not needed")

    silent = define(Algorithm(name="none"), Direction.MINIMIZE)
    assert decide_from(silent, nothing, nothing).verdict == "continue"
    early = define(Algorithm(name="median", options={"n_warmup_steps": 2}), Direction.MINIMIZE)
    assert decide_from(early, lambda: {1: 0.5}, nothing).verdict == "continue"


def test_arrays_grow_while_somebody_looks_at_them() -> None:
    known = StepValues()
    known.add({0: 1.0})
    seen = known.at(0)
    known.add({0: 2.0})
    assert np.array_equal(seen, [1.0])
    assert np.array_equal(known.at(0), [1.0, 2.0])
    assert known.at(7).size == 0


def test_arrays_grow_while_other_threads_look_at_them() -> None:
    known = StepValues()
    for _ in range(5000):
        known.add({0: 1.0})
    is_over = threading.Event()

    def look() -> None:
        while not is_over.is_set():
            known.at(0)

    with ThreadPoolExecutor() as pool:
        looking = [pool.submit(look) for _ in range(3)]
        try:
            for _ in range(2000):
                known.add({0: 2.0})
        finally:
            is_over.set()
        for look_out in looking:
            look_out.result()
    assert known.at(0).size == 7000
