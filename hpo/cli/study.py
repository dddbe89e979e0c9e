"""`hpo study list|show|best`: what a service knows of its studies."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, Any

import typer

from hpo.cli.options import DEFAULT_URL, AsJson, StudyName, Url
from hpo.errors import NotFound

State = Annotated[str | None, typer.Option(metavar="STATE", help="Only studies in this state.")]


class Archiving(enum.StrEnum):
    FALSE = "false"
    TRUE = "true"
    ANY = "any"


WithTag = Annotated[
    list[str] | None,
    typer.Option("--tag", metavar="TAG", help="Only studies with it; of several, with all."),
]
Prefix = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Only studies whose names begin so.")
]
Archived = Annotated[
    Archiving, typer.Option(help="Leave archived ones out (false), list only them, or any.")
]
ModelFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="FILE",
        help="Where the model goes; STUDY-NUMBER.pt when not given.",
        show_default=False,
    ),
]
Download = Annotated[bool, typer.Option("--download", help="Fetch its model as well.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite FILE.")]
WithTrials = Annotated[bool, typer.Option("--trials", help="List its trials, too.")]


def list_studies(
    url: Url = DEFAULT_URL,
    state: State = None,
    tag: WithTag = None,
    name_prefix: Prefix = None,
    archived: Archived = Archiving.FALSE,
    as_json: AsJson = False,
) -> None:
    """List studies, the newest first.

    States: running, paused, stopping, completed, stopped, failed, deleting.

    Examples:
      hpo study list --state running
      hpo study list --tag paper --name-prefix digits- --archived any
    """
    from hpo.cli.output import console, counts_line, number, print_json, table
    from hpo.client import Client

    with Client(url) as client:
        query = {
            "state": state,
            "tag": tag,
            "name_prefix": name_prefix or None,
            "archived": archived.value,
        }
        studies = list(client.studies(**query))
    if as_json:
        return print_json(studies)
    made = table("study", "state", "trials", "best", "objective", "tags", right=["best"])
    for study in studies:
        made.add_row(
            study["name"],
            f"{study['state']}, archived" if study["archived_at"] else study["state"],
            counts_line(study["counts"]),
            number((study["best"] or {}).get("value")) if study["direction"] else "front",
            study["objective"] or "ask and tell",
            ", ".join(study["tags"]),
        )
    console().print(made if studies else _nothing(query))


def _nothing(query: dict[str, Any]) -> str:
    if any(query[name] for name in ("state", "tag", "name_prefix")):
        return "No study is like that; list all with: hpo study list --archived any"
    if query["archived"] == Archiving.TRUE:
        return "No study is archived."
    return "No studies here; launch one with: hpo study create"


def show(
    name: StudyName, url: Url = DEFAULT_URL, trials: WithTrials = False, as_json: AsJson = False
) -> None:
    """Show one study: what it searches, how far it is, its best trial.

    With --trials also each trial: its step, its value, why it ended.

    Examples:
      hpo study show first --trials
    """
    from hpo.cli.output import console, print_json, trials_table
    from hpo.client import Client

    with Client(url) as client:
        study = client.study(name)
        found = list(client.trials(name)) if trials else []
    if as_json:
        return print_json({**study, "trials": found} if trials else study)
    out = console()
    _print_facts(out, study)
    if trials:
        out.print(trials_table(found, max_steps=study["max_steps"]))


def best(
    name: StudyName,
    file: ModelFile = None,
    download: Download = False,
    force: Force = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show the best parameters found so far, and fetch the model that goes with them.

    While no trial has completed it says so, exit code 1. FILE needs --download. A
    study with several directions has no single best trial; its front is shown, as
    by `hpo study pareto`.

    Examples:
      hpo study best first
      hpo study best first --json > best.json
      hpo study best first --download weights.pt
    """
    from hpo.cli.analysis import print_front
    from hpo.cli.output import has_front, print_json
    from hpo.cli.study_model import download as fetch
    from hpo.client import Client

    if file is not None and not download:
        raise typer.BadParameter("goes with --download", param_hint="FILE")
    with Client(url) as client:
        study = client.study(name)
        if has_front(study):
            if download:
                raise NotFound(
                    f"Study {name} has no single best trial whose model could be fetched"
                )
            front = client.pareto(name)
            return print_json(front) if as_json else print_front(study, front)
        found = client.best(name)
        path = fetch(client, name, found, file, force=force) if download else None
    if as_json:
        return print_json(found if path is None else {**found, "file": str(path)})
    _print_best(found)
    if path is not None:
        typer.echo(f"Its model is in {path}.")


def _print_best(found: dict[str, Any]) -> None:
    from hpo.cli.output import console, number, params_table

    title = f"Trial {found['number']}, value {number(found['value'])}{_at_step(found)}"
    console().print(params_table(title, found["params"]))
    if pruned := found["best_pruned"]:
        words = f"trial {pruned['number']}, value {number(pruned['value'])}{_at_step(pruned)}"
        console().print(f"Best of the pruned ones, which do not count: {words}")


def _at_step(found: dict[str, Any]) -> str:
    return "" if found["step"] is None else f" at step {found['step']}"


def _print_facts(out: Any, study: dict[str, Any]) -> None:
    from hpo.cli.output import (
        counts_line,
        duration,
        front_words,
        has_front,
        number,
        params_table,
        table,
    )

    facts = {
        "state": " ".join(filter(None, [study["state"], study["reason"] or study["blocked"]])),
        "objective": study["objective"] or "none, for ask and tell",
        "direction": ", ".join(study["directions"]),
        "sampler": _algorithm(study["sampler"]),
        "pruner": _algorithm(study["pruner"]),
        "seed": str(study["seed"]),
        "settings": _options(study["settings"]),
        **({"tags": ", ".join(study["tags"])} if study["tags"] else {}),
        **({"notes": study["notes"]} if study["notes"] else {}),
        **({"no models kept": study["models_blocked"]} if study["models_blocked"] else {}),
        "trials": f"{study['n_started']} of {study['budget']['n_trials']} started",
        "time": duration(study["created_at"], study["ended_at"]),
    }
    made = table("study", study["name"])
    for word, fact in facts.items():
        made.add_row(word, fact)
    made.add_row("states", counts_line(study["counts"]))
    out.print(made)
    if has_front(study):
        out.print(front_words(study))
    if study["best"]:
        found = study["best"]
        title = f"Best: trial {found['number']}, value {number(found['value'])}"
        out.print(params_table(title, found["params"]))


def _algorithm(document: dict[str, Any]) -> str:
    return f"{document['name']} {_options({k: v for k, v in document.items() if k != 'name'})}"


def _options(document: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in document.items())
