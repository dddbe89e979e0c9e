"""`hpo study delete`: the one command whose effect nobody can undo, so it asks."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from hpo.cli.options import DEFAULT_URL, AsJson, StudyName, Url

Force = Annotated[
    bool, typer.Option("--force", help="Also when it has not ended: its trials end at once.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def delete(
    name: StudyName,
    force: Force = False,
    yes: Yes = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Delete a study: its trials, logs, models and checkpoints. Nobody can undo it.

    On a terminal it asks first. When it returns, the name is free; workers remove
    checkpoints at their next heartbeat.

    Examples:
      hpo study delete first
      hpo study delete first --force --yes
    """
    from hpo.cli.output import print_json
    from hpo.client import Client

    with Client(url) as client:
        if not yes and sys.stdin.isatty():
            typer.confirm(_question(client.study(name)), abort=True, err=True)
        study = client.delete_study(name, force=force)
    if as_json:
        return print_json(study)
    typer.echo(f"Study {name} is deleted.")


def _question(study: dict[str, Any]) -> str:
    n_trials = sum(study["counts"].values())
    return f"Delete study {study['name']} ({study['state']}) with its {n_trials} trials for good?"
