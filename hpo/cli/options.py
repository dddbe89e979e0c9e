"""Options that several commands share, with their environment variables and help."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from hpo.cli.completion import complete_study

DEFAULT_URL = "http://127.0.0.1:8080"


def _check_url(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise typer.BadParameter(f"must begin with http:// or https://, got {url!r}")
    return url


def _check_commands(file: Path | None) -> Path | None:
    if file is not None:
        from hpo.commands import read_commands

        read_commands(file)  # a mistake in it ends the command, not the trials
        return file.resolve()
    return None


Url = Annotated[
    str,
    typer.Option(envvar="HPO_URL", callback=_check_url, metavar="URL", help="Address of the API."),
]
Database = Annotated[
    str,
    typer.Option(
        envvar="HPO_DB",
        metavar="URL",
        help="Database: sqlite:///hpo.db, or postgresql+psycopg://USER:PASSWORD@HOST/NAME.",
    ),
]
Key = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="Any text of your own: the same command with it, again within a day, does nothing "
        "twice.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")]
StudyName = Annotated[
    str,
    typer.Argument(help="Name of the study.", metavar="STUDY", autocompletion=complete_study),
]
TrialNumber = Annotated[int, typer.Argument(min=0, help="Number of the trial.", metavar="TRIAL")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A fixed value for the objective, such as epochs=20; give it once for each.",
    ),
]
OwnSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A setting that stands above those of studies here, such as data_dir=/data; give it "
        "once for each.",
    ),
]
Slots = Annotated[
    int | None,
    typer.Option(
        min=1,
        envvar="HPO_SLOTS",
        help="Trials at a time; one for each GPU, or one on the CPU, when not given.",
    ),
]
Devices = Annotated[
    str,
    typer.Option(
        envvar="HPO_DEVICES",
        metavar="DEVICES",
        help="auto (all GPUs, or the CPU when there is none), cpu, or GPU numbers such as 0,1.",
    ),
]
Code = Annotated[
    Path | None,
    typer.Option(
        envvar="HPO_CODE",
        exists=True,
        file_okay=False,
        help="Folder with your objectives, put first on sys.path of each trial.",
    ),
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        envvar="HPO_ALLOW",
        metavar="PATTERN",
        help="Modules that studies may name, such as 'my_models.*'; give it once for each. "
        "Default: objectives.*",
    ),
]
Commands = Annotated[
    Path | None,
    typer.Option(
        envvar="HPO_COMMANDS",
        exists=True,
        dir_okay=False,
        callback=_check_commands,
        metavar="FILE",
        help="YAML file of the programs that studies of objectives.command:run may name.",
    ),
]
DashboardWrites = Annotated[
    bool,
    typer.Option(
        "--dashboard-writes",
        help="Let people change studies in the dashboard, too: rename, note, tell and delete.",
    ),
]
# The other end of this pipe is held by the process that started us, and by nobody else.
EndWithParent = Annotated[bool, typer.Option("--end-with-parent", hidden=True)]


def pairs(items: Sequence[str] | None, option: str) -> dict[str, str]:
    """Reads KEY=VALUE options. Raises a usage error that names the option."""
    found: dict[str, str] = {}
    for item in items or ():
        key, equals, value = item.partition("=")
        if not (key and equals):
            raise typer.BadParameter(f"must read KEY=VALUE, got {item!r}", param_hint=option)
        found[key] = value
    return found
