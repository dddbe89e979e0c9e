"""`hpo study events`: what happens to a study, line by line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hpo.cli.options import DEFAULT_URL, AsJson, StudyName, Url

if TYPE_CHECKING:
    from hpo.events import Event

Follow = Annotated[
    bool, typer.Option("--follow/--no-follow", help="Go on until the study has ended.")
]
Kinds = Annotated[
    list[str] | None,
    typer.Option(
        "--kind",
        metavar="KIND",
        help="Only such events: report, trial_started, trial_ended, study_state, …; give it once "
        "for each.",
    ),
]
After = Annotated[
    str, typer.Option(metavar="ID", help="The id of the last event seen; 0 for all that are kept.")
]


def events(
    name: StudyName,
    url: Url = DEFAULT_URL,
    follow: Follow = True,
    kinds: Kinds = None,
    after: After = "0",
    as_json: AsJson = False,
) -> None:
    """Tell what has happened to a study and what happens to it, until it ends.

    A service that is away for a while ends nothing, and no event comes twice.

    Examples:
      hpo study events first --no-follow
      hpo study events first --kind trial_ended --json
    """
    from dataclasses import asdict

    from hpo.cli.output import print_json
    from hpo.client import Client

    with Client(url) as client:
        client.study(name)  # a name that is misspelt is told at once
        until = "ended" if follow else "now"
        for event in client.events(name, after=after, kinds=kinds or (), until=until):
            if as_json:
                print_json(asdict(event))
            else:
                typer.echo(_line(event))


def _line(event: Event) -> str:
    from hpo.cli.output import number

    trial = "" if event.number is None else f"trial {event.number}"
    facts = [
        f"{key} {number(value)}" for key, value in event.data.items() if value not in (None, "")
    ]
    time = (event.created_at or "")[:19].replace("T", " ")
    return "  ".join(part for part in (time, event.kind, trial, ", ".join(facts)) if part)
