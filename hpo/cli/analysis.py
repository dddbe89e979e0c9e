"""`hpo study importances|history|pareto|pruning`: what came out of a study so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from hpo.cli.options import DEFAULT_URL, AsJson, StudyName, Url

BAR_WIDTH = 30
ByTime = Annotated[bool, typer.Option("--by-time", help="In the order in which trials ended.")]


def importances(name: StudyName, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show how much each parameter matters for reaching the best trials (PED-ANOVA).

    Shares of 1. While too few trials have completed it says so, exit code 1.

    Examples:
      hpo study importances first
    """
    from hpo.cli.output import console, print_json, table
    from hpo.client import Client

    with Client(url) as client:
        found = client.importances(name)
    if as_json:
        return print_json(found)
    made = table("parameter", "importance", "", right=["importance"])
    for share in found["importances"]:
        bar = "━" * round(BAR_WIDTH * share["importance"])
        made.add_row(share["parameter"], f"{share['importance']:.3f}", bar)
    console().print(made)


def history(
    name: StudyName, by_time: ByTime = False, url: Url = DEFAULT_URL, as_json: AsJson = False
) -> None:
    """Show the best value so far: each trial that was better than all before it.

    Examples:
      hpo study history first --by-time
    """
    from hpo.cli.output import console, number, print_json, table
    from hpo.client import Client

    with Client(url) as client:
        found = client.history(name, by="time" if by_time else "number")
    if as_json:
        return print_json(found)
    made = table("trial", "value", "ended", right=["trial", "value"])
    for step in found["improvements"]:
        made.add_row(str(step["number"]), number(step["value"]), step["ended_at"] or "-")
    steps = found["improvements"]
    console().print(made if steps else f"No trial of study {name} has completed yet.")


def pareto(name: StudyName, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show the best trials of a study with several directions: those no other one beats in all.

    With one direction it is the best trial.

    Examples:
      hpo study pareto first
    """
    from hpo.cli.output import print_json
    from hpo.client import Client

    with Client(url) as client:
        study, found = client.study(name), client.pareto(name)
    if as_json:
        return print_json(found)
    print_front(study, found)


def print_front(study: Mapping[str, Any], front: Mapping[str, Any]) -> None:
    """A line for each trial of a Pareto front: its values and its parameters."""
    from hpo.cli.output import console, number, table

    if not front["trials"]:
        return console().print(f"No trial of study {study['name']} has completed yet.")
    names = study["metrics"] or [f"value {n}" for n, _ in enumerate(front["directions"])]
    values = [f"{name} ({way})" for name, way in zip(names, front["directions"], strict=True)]
    made = table("trial", *values, "parameters", right=["trial", *values])
    for trial in front["trials"]:
        params = ", ".join(f"{name} {number(value)}" for name, value in trial["params"].items())
        made.add_row(str(trial["number"]), *map(number, trial["values"]), params)
    console().print(made)


def pruning(name: StudyName, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show what pruning did and spared, and which pruned trial came nearest to the best.

    Examples:
      hpo study pruning first
    """
    from hpo.cli.output import console, number, print_json, table
    from hpo.client import Client

    with Client(url) as client:
        found = client.pruning(name)
    if as_json:
        return print_json(found)
    made = table("pruning", name)
    made.add_row("pruned", f"{found['n_pruned']} of {found['n_pruned'] + found['n_complete']}")
    for reason, n_trials in found["by_reason"].items():
        made.add_row(f"by {reason}", str(n_trials))
    if found["saved_steps"] is not None:
        all_steps = found["saved_steps"] + found["done_steps"]
        made.add_row("steps saved", f"{found['saved_steps']} of {all_steps} ({found['share']:.0%})")
    if nearest := found["nearest"]:
        made.add_row("nearest to the best", f"trial {nearest['number']} at step {nearest['step']}")
        values = f"{number(nearest['value'])} against {number(nearest['best_value'])}"
        made.add_row("", f"{values} of trial {nearest['best_number']}")
    console().print(made)
