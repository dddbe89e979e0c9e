"""`hpo study create`: launches a study from a document, from options, or from both."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hpo.cli.options import DEFAULT_URL, AsJson, Settings, Url, pairs

File = Annotated[
    Path | None,
    typer.Option(
        "--file",
        "-f",
        metavar="FILE",
        help="YAML or JSON, the same document as the REST body; - reads standard input.",
    ),
]
Name = Annotated[str | None, typer.Option(metavar="NAME", help="Name of the study.")]
Objective = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:NAME", help="What workers optimize; without it, programs ask for trials."
    ),
]
NTrials = Annotated[int | None, typer.Option(min=1, help="How many trials it starts.")]
Direction = Annotated[
    list[str] | None,
    typer.Option(
        metavar="minimize|maximize",
        help="Whether less is better; the objective's own when not given. Give it once for each "
        "value that the objective returns.",
    ),
]
Sampler = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="tpe (when not given), random, grid, cmaes, gp, qmc or nsgaii. Its options go into a "
        "file.",
    ),
]
Pruner = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="median (when not given), percentile, successive_halving, hyperband, patient, "
        "threshold, wilcoxon or none. Its options go into a file.",
    ),
]
Seed = Annotated[
    int | None, typer.Option(help="Seed of sampler and trials; drawn and shown when not given.")
]
Tags = Annotated[
    list[str] | None,
    typer.Option("--tag", metavar="TAG", help="A word to list it by; give it once for each."),
]
Watch = Annotated[bool, typer.Option("--watch", help="Watch it until it ends.")]


def create(
    file: File = None,
    name: Name = None,
    objective: Objective = None,
    n_trials: NTrials = None,
    direction: Direction = None,
    sampler: Sampler = None,
    pruner: Pruner = None,
    seed: Seed = None,
    settings: Settings = None,
    tag: Tags = None,
    watch: Watch = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Launch a study; workers begin with it at once.

    Options stand above what the file says. The objective says what is left out:
    space, direction, metric and steps.

    Examples:
      hpo study create -f study.yaml --watch
      hpo study create --name first --n-trials 20 \\
          --objective objectives.synthetic:quadratic
      hpo study create -f study.yaml --name second --set epochs=50
    """
    from hpo.cli.study_watch import watch_or_leave
    from hpo.client import Client

    given = {
        "name": name,
        "objective": objective,
        "n_trials": n_trials,
        **_directions(direction or []),
        "sampler": sampler,
        "pruner": pruner,
        "seed": seed,
        "tags": tag,
    }
    document = merged(file, given, pairs(settings, "--set"))
    with Client(url) as client:
        study, is_new = client.create_study(document)
        _announce(study, is_new=is_new, is_watched=watch, as_json=as_json)
        if watch:
            watch_or_leave(client, study["name"], as_json=as_json)


def _directions(given: list[str]) -> dict[str, Any]:
    return {"directions": given} if len(given) > 1 else {"direction": next(iter(given), None)}


def merged(file: Path | None, given: dict[str, Any], settings: dict[str, str]) -> dict[str, Any]:
    """The document of the file with the options put over it. Raises a usage error without any."""
    from hpo.documents import plain_value

    document = read_file(file) if file else {}
    document.update({field: value for field, value in given.items() if value is not None})
    if settings:
        values = {key: plain_value(value) for key, value in settings.items()}
        document["settings"] = {**(document.get("settings") or {}), **values}
    if not document:
        raise typer.BadParameter("give a file with -f, or --name, --objective and --n-trials")
    return document


def read_file(file: Path) -> dict[str, Any]:
    """The document in a file. Raises a usage error when there is none."""
    from hpo.documents import read_document

    if str(file) != "-" and not file.is_file():
        raise typer.BadParameter(f"there is no file {file}", param_hint="--file")
    return read_document(file)


def _announce(study: dict[str, Any], *, is_new: bool, is_watched: bool, as_json: bool) -> None:
    from hpo.cli.output import print_json

    if as_json:
        return print_json(study)
    name, budget = study["name"], study["budget"]["n_trials"]
    objective = study["objective"] or "ask and tell"
    if is_new:
        typer.echo(f"Study {name}: launched, {budget} trials of {objective}.")
    else:
        typer.echo(f"Study {name} exists with the same definition; it is {study['state']}.")
    if study["blocked"]:
        typer.echo(f"It waits: {study['blocked']}")
    if study["objective"] is None:
        typer.echo("No worker runs it; programs ask for its trials.")
    if not is_watched:
        typer.echo(f"Watch it with: hpo study watch {name}")
