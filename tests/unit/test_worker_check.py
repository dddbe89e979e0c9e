"""`check_objective` runs the first steps of an objective and says what it thinks of them."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpo.errors import InvalidField
from hpo.space import Categorical, FloatRange, IntRange
from hpo.worker.check import GOES_ON, NEVER_ASKS, NOT_FINITE, REPORTS_NOTHING, CheckReport, draw
from hpo.worker.check import check_objective as check
from hpo.worker.endings import Ending

HEAD = "import hpo\nfrom pathlib import Path\n"
GOOD = """
@hpo.objective(
    direction="minimize", settings={"epochs": 9},
    space={"x": hpo.FloatRange(low=0, high=1), "n": hpo.IntRange(low=1, high=3)},
)
def checked(trial):
    trial.set_user_attr("where", str(trial.checkpoint_dir))
    trial.start(None)
    (trial.checkpoint_dir / "checkpoint").touch()
    for step in range(trial.settings["epochs"]):
        trial.report(trial.params["x"], step)
        if trial.should_prune():
            raise hpo.TrialPruned
    return trial.params["x"]
"""
Checker = Callable[..., CheckReport]


@pytest.fixture
def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checker:
    """Checks the objective `checked` of a piece of code."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "a_module", raising=False)

    def checked(body: str, **given: Any) -> CheckReport:
        (tmp_path / "a_module.py").write_text(HEAD + body)
        return check("a_module:checked", code=tmp_path, **given)

    return checked


def test_a_good_objective_has_no_warnings(checked: Checker) -> None:
    report = checked(GOOD, params={"x": 0.25}, settings={"epochs": 5})
    assert report.is_fine
    assert report.ending.end == "pruned"
    assert report.warnings == ()
    assert [made.value for made in report.reports] == [0.25, 0.25]
    assert report.params.keys() == {"x", "n"}
    assert report.settings == {"epochs": 5}
    assert report.descriptor is not None
    assert str(report).splitlines()[1:3] == ["step 0: 0.25", "step 1: 0.25"]
    assert "works: ended as it should after 2 reports" in str(report)


def test_the_seed_decides_the_parameters(checked: Checker) -> None:
    first, again, other = (checked(GOOD, seed=seed).params for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_fewer_steps_than_asked_are_all(checked: Checker) -> None:
    report = checked(GOOD, steps=4, settings={"epochs": 3})
    assert report.ending.end == "value"
    assert f"returned {report.params['x']:g}" in str(report)


@pytest.mark.parametrize(
    ("body", "warning"),
    [
        ("def checked(trial): return 1.0", REPORTS_NOTHING),
        ("def checked(trial):\n    trial.report(1, 0)\n    return 1.0", NEVER_ASKS),
        ("def checked(trial):\n    for step in range(99): trial.report(1, step)", GOES_ON),
        ("def checked(trial): return float('nan')", NOT_FINITE),
        ("def checked(trial): trial.report(float('inf'), 0)", NOT_FINITE),
    ],
)
def test_habits_that_cost_are_warned_of(checked: Checker, body: str, warning: str) -> None:
    report = checked(body)
    assert warning in report.warnings
    assert f"warning: {warning}" in str(report)


def test_an_objective_that_does_not_hear_is_cut_off(checked: Checker) -> None:
    report = checked("def checked(trial):\n    for step in range(99): trial.report(1, step)")
    assert len(report.reports) == 5


def test_an_objective_may_suggest(checked: Checker) -> None:
    body = (
        "def checked(trial): return trial.suggest_float('x', 1, 2) + trial.suggest_int('n', 5, 5)"
    )
    report = checked(body, params={"x": 1.5})
    assert report.params == {"x": 1.5, "n": 5}
    assert report.ending.value == 6.5


def test_a_fault_is_told_with_its_traceback(checked: Checker) -> None:
    report = checked("def checked(trial): return 1 / 0")
    assert not report.is_fine
    assert "a_module.py" in str(report)
    assert str(report).count("division by zero") == 1
    assert (
        str(report)
        .splitlines()[-1]
        .startswith("failed: objective_error: ZeroDivisionError: division by zero")
    )


def test_what_cannot_be_imported_is_told() -> None:
    report = check("no_such_module:checked")
    assert "No module named 'no_such_module'" in report.ending.message


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"params": {"lr": 0.1}}, "params.lr: is not in the space; it has x, n"),
        ({"params": {"x": 99}}, "params.x: must be from 0 to 1, as its space says, got 99"),
        ({"params": {"n": "2"}}, "params.n: must be from 1 to 3, as its space says, got '2'"),
        ({"settings": {"epocs": 2}}, "settings.epocs: is no setting .*; did you mean epochs?"),
    ],
)
def test_what_no_study_could_have_is_refused(
    checked: Checker, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidField, match=message):
        checked(GOOD, **given)


