"""Pruners decide exactly as Optuna does, and each decision shows its numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.storages import InMemoryStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, create_trial

from hpo.numbers import strict
from hpo.search import PRUNERS, SearchStudy, decide
from hpo.study import Algorithm, Budget, Direction, StudyDefinition
from hpo.trial import Decision, Verdict

optuna.logging.set_verbosity(optuna.logging.WARNING)

COMPLETE, PRUNED = optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED
GOOD = dict.fromkeys(range(30), 0.1)
BAD = dict.fromkeys(range(30), 9.0)


def improving(index: int) -> dict[int, float]:
    """A curve that is a little better than those before."""
    return {step: 0.1 - index * step / 1000 for step in range(30)}


class Judged:
    """A study with a history of curves, and one running trial that is judged step by step."""

    def __init__(
        self,
        pruner: str,
        *,
        direction: Direction = Direction.MINIMIZE,
        max_steps: int | None = None,
        **options: Any,
    ) -> None:
        self.definition = StudyDefinition(
            name="s",
            objective="m:f",
            direction=direction,
            budget=Budget(n_trials=50),
            seed=7,
            pruner=Algorithm(name=pruner, options=options),
            max_steps=max_steps,
        )
        self.storage = InMemoryStorage()
        self.study_id = self.storage.create_new_study([StudyDirection[direction.name]], "s")

    def add(
        self, curve: Mapping[int, float], state: optuna.trial.TrialState = COMPLETE, n: int = 1
    ) -> None:
        value = curve[max(curve)] if curve else 0.0
        trial = create_trial(
            state=state, value=0.0 if math.isnan(value) else value, intermediate_values=dict(curve)
        )
        for _ in range(n):
            self.storage.create_new_trial(self.study_id, trial)

    def study(self) -> SearchStudy:
        return SearchStudy(self.definition, self.storage, self.study_id)

    def report(self, trial_id: int, step: int, value: float) -> FrozenTrial:
        self.storage.set_trial_intermediate_value(trial_id, step, value)
        return self.storage.get_trial(trial_id)

    def decisions(self, curve: Mapping[int, float]) -> list[Decision]:
        """The decision at each report of a new trial, up to the first that prunes."""
        trial_id, decisions = self.storage.create_new_trial(self.study_id), []
        for step, value in curve.items():
            decisions.append(decide(self.study(), self.report(trial_id, step, value)))
            if decisions[-1].verdict is Verdict.PRUNE:
                break
        return decisions


def last(judged: Judged, curve: Mapping[int, float]) -> Decision:
    decision = judged.decisions(curve)[-1]
    json.dumps(strict(dict(decision.evidence)), allow_nan=False)
    return decision


@pytest.mark.parametrize(
    ("pruner", "options", "evidence"),
    [
        ("median", {}, {"step": 0, "value": 9.0, "median": 0.1, "n_trials": 6}),
        (
            "percentile",
            {"percentile": 25.0},
            {"step": 0, "value": 9.0, "percentile": 25.0, "percentile_value": 0.1, "n_trials": 6},
        ),
        ("successive_halving", {}, {"step": 1, "value": 9.0, "rung": 0}),
        ("successive_halving", {"min_resource": 4}, {"step": 4, "value": 9.0, "rung": 0}),
        ("hyperband", {}, {"step": 3, "value": 9.0, "rung": 0, "bracket": 1}),
        ("hyperband", {"max_resource": "auto"}, {"step": 3, "value": 9.0, "rung": 0, "bracket": 1}),
        ("threshold", {"upper": 5}, {"step": 0, "value": 9.0, "upper": 5.0}),
        ("patient", {"patience": 3}, None),
        (
            "patient",
            {"patience": 3, "wrapped": "median"},
            None,
        ),
        ("none", {}, None),
    ],
)
def test_a_hopeless_trial_is_pruned_and_a_good_one_is_not(
    pruner: str, options: dict[str, Any], evidence: dict[str, Any] | None
) -> None:
    judged = Judged(pruner, max_steps=30, **options)
    for index in range(6):
        curve_id = judged.storage.create_new_trial(judged.study_id)
        for step, value in improving(index).items():
            assert decide(judged.study(), judged.report(curve_id, step, value)) == Decision(
                verdict=Verdict.CONTINUE
            )
        judged.storage.set_trial_state_values(curve_id, COMPLETE, [0.1])
    decision = last(judged, BAD)
    if evidence is not None:
        assert decision.verdict is Verdict.PRUNE
        assert decision.evidence == {"pruner": pruner, **evidence}
    assert last(judged, improving(6)).verdict is Verdict.CONTINUE


def test_wilcoxon_prunes_what_is_worse_step_by_step() -> None:
    judged = Judged("wilcoxon")
    judged.add({step: float(step % 3) for step in range(8)})
    worse = last(judged, {step: step % 3 + 1 + step / 10 for step in range(8)})
    assert worse.verdict is Verdict.PRUNE
    assert worse.evidence == {
        "pruner": "wilcoxon", "step": 3, "value": 1.3, "p_threshold": 0.1,
    }  # fmt: skip
    better = last(judged, {step: step % 3 - 1 - step / 10 for step in range(8)})
    assert better.verdict is Verdict.CONTINUE


def test_patience_prunes_what_stopped_improving() -> None:
    decisions = Judged("patient", patience=2).decisions({0: 1.0, 1: 1.5, 2: 1.5, 3: 1.5, 4: 1.5})
    assert [decision.verdict for decision in decisions] == ["continue"] * 3 + ["prune"]
    assert decisions[-1].evidence == {
        "pruner": "patient", "step": 3, "value": 1.5, "patience": 2, "min_delta": 0.0,
    }  # fmt: skip


def test_patience_shows_the_numbers_of_the_pruner_it_wraps() -> None:
    judged = Judged("patient", patience=0, wrapped={"name": "median", "n_startup_trials": 1})
    judged.add(GOOD)
    evidence = last(judged, {0: 5.0, 1: 6.0}).evidence
    assert evidence["wrapped"] == {
        "pruner": "median", "step": 1, "value": 5.0, "median": 0.1, "n_trials": 1,
    }  # fmt: skip


def test_a_diverged_curve_is_pruned_without_a_median() -> None:
    judged = Judged("median", n_startup_trials=1)
    judged.add({0: 1.0})
    evidence = last(judged, {0: math.nan}).evidence
    assert math.isnan(evidence["value"])
    assert (evidence["median"], evidence["n_trials"]) == (1.0, 1)


@pytest.mark.parametrize("pruner", ["successive_halving", "hyperband"])
def test_a_nan_is_pruned_at_the_rung_it_did_not_pass(pruner: str) -> None:
    judged = Judged(pruner, max_steps=30, min_resource=1)
    evidence = last(judged, {29: math.nan}).evidence
    assert (evidence["step"], evidence["rung"]) == (29, 0)


@pytest.mark.parametrize("value", [math.inf, -math.inf])
@pytest.mark.parametrize("pruner", [name for name in PRUNERS if name != "none"])
def test_infinite_values_pass_without_a_warning(pruner: str, value: float) -> None:
    options: dict[str, dict[str, Any]] = {
        "percentile": {"percentile": 30},
        "threshold": {"upper": 1e9},
        "patient": {"patience": 1},
    }
    judged = Judged(pruner, max_steps=30, **options.get(pruner, {}))
    judged.add({0: math.inf, 1: 1.0, 2: math.nan}, n=3)
    judged.add({0: -math.inf, 1: math.nan, 2: math.nan}, n=3)
    last(judged, {0: math.nan, 1: value, 2: value, 3: value})


FINITE = st.floats(-10, 10)
CURVE = st.dictionaries(st.integers(0, 4), st.one_of(FINITE, st.just(math.nan)), max_size=5)


@given(
    curves=st.lists(st.tuples(CURVE, st.sampled_from([COMPLETE, PRUNED])), max_size=8),
    curve=st.dictionaries(st.integers(0, 4), st.one_of(FINITE, st.just(math.nan)), min_size=1),
    options=st.fixed_dictionaries(
        {},
        optional={
            "n_startup_trials": st.integers(0, 4),
            "n_warmup_steps": st.integers(0, 3),
            "interval_steps": st.integers(1, 3),
            "n_min_trials": st.integers(1, 3),
        },
    ),
    direction=st.sampled_from(Direction),
)
def test_median_prunes_exactly_when_optuna_does_and_shows_why(
    curves: Sequence[tuple[dict[int, float], optuna.trial.TrialState]],
    curve: dict[int, float],
    options: dict[str, int],
    direction: Direction,
) -> None:
    judged = Judged("median", direction=direction, **options)
    for past, state in curves:
        judged.add(past, state)
    stock = optuna.load_study(
        study_name="s", storage=judged.storage, pruner=optuna.pruners.MedianPruner(**options)
    )
    trial_id = judged.storage.create_new_trial(judged.study_id)
    for step, value in curve.items():
        trial = judged.report(trial_id, step, value)
        decision = decide(judged.study(), trial)
        assert (decision.verdict is Verdict.PRUNE) is bool(stock.pruner.prune(stock, trial))
        if decision.verdict is Verdict.PRUNE:
            _check_median(decision.evidence, [past for past, state in curves if state == COMPLETE],
                          trial.intermediate_values, direction)  # fmt: skip


def _check_median(
    evidence: Mapping[str, Any],
    complete: Sequence[Mapping[int, float]],
    curve: Mapping[int, float],
    direction: Direction,
) -> None:
    """The formula of Optuna's documentation, written once more by hand."""
    step = max(curve)
    values = [past[step] for past in complete if step in past and not math.isnan(past[step])]
    seen = [value for value in curve.values() if not math.isnan(value)]
    assert (evidence["step"], evidence["n_trials"]) == (step, len(values))
    if not seen:
        assert math.isnan(evidence["value"])
        return
    assert evidence["median"] == pytest.approx(float(np.median(values)))
    if direction is Direction.MINIMIZE:
        assert evidence["value"] == min(seen) > evidence["median"]
    else:
        assert evidence["value"] == max(seen) < evidence["median"]
