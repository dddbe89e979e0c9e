"""`hpo objective`: what the workers offer, and whether an objective works before a study does."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext, redirect_stdout
from typing import Annotated

import typer

from hpo.cli.options import DEFAULT_URL, AsJson, Code, Commands, Settings, Url, pairs
from hpo.errors import HpoError
from hpo.study import check_objective_path

Path = Annotated[str, typer.Argument(metavar="MODULE:NAME", help="Import path of the objective.")]
Param = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="A parameter; give it once for each. Others are drawn from the space.",
    ),
]
Steps = Annotated[int, typer.Option(min=1, help="Stop after this many reports.")]
Timeout = Annotated[
    float, typer.Option("--timeout-seconds", min=0.1, help="Give up when it takes longer.")
]
Seed = Annotated[int, typer.Option(help="Seed of the drawn parameters and of the trial.")]
Device = Annotated[str, typer.Option(metavar="DEVICE", help="cpu or cuda.")]


class ObjectiveFailed(HpoError):
    """An objective that a worker could not run."""

    code = "objective_failed"


def check(
    path: Path,
    code: Code = None,
    settings: Settings = None,
    commands: Commands = None,
    param: Param = None,
    steps: Steps = 2,
    seed: Seed = 0,
    device: Device = "cpu",
    timeout_seconds: Timeout = 120.0,
    as_json: AsJson = False,
) -> None:
    """Run the first steps of an objective here, without a service.

    Parameters are drawn from the objective's space; it reports, and its file is
    found, as in a worker.

    Examples:
      hpo objective check objectives.digits:mlp
      hpo objective check my_models:train --code ./my_project --param lr=0.01 --set epochs=3
      hpo objective check objectives.command:run --commands programs.yaml --set command=train
    """
    from hpo.cli.output import print_json
    from hpo.commands import COMMANDS_VARIABLE
    from hpo.documents import plain_value
    from hpo.worker.check import check_objective

    check_objective_path(path)
    if commands is not None:
        os.environ[COMMANDS_VARIABLE] = str(commands)  # as a worker tells its trials
    # What the objective prints itself is no part of the document.
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        report = check_objective(
            path,
            code=code,
            settings={key: plain_value(value) for key, value in pairs(settings, "--set").items()},
            params={key: plain_value(value) for key, value in pairs(param, "--param").items()},
            seed=seed,
            steps=steps,
            device=device,
        )
    if as_json:
        print_json(report.to_json())
    else:
        typer.echo(str(report))
    if not report.is_fine:
        hint = "; give its folder with --code" if code is None else f" in {code}"
        missing = f"No module named {path.partition(':')[0]!r}" in report.ending.message
        raise ObjectiveFailed(f"{path} does not work here" + hint * missing)


def list_objectives(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List the objectives that the registered workers offer.

    Examples:
      hpo objective list
    """
    from hpo.cli.output import console, number, print_json, table
    from hpo.client import Client

    with Client(url) as client:
        found = client.objectives()
    if as_json:
        return print_json(found)
    made = table("objective", "direction", "steps", "parameters", "summary")
    for offer in found:
        made.add_row(
            offer["objective"],
            number(offer["direction"]),
            number(offer["max_steps"]),
            ", ".join(offer["space"] or ()) or "suggested by the objective",
            offer["summary"],
        )
    console().print(made if found else "No worker is registered; start one with: hpo worker")