def test_a_setting_of_the_kit_is_refused_in_one_sentence(hpo_command: Callable[..., Any]) -> None:
    pytest.importorskip("sklearn")
    answer = hpo_command("objective", "check", "objectives.digits:mlp", "--set", "epochs=abc")
    words = "error: settings.epochs: must be a whole number of 1 or more, got 'abc'"
    assert (answer.out, answer.err.strip(), answer.code) == ("", words, 2)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("    trial.report(1, 0)\n    while True: pass", "told to end at report 1"),
        ("    while True:\n        try: pass\n        except Exception: pass", "0 of 1 reports"),
    ],
)
def test_an_objective_that_never_ends_is_ended_with_a_hint(
    checked: Checker, body: str, words: str
) -> None:
    report = checked(f"def checked(trial):\n{body}", steps=1, timeout_seconds=0.1)
    assert not report.is_fine
    assert words in report.ending.message
    assert str(report).count(words) == 1


@pytest.mark.parametrize(
    ("body", "code"),
    [("def checked(trial): return 1.0", 0), ("def checked(trial): return True", 1)],
)
def test_the_command_says_by_its_exit_code_whether_a_worker_could_run_it(
    checked: Checker, tmp_path: Path, hpo_command: Callable[..., Any], body: str, code: int
) -> None:
    (tmp_path / "a_module.py").write_text(HEAD + body)
    answer = hpo_command("objective", "check", "a_module:checked", "--code", str(tmp_path))
    assert answer.code == code
    assert ("does not work here" in answer.err) == bool(code)


finite = st.floats(-1e6, 1e6)


@given(st.tuples(finite, finite).map(sorted), st.integers())
def test_floats_are_drawn_within_their_range(bounds: list[float], seed: int) -> None:
    drawn = draw(FloatRange(low=bounds[0], high=bounds[1]), random.Random(seed))
    assert bounds[0] <= drawn <= bounds[1]  # type: ignore[operator]  # a float


@given(st.tuples(st.floats(1e-9, 1e9), st.floats(1e-9, 1e9)).map(sorted), st.integers())
def test_log_floats_are_drawn_within_their_range(bounds: list[float], seed: int) -> None:
    drawn = draw(FloatRange(low=bounds[0], high=bounds[1], log=True), random.Random(seed))
    assert bounds[0] <= drawn <= bounds[1]  # type: ignore[operator]  # a float


@given(st.integers(0, 2**32))
def test_stepped_values_are_drawn_on_their_grid(seed: int) -> None:
    generator = random.Random(seed)
    stepped = draw(FloatRange(low=0.1, high=1.0, step=0.25), generator)
    assert stepped in [pytest.approx(value) for value in (0.1, 0.35, 0.6, 0.85)]
    assert draw(IntRange(low=1, high=9, step=3), generator) in (1, 4, 7)
    assert draw(IntRange(low=1, high=9, log=True), generator) in range(1, 10)
    assert draw(Categorical(choices=("a", None)), generator) in ("a", None)


def test_nothing_returned_and_nothing_reported_is_not_fine() -> None:
    report = CheckReport(
        objective="m:f",
        descriptor=None,
        params={},
        settings={},
        reports=(),
        ending=Ending(end="value", value=None),
        seconds=0.0,
    )
    assert not report.is_fine
    assert "invalid_result" in str(report)
