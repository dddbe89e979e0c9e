"""Watching a study: when it ends, what it shows, and what pruning has saved."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rich.console import Console

from hpo.cli.output import counts_line, duration, number, steps_done, why
from hpo.cli.problems import Interrupted
from hpo.cli.progress import Savings, Snapshot, StillRunning, follow, savings
from hpo.cli.screens import BAR_WIDTH, bar, headline, picture, print_summary, savings_line, screen
from hpo.cli.study_watch import watch_or_leave
from hpo.errors import NotFound, Unavailable


def study(**fields: Any) -> dict[str, Any]:
    """A study as the API shows it."""
    counts = {"WAITING": 0, "RUNNING": 2, "COMPLETE": 3, "PRUNED": 1, "FAIL": 0}
    return {
        "name": "digits",
        "state": "running",
        "reason": None,
        "message": "",
        "blocked": None,
        "metric": "accuracy",
        "settings": {"epochs": 20},
        "max_steps": 20,
        "budget": {"n_trials": 10},
        "counts": counts | fields.pop("counts", {}),
        "directions": ["maximize"],
        "best": {"number": 2, "value": 0.9712345, "params": {"lr": 0.001234567, "opt": "adam"}},
        "created_at": "2026-01-31T12:00:00Z",
        "ended_at": None,
    } | fields


def trial(**fields: Any) -> dict[str, Any]:
    """A trial as the API lists it."""
    return {
        "number": 4,
        "state": "RUNNING",
        "attempt": 1,
        "value": None,
        "last_value": 0.5,
        "values": [],
        "last_step": 6,
        "worker": "node:1",
        "device": "cpu",
        "reason": None,
        "message": "",
        "prune": None,
        "awaiting_attempt": False,
    } | fields


class Scripted:
    """A client whose answers were written down beforehand; an exception is raised."""

    def __init__(self, *studies: dict[str, Any] | BaseException, trials: Any = ()) -> None:
        self.answers, self.listed = iter(studies), list(trials)

    def study(self, name: str) -> dict[str, Any]:
        answer = next(self.answers)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def trials(self, name: str, *, state: str) -> Iterator[dict[str, Any]]:
        return (found for found in self.listed if found["state"] == state)


class Clock:
    """Time that passes by pausing only."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds


def followed(client: Any, **options: Any) -> Iterator[Snapshot]:
    clock = Clock()
    return follow(client, "digits", clock=clock, pause=clock.pause, **options)


class TestFollow:
    def test_the_last_snapshot_is_of_the_ended_study(self) -> None:
        ended = study(state="completed")
        seen = list(followed(Scripted(study(), study(), ended), timeout_seconds=60))
        assert [snapshot.has_ended for snapshot in seen] == [False, False, True]

    def test_an_outage_is_shown_and_waited_for(self) -> None:
        away = Unavailable("nobody there")
        seen = list(followed(Scripted(study(), away, study(state="stopped"))))
        assert [snapshot.outage for snapshot in seen] == ["", "nobody there", ""]

    def test_a_server_that_is_away_from_the_beginning_is_an_error(self) -> None:
        with pytest.raises(Unavailable):
            list(followed(Scripted(Unavailable("nobody there"))))

    def test_a_study_that_vanishes_is_an_error(self) -> None:
        with pytest.raises(NotFound):
            list(followed(Scripted(study(), NotFound("gone"))))

    def test_the_timeout_says_how_far_the_study_is(self) -> None:
        with pytest.raises(StillRunning, match="after 3 s, 4 of 10 trials"):
            list(followed(Scripted(*[study()] * 9), timeout_seconds=3))

    def test_what_looking_around_raises_ends_the_watch(self) -> None:
        def stop() -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            list(followed(Scripted(study(), study()), look_around=stop))


class TestSavings:
    def test_each_pruned_trial_saves_the_steps_it_did_not_make(self) -> None:
        pruned = [trial(state="PRUNED", last_step=step) for step in (3, 9, None)]
        ended = study(state="completed", counts={"PRUNED": 3, "COMPLETE": 7})
        spared = savings(Scripted(trials=pruned), ended)  # type: ignore[arg-type]  # scripted
        assert spared == Savings(n_pruned=3, n_finished=10, saved_steps=46, all_steps=200)
        assert savings_line(spared, unit="epochs") == (
            "3 of 10 trials were pruned; that saved 46 of 200 epochs (23%)."
        )

    def test_unknown_without_a_number_of_steps(self) -> None:
        assert savings(Scripted(), study(max_steps=None)) is None  # type: ignore[arg-type]  # scripted


