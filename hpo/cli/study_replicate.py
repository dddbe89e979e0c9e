"""`hpo study replicate`: the best parameters under other seeds, to see how far luck went."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hpo.cli.options import DEFAULT_URL, AsJson, StudyName, Url

if TYPE_CHECKING:
    from hpo.replication import Replication

Seeds = Annotated[int, typer.Option(min=1, help="How many other seeds.")]
Number = Annotated[
    int | None,
    typer.Option(
        "--trial", min=0, metavar="TRIAL", help="Number of the trial; the best when not given."
    ),
]
NewName = Annotated[
    str | None,
    typer.Option(
        "--name", metavar="NAME", help="Name of the new study; STUDY-replicate when not given."
    ),
]
Watch = Annotated[bool, typer.Option("--watch", help="Watch it until it ends.")]


def replicate(
    name: StudyName,
    seeds: Seeds = 5,
    trial: Number = None,
    new_name: NewName = None,
    watch: Watch = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Try the best parameters under other seeds; shows each value, mean and spread.

    The trials are a study of their own. The same command again shows how it stands;
    with more --seeds it goes on.

    Examples:
      hpo study replicate first --seeds 5 --watch
      hpo study replicate first --trial 7 --name first-7-replicate
    """
    from hpo.cli.output import print_json
    from hpo.cli.progress import follow
    from hpo.cli.study_watch import watch_or_leave
    from hpo.client import Client
    from hpo.replication import read_replication
    from hpo.replication import replicate as launch

    with Client(url) as client:
        study = launch(
            client, name, seeds=seeds, number=trial, new_name=new_name or f"{name}-replicate"
        )
        if watch and as_json:
            for _ in follow(client, study["name"]):
                pass
        elif watch:
            watch_or_leave(client, study["name"])
        found = read_replication(client, study["name"])
    if as_json:
        return print_json(found.to_json())
    _print(found)


def _print(found: Replication) -> None:
    from rich.text import Text

    from hpo.cli.output import STATE_STYLES, console, number, table

    out, study = console(), found.study
    original = f"{study['replicates']}, value {number(found.original['value'])}"
    made = table("trial", "seed", "state", "value", right=["trial", "seed", "value"])
    for trial in found.trials:
        state = Text(trial["state"], style=STATE_STYLES.get(trial["state"], ""))
        seed = str(found.seed_of(trial["number"]))
        made.add_row(str(trial["number"]), seed, state, number(trial["value"]))
    out.print(f"Study {study['name']} is {study['state']}; it replicates trial {original}.")
    if found.trials:
        out.print(made)
    out.print(
        f"{len(found.values)} of {study['budget']['n_trials']} values: "
        f"mean {number(found.mean)}, standard deviation {number(found.standard_deviation)}"
    )
