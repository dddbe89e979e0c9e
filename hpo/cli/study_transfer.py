"""`hpo study clone|warm-start|export|import|adopt`: studies from others, and to elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from hpo.cli.completion import complete_study
from hpo.cli.options import DEFAULT_URL, AsJson, Key, Settings, StudyName, Url, pairs
from hpo.cli.study_create import Direction, Name, NTrials, Objective, merged, read_file

NewName = Annotated[str, typer.Argument(help="Name of the new study.", metavar="NEW")]
Source = Annotated[
    str,
    typer.Argument(
        help="The study whose best trials to take.", metavar="FROM", autocompletion=complete_study
    ),
]
Changes = Annotated[
    Path | None,
    typer.Option(
        "--file", "-f", metavar="FILE", help="YAML or JSON: the fields of the study that change."
    ),
]
NoTrials = Annotated[
    bool, typer.Option("--no-trials", help="Import no trials; samplers begin anew.")
]
Best = Annotated[int, typer.Option("--best", "-k", min=1, help="How many of its best trials.")]
Extend = Annotated[
    bool, typer.Option("--extend", help="Raise the number of trials where there is no room.")
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="FILE.json or FILE.csv; - is standard output. STUDY.json when not given.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the file.")]
File = Annotated[Path, typer.Argument(metavar="FILE", help="An exported study.")]
OtherName = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="Another name for it.")
]
Document = Annotated[
    Path | None,
    typer.Option(
        "--file",
        "-f",
        metavar="FILE",
        help="YAML or JSON, as for study create, with Optuna's name.",
    ),
]

FORMS = {".json": "json", ".csv": "csv"}


def clone(
    name: StudyName,
    new_name: NewName,
    file: Changes = None,
    settings: Settings = None,
    no_trials: NoTrials = False,
    key: Key = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Make a new study of an old one; the trials that still fit go along.

    A field in the file replaces the old one, null takes it back to its default.
    Of space and settings only the members change that are named.

    Examples:
      hpo study clone digits digits-2 --set epochs=50
      hpo study clone digits digits-3 -f changes.yaml --no-trials
    """
    from hpo.cli.output import print_json
    from hpo.client import Client
    from hpo.documents import plain_value

    changes = read_file(file) if file else {}
    if given := pairs(settings, "--set"):
        values = {key: plain_value(value) for key, value in given.items()}
        changes["settings"] = {**(changes.get("settings") or {}), **values}
    with Client(url) as client:
        made = client.clone_study(name, new_name, changes, import_trials=not no_trials, key=key)
    if as_json:
        return print_json(made)
    n_trials = made["study"]["budget"]["n_trials"]
    words = f"{made['n_imported']} trials imported, {made['n_left_out']} did not fit"
    typer.echo(f"Study {new_name} is running: {words}{_why(made)}; it starts {n_trials} more.")


def warm_start(
    name: StudyName,
    source: Source,
    best: Best = 5,
    extend: Extend = False,
    key: Key = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Have the best trials of another study tried next, if their parameters fit.

    Examples:
      hpo study warm-start digits-2 digits --best 3
    """
    from hpo.cli.output import print_json
    from hpo.client import Client

    with Client(url) as client:
        started = client.warm_start(name, source, k=best, extend=extend, key=key)
    if as_json:
        return print_json(started)
    numbers = ", ".join(map(str, started["numbers"])) or "none"
    others = f"; others did not fit{why}" if (why := _why(started)) else ""
    typer.echo(f"Study {name}: trials enqueued from {source}: {numbers}{others}.")


def export(
    name: StudyName,
    output: Output = None,
    force: Force = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Write a whole study to a file: JSON for an import, or its trials as CSV.

    Logs and models stay behind. The file appears when it is whole.

    Examples:
      hpo study export digits -o digits.json
      hpo study export digits -o - > digits.json
      hpo study export digits -o digits.csv
    """
    from hpo.cli.output import print_json
    from hpo.client import Client

    file = output or Path(f"{name}.json")
    with Client(url) as client:
        if str(file) == "-":
            with client.exported(name) as pieces:
                for piece in pieces:
                    sys.stdout.buffer.write(piece)
            return
        form = _form_of(file, force=force)
        with _progress(file.name) as on_bytes:
            client.export_study(name, file, form=form, on_bytes=on_bytes)
    if as_json:
        return print_json({"study": name, "file": str(file), "format": form})
    typer.echo(f"Study {name} is in {file}.")


def import_study(
    file: File,
    name: OtherName = None,
    key: Key = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Bring in a study from a file that `hpo study export` wrote.

    One that had not ended is paused; what was running or enqueued is to be tried.

    Examples:
      hpo study import digits.json
      hpo study import digits.json --name digits-copy
    """
    from hpo.cli.output import print_json
    from hpo.client import Client

    if not file.is_file():
        raise typer.BadParameter(f"there is no file {file}", param_hint="FILE")
    with Client(url) as client:
        brought = client.import_study(file, name=name, key=key)
    if as_json:
        return print_json(brought)
    study = brought["study"]
    words = f"{brought['n_trials']} trials, {brought['n_waiting']} of them to be tried"
    typer.echo(f"Study {study['name']} is {study['state']}: {words}.")
    if study["state"] == "paused":
        typer.echo(f"Next: hpo study resume {study['name']}")


def adopt(
    file: Document = None,
    name: Name = None,
    objective: Objective = None,
    n_trials: NTrials = None,
    direction: Direction = None,
    settings: Settings = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Go on with a study of plain Optuna in the service's database.

    Its trials are history and no part of the budget. First end the programs that
    work on it: trials they left running become FAIL.

    Examples:
      hpo study adopt -f study.yaml
      hpo study adopt --name theirs --direction minimize --n-trials 50 \\
          --objective my_optuna:optuna_objective
    """
    from hpo.cli.output import print_json
    from hpo.client import Client

    directions = direction or []
    given = {
        "name": name,
        "objective": objective,
        "n_trials": n_trials,
        **({"directions": directions} if len(directions) > 1 else {}),
        **({"direction": directions[0]} if len(directions) == 1 else {}),
    }
    with Client(url) as client:
        adopted = client.adopt_study(merged(file, given, pairs(settings, "--set")))
    if as_json:
        return print_json(adopted)
    study = adopted["study"]
    failed = f", {adopted['n_failed']} of them left running and now FAIL"
    found = f"{adopted['n_trials']} trials found{failed if adopted['n_failed'] else ''}"
    new = f"{study['n_started']} of {study['budget']['n_trials']} new ones started"
    typer.echo(f"Study {study['name']} is {study['state']}: {found}; {new}.")


def _why(answer: Mapping[str, Any]) -> str:
    """Which parameters kept trials out, and how many."""
    found = [f"{name} {n_trials}" for name, n_trials in answer["misfits"].items()]
    return f" (by parameter: {', '.join(found)})" if found else ""


def _form_of(file: Path, *, force: bool) -> str:
    if file.suffix not in FORMS:
        raise typer.BadParameter(f"must end in .json or .csv, got {file}", param_hint="--output")
    if file.exists() and not force:
        raise typer.BadParameter(
            f"{file} exists; choose another file, or overwrite it with --force",
            param_hint="--output",
        )
    if not file.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {file.parent}", param_hint="--output")
    return FORMS[file.suffix]


@contextmanager
def _progress(title: str) -> Iterator[Callable[[int], None]]:
    """Shows on a terminal how much has come; how much will come is not known."""
    from hpo.cli.study_model import progress_bar

    with progress_bar(title) as on_bytes:
        yield lambda done: on_bytes(done, 0)
