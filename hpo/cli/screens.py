"""Three ways to show a running study: a live picture, lines for a log, JSON for a program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from hpo.cli.output import (
    STATE_STYLES,
    counts_line,
    duration,
    front_words,
    has_front,
    number,
    params_table,
    print_json,
    trials_table,
)
from hpo.cli.progress import Savings, Snapshot

BAR_WIDTH = 40
Show = Callable[[Snapshot], None]


def screen(console: Console, *, as_json: bool) -> AbstractContextManager[Show]:
    """The screen that fits where the output goes."""
    if as_json:
        return json_lines()
    return live_picture(console) if console.is_terminal else plain_lines(console)


@contextmanager
def live_picture(console: Console) -> Iterator[Show]:
    """Redraws in place."""
    with Live(console=console, auto_refresh=False) as live:
        yield lambda snapshot: live.update(picture(snapshot), refresh=True)


@contextmanager
def plain_lines(console: Console) -> Iterator[Show]:
    """A line whenever something but a step has changed."""
    shown = ""

    def show(snapshot: Snapshot) -> None:
        nonlocal shown
        line = headline(snapshot).plain
        if line != shown:
            console.print(line)
        shown = line

    yield show


@contextmanager
def json_lines() -> Iterator[Show]:
    """The study as a line of JSON whenever it has changed."""
    shown: Any = None

    def show(snapshot: Snapshot) -> None:
        nonlocal shown
        if snapshot.study != shown:
            print_json(snapshot.study)
        shown = snapshot.study

    yield show


def picture(snapshot: Snapshot) -> RenderableType:
    """Progress by state, the best so far, and what runs now."""
    parts: list[RenderableType] = [bar(snapshot), headline(snapshot)]
    if snapshot.running:
        max_steps = snapshot.study["max_steps"]
        parts.append(trials_table(snapshot.running, max_steps=max_steps))
    return Group(*parts)


def bar(snapshot: Snapshot) -> Text:
    """One cell for each share of the budget, coloured by state."""
    drawn = Text()
    for state in ("COMPLETE", "PRUNED", "FAIL", "RUNNING"):
        count = snapshot.study["counts"].get(state, 0)
        width = BAR_WIDTH * count // max(snapshot.n_trials, 1)
        drawn.append("━" * width, style=STATE_STYLES[state])
    drawn.append("━" * (BAR_WIDTH - len(drawn)), style="bright_black")
    return drawn.append(f" {snapshot.n_ended}/{snapshot.n_trials} trials", style="bold")


def headline(snapshot: Snapshot) -> Text:
    """All of it in one line."""
    study = snapshot.study
    parts = [
        Text(f"{study['name']}  {study['state']}"),
        Text(f"{snapshot.n_ended}/{snapshot.n_trials}"),
        counts_line(study["counts"]),
        Text(_best_words(study)),
    ]
    if study["blocked"]:
        parts.append(Text(f"blocked: {study['blocked']}", style="red"))
    if snapshot.outage:
        parts.append(Text(f"no answer, trying again: {snapshot.outage}", style="red"))
    return Text("  ").join(parts)


def print_summary(console: Console, study: dict[str, Any], spared: Savings | None) -> None:
    """How the study ended: time, trials, what pruning saved, and the best parameters."""
    took = duration(study["created_at"], study["ended_at"])
    why = f" ({study['reason']})" if study["reason"] else ""
    console.print(f"\nStudy {study['name']}: {study['state']}{why} after {took}.")
    if spared is not None:
        console.print(savings_line(spared, unit=step_unit(study)))
    if n_failed := study["counts"].get("FAIL", 0):
        asked = f"hpo study show {study['name']} --trials"
        console.print(f"{n_failed} trials failed; {asked} tells why.", soft_wrap=True)
    if has_front(study) and study["counts"].get("COMPLETE", 0):
        console.print(front_words(study), soft_wrap=True)
        return
    if study["best"] is None:
        console.print("No trial has completed with a finite value.")
        return
    best, metric = study["best"], study["metric"] or "value"
    title = f"Best: trial {best['number']}, {metric} {number(best['value'])}"
    console.print(params_table(title, best["params"]))


def step_unit(study: Mapping[str, Any]) -> str:
    """What the study's steps are called: epochs where it is set in epochs."""
    return "epochs" if study["settings"].get("epochs") == study["max_steps"] else "steps"


def savings_line(spared: Savings, *, unit: str) -> str:
    """What pruning saved, in one sentence."""
    return (
        f"{spared.n_pruned} of {spared.n_finished} trials were pruned; that saved "
        f"{spared.saved_steps} of {spared.all_steps} {unit} ({spared.share:.0%})."
    )


def _best_words(study: Mapping[str, Any]) -> str:
    if has_front(study):
        return f"{len(study['directions'])} directions"
    best = study["best"]
    if best is None:
        return "no best yet"
    return f"best {number(best['value'])} (trial {best['number']})"
