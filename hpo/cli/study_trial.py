"""`hpo study trial|log`: one trial, all of it, and what it has written."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpo.cli.options import DEFAULT_URL, AsJson, StudyName, TrialNumber, Url

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from hpo.client import Client

POLL_SECONDS = 1.0
SHOWN_STEPS = 20
LIVE = ("RUNNING", "WAITING")

Tail = Annotated[
    int | None, typer.Option(min=1, max=10_000, help="Only so many of the last lines.")
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on until the trial has ended.")]


def trial(
    name: StudyName, number: TrialNumber, url: Url = DEFAULT_URL, as_json: AsJson = False
) -> None:
    """Show one trial: parameters, curve, attempts, why it ended, its model.

    Of a long curve it shows the last 20 steps; --json has all.

    Examples:
      hpo study trial first 7
    """
    from hpo.cli.output import console, params_table, print_json
    from hpo.client import Client

    with Client(url) as client:
        found = client.trial(name, number)
    if as_json:
        return print_json(found)
    out = console()
    out.print(_facts(name, found))
    if found["params"]:
        out.print(params_table("Parameters", found["params"]))
    _print_curve(out, found["curve"])
    _print_attempts(out, found["attempts"])


def log(
    name: StudyName,
    number: TrialNumber,
    tail: Tail = None,
    follow: Follow = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Print what a trial has written, all of its attempts.

    With --json a line for each piece of it. Ctrl-C ends the listening, not the trial.

    Examples:
      hpo study log first 7 --tail 50
      hpo study log first 7 --follow
    """
    from hpo.cli.output import print_json
    from hpo.client import Client

    with Client(url) as client:
        state = client.trial(name, number)["state"]  # a number that is wrong is told at once
        pieces = (
            followed(client, name, number, tail=tail)
            if follow
            else client.log(name, number, tail=tail)
        )
        has_written = False
        for piece in pieces:
            has_written = True
            if as_json:
                print_json(piece)
            else:
                typer.echo(piece["text"].removesuffix("\n"))
    if not (has_written or as_json):
        typer.echo(f"Trial {number} of study {name} is {state} and wrote nothing.", err=True)


def followed(
    client: Client,
    name: str,
    number: int,
    *,
    tail: int | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[dict[str, Any]]:
    """The pieces of a log as they come, until the trial has ended; an outage is waited for."""
    from hpo.errors import Unavailable

    seen: int | None = None
    while True:
        try:
            has_ended = client.trial(name, number)["state"] not in LIVE
            query = {"tail": tail} if seen is None else {"after": seen}
            for piece in client.log(name, number, **query):
                seen = piece["id"]
                yield piece
        except Unavailable:
            has_ended = False
        if has_ended:
            return
        pause(POLL_SECONDS)


def _facts(study: str, trial: Mapping[str, Any]) -> Table:
    from hpo.cli.output import duration, number, table, why

    worker = f"{trial['worker'] or ''} {trial['device'] or ''}".strip()
    values = ", ".join(map(number, trial["values"])) or number(trial["value"])
    facts = {
        "state": trial["state"],
        "value": values,
        "why": why(trial),
        "message": trial["message"].rstrip(),
        "prune": _pairs(trial["prune"] or {}),
        "constraints": _pairs(trial["constraints"]),
        "excluded": _exclusion(trial["exclusion"]),
        "model": _model(study, trial),
        "attempt": str(trial["attempt"] or ""),
        "worker": worker,
        "started": trial["started_at"] or "",
        "time": duration(trial["started_at"], trial["ended_at"]),
        "enqueued with": _pairs(trial["enqueued"] or {}),
        "attributes": _pairs(trial["user_attrs"]),
    }
    made = table("trial", f"{study} {trial['number']}")
    for word, fact in facts.items():
        if fact:
            made.add_row(word, fact)
    return made


def _pairs(document: Mapping[str, Any]) -> str:
    from hpo.cli.output import number

    return ", ".join(f"{key} {number(value)}" for key, value in document.items())


def _exclusion(exclusion: Mapping[str, Any] | None) -> str:
    return "" if exclusion is None else exclusion["reason"] or "yes"


def _model(study: str, trial: Mapping[str, Any]) -> str:
    if trial["model"] is None:
        return ""
    path = f"/v1/studies/{study}/trials/{trial['number']}/model"
    return f"{trial['model']['file_name']}, at {path}"


def _print_curve(out: Console, curve: list[dict[str, Any]]) -> None:
    from hpo.cli.output import number, table

    if not curve:
        return
    made = table("step", "value", "verdict", "metrics", right=["step", "value"])
    for point in curve[-SHOWN_STEPS:]:
        verdict = point["verdict"] or "-"
        made.add_row(
            str(point["step"]), number(point["value"]), verdict, _pairs(point["metrics"] or {})
        )
    if len(curve) > SHOWN_STEPS:
        out.print(f"The last {SHOWN_STEPS} of {len(curve)} steps:")
    out.print(made)


def _print_attempts(out: Console, attempts: list[dict[str, Any]]) -> None:
    from hpo.cli.output import duration, number, table

    if not attempts:
        return
    made = table("attempt", "worker", "resumed from step", "time", "outcome", "why")
    for attempt in attempts:
        message = attempt["message"].partition("\n")[0]
        made.add_row(
            str(attempt["attempt"]),
            f"{attempt['worker']} {attempt['device']}".strip(),
            number(attempt["resumed_from_step"]),
            duration(attempt["started_at"], attempt["ended_at"]),
            attempt["outcome"] or "runs",
            ": ".join(filter(None, [attempt["reason"], message])),
        )
    out.print(made)
    for attempt in attempts:
        if attempt["traceback"]:
            out.print(
                f"\nAttempt {attempt['attempt']}:\n{attempt['traceback'].rstrip()}", markup=False
            )