class TestScreens:
    def text_of(self, *snapshots: Snapshot, terminal: bool, as_json: bool = False) -> str:
        console = Console(force_terminal=terminal, width=120, record=True, color_system=None)
        with console.capture() as capture, screen(console, as_json=as_json) as show:
            for snapshot in snapshots:
                show(snapshot)
        return capture.get()

    def test_without_a_terminal_only_changes_are_printed(self) -> None:
        first, second = Snapshot(study=study()), Snapshot(study=study(counts={"COMPLETE": 4}))
        lines = self.text_of(first, first, second, terminal=False).splitlines()
        assert len(lines) == 2
        assert lines[0].startswith("digits  running  4/10  3 complete  1 pruned  2 running")
        assert lines[0].endswith("best 0.971235 (trial 2)")

    def test_the_live_picture_shows_running_trials(self) -> None:
        snapshot = Snapshot(study=study(), running=[trial(), trial(number=5, last_step=None)])
        text = self.text_of(snapshot, terminal=True)
        for expected in ("4/10 trials", "7/20", "0/20", "node:1 cpu"):
            assert expected in text

    def test_json_is_a_line_for_each_change(self, capsys: pytest.CaptureFixture[str]) -> None:
        best = {"number": 0, "value": float("nan"), "params": {}}
        self.text_of(Snapshot(study=study(best=best)), terminal=False, as_json=True)
        assert json.loads(capsys.readouterr().out)["best"]["value"] == "NaN"

    def test_trouble_is_told(self) -> None:
        shown = headline(Snapshot(study=study(blocked="no worker", best=None), outage="away"))
        assert "blocked: no worker" in shown.plain
        assert "no answer, trying again: away" in shown.plain
        assert "no best yet" in shown.plain

    @pytest.mark.parametrize("n_trials", [1, 3, 7, 1000])
    def test_the_bar_has_one_width(self, n_trials: int) -> None:
        counts = {"COMPLETE": n_trials, "PRUNED": 0, "RUNNING": 0}
        drawn = bar(Snapshot(study=study(counts=counts, budget={"n_trials": n_trials})))
        assert drawn.plain == "━" * BAR_WIDTH + f" {n_trials}/{n_trials} trials"

    def test_a_picture_without_running_trials_has_no_table(self) -> None:
        console = Console(width=120)
        with console.capture() as capture:
            console.print(picture(Snapshot(study=study())))
        assert len(capture.get().splitlines()) == 2

    @pytest.mark.parametrize(
        ("fields", "sentences"),
        [
            ({}, ["completed after 1 min 12 s", "Best: trial 2, accuracy 0.971235", "0.00123457"]),
            ({"best": None, "reason": "why"}, ["completed (why)", "No trial has completed"]),
            (
                {"best": None, "directions": ["minimize", "maximize"]},
                ["Its best trials form a front: hpo study pareto digits"],
            ),
            (
                {"best": None, "directions": ["minimize"] * 2, "counts": {"COMPLETE": 0}},
                ["No trial has completed"],
            ),
            ({"counts": {"FAIL": 3}}, ["3 trials failed; hpo study show digits --trials"]),
        ],
    )
    def test_the_summary(self, fields: dict[str, Any], sentences: list[str]) -> None:
        console = Console(width=120)
        ended = study(state="completed", ended_at="2026-01-31T12:01:12Z", **fields)
        with console.capture() as capture:
            print_summary(console, ended, None)
        assert all(sentence in capture.get() for sentence in sentences)


@pytest.mark.parametrize(
    ("show", "value", "text"),
    [
        (number, 0.1 + 0.2, "0.3"),
        (number, float("-inf"), "-Infinity"),
        (number, None, "-"),
        (number, 12, "12"),
        (lambda end: duration("2026-01-31T12:00:00Z", end), "2026-01-31T12:00:41.6Z", "42 s"),
        (lambda end: duration("2026-01-31T12:00:00Z", end), "2026-01-31T14:05:00Z", "2 h 5 min"),
        (lambda end: duration("2026-01-31T12:00:00Z", end), None, "-"),
        (lambda steps: steps_done(trial(), steps), None, "7"),
        (why, trial(awaiting_attempt=True), "waits for its next attempt"),
        (why, trial(prune={"value": 0.5, "median": 0.75}), "0.5 against median 0.75"),
        (why, trial(reason="diverged"), "diverged"),
        (
            why,
            trial(reason="objective_error", message="ValueError: bad\nmore"),
            "objective_error: ValueError: bad",
        ),
        (
            lambda counts: counts_line(counts).plain,
            {"COMPLETE": 1, "FAIL": 2},
            "1 complete  0 pruned  2 failed  0 running",
        ),
    ],
)
def test_small_words(show: Callable[[Any], str], value: Any, text: str) -> None:
    assert show(value) == text


def test_ctrl_c_ends_the_watching_not_the_study() -> None:
    client: Any = Scripted(study(), KeyboardInterrupt())
    with pytest.raises(Interrupted, match=r"digits goes on; .*hpo study watch digits"):
        watch_or_leave(client, "digits")
