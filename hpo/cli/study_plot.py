"""`hpo study plot`: a picture of a study in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from hpo.cli.options import DEFAULT_URL, AsJson, StudyName, Url

Kind = Annotated[
    Literal["history", "curves", "importances", "parallel", "pareto"],
    typer.Option(
        metavar="KIND", help="What it shows; pareto is for studies with several directions."
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="FILE.png, FILE.svg or FILE.html; STUDY-KIND.png when not given.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the file.")]


def plot(
    name: StudyName,
    kind: Kind = "history",
    output: Output = None,
    force: Force = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Draw a picture of a study into a file.

    history: each trial's value, and the best so far. curves: what trials reported.
    importances: how much each parameter matters. parallel: which parameters went with
    which values. pareto: the front. An HTML file tells of each point under the mouse.

    Examples:
      hpo study plot first
      hpo study plot first --kind curves -o curves.html
    """
    from hpo.cli.output import print_json
    from hpo.client import Client
    from hpo.plots import plot as draw
    from hpo.plots.picture import checked

    file = checked(output or Path(f"{name}-{kind}.png"))
    if file.exists() and not force:
        raise typer.BadParameter(f"{file} exists; overwrite it with --force", param_hint="--output")
    with Client(url) as client:
        picture = draw(client, name, kind)
    picture.save(file)
    if as_json:
        return print_json({"study": name, "kind": kind, "file": str(file)})
    typer.echo(f"The picture is in {file}.")
