"""How answers look in a terminal, and how the same answers look to other programs."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from hpo.numbers import encode_number, strict

Document = Mapping[str, Any]

STATE_STYLES = {"COMPLETE": "green", "PRUNED": "yellow", "FAIL": "red", "RUNNING": "cyan"}
# Not a terminal: no wrapping, so that grep and awk find whole lines.
PIPE_WIDTH = 200


def console() -> Console:
    """Standard output, as wide as it is."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=PIPE_WIDTH)


def print_json(document: Any) -> None:
    """One line of strict JSON."""
    typer.echo(json.dumps(strict(document), allow_nan=False, ensure_ascii=False))


def number(value: Any) -> str:
    """A number in six digits; strings such as "NaN" as they are; a dash for nothing."""
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else str(encode_number(value))
    return "-" if value is None else str(value)


def duration(begin: str | None, end: str | None) -> str:
    """The time between two times of the API, in words."""
    if not (begin and end):
        return "-"
    seconds = (dt.datetime.fromisoformat(end) - dt.datetime.fromisoformat(begin)).total_seconds()
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def table(*columns: str, right: Sequence[str] = ()) -> Table:
    """An empty table; the columns named in `right` hold numbers."""
    made = Table()
    for name in columns:
        made.add_column(name, justify="right" if name in right else "left")
    return made


def params_table(title: str, params: Document) -> RenderableType:
    """Parameters by name; the title may be wider than the table."""
    made = table("parameter", "value", right=["value"])
    for name, value in params.items():
        made.add_row(name, number(value))
    return Group(Text(title, style="bold"), made)


def trials_table(trials: Sequence[Document], *, max_steps: int | None) -> Table:
    """Trials, a line each, with how far they are."""
    right = ["trial", "attempt", "step", "value"]
    made = table("trial", "state", "attempt", "step", "value", "worker", "why", right=right)
    for trial in trials:
        state = trial["state"]
        made.add_row(
            str(trial["number"]),
            Text(state, style=STATE_STYLES.get(state, "")),
            str(trial["attempt"]),
            steps_done(trial, max_steps),
            number(trial["last_value"] if trial["value"] is None else trial["value"]),
            f"{trial['worker'] or '-'} {trial['device'] or ''}".strip(),
            why(trial),
        )
    return made


def steps_done(trial: Document, max_steps: int | None) -> str:
    """Steps done so far, of how many."""
    done = 0 if trial["last_step"] is None else trial["last_step"] + 1
    return f"{done}/{max_steps}" if max_steps else str(done)


def why(trial: Document) -> str:
    """Why a trial ended, or what it waits for, with the numbers behind a prune."""
    if trial["awaiting_attempt"]:
        return "waits for its next attempt"
    prune = trial.get("prune")
    if prune and prune.get("median") is not None:
        return f"{number(prune.get('value'))} against median {number(prune['median'])}"
    message = trial["message"].partition("\n")[0]
    return ": ".join(part for part in (trial["reason"], message) if part)


def has_front(study: Document) -> bool:
    """Whether a study has several directions, so that its best trials form a front."""
    return len(study["directions"]) > 1


def front_words(study: Document) -> str:
    """What to do with a study that has a front."""
    return f"Its best trials form a front: hpo study pareto {study['name']}"


def counts_line(counts: Document) -> Text:
    """How many trials are in which state, in words and colours."""
    words = {
        "COMPLETE": "complete",
        "PRUNED": "pruned",
        "FAIL": "failed",
        "RUNNING": "running",
        "WAITING": "waiting",
    }
    parts = [
        Text(f"{counts.get(state, 0)} {word}", style=STATE_STYLES.get(state, ""))
        for state, word in words.items()
        if counts.get(state, 0) or state in ("COMPLETE", "PRUNED", "RUNNING")
    ]
    return Text("  ").join(parts)
