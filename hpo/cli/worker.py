"""`hpo worker`: runs trials on this machine for a service elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from hpo.cli.options import (
    DEFAULT_URL,
    Allow,
    Code,
    Commands,
    Devices,
    EndWithParent,
    OwnSettings,
    Slots,
    Url,
    pairs,
)
from hpo.cli.processes import end_with_parent

SlotsPerDevice = Annotated[
    float, typer.Option(min=0.01, help="Trials at a time on each GPU; slots share its memory.")
]
Preload = Annotated[
    list[str] | None,
    typer.Option(metavar="MODULE", help="Imported once, before trials; give it once for each."),
]
Python = Annotated[
    str | None,
    typer.Option(metavar="PATH", help="Python for the trials; the worker's own when not given."),
]
Isolation = Annotated[
    Literal["forkserver", "spawn"],
    typer.Option(
        help="How a trial's process starts: forkserver is fast, spawn imports everything anew."
    ),
]
Checkpoints = Annotated[
    Path,
    typer.Option(
        envvar="HPO_CHECKPOINTS",
        help="Folder for checkpoints; give all nodes the same one, and any node can resume.",
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        envvar="HPO_TOKEN_FILE",
        exists=True,
        dir_okay=False,
        help="File with a token of the role worker; HPO_TOKEN may hold the token itself. There is "
        "no option for it: anybody can read a command line.",
    ),
]
Name = Annotated[
    str | None, typer.Option(metavar="NAME", help="Name in lists; HOST:PID when not given.")
]
GraceSeconds = Annotated[
    float, typer.Option(min=0, help="Time for checkpoints after SIGTERM, before trials are ended.")
]
MaxOfflineSeconds = Annotated[
    float, typer.Option(min=0, help="Trials go on this long while the API is away.")
]


def worker(
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
    slots: Slots = None,
    devices: Devices = "auto",
    slots_per_device: SlotsPerDevice = 1.0,
    code: Code = None,
    allow: Allow = None,
    settings: OwnSettings = None,
    commands: Commands = None,
    checkpoints: Checkpoints = Path("hpo-data/checkpoints"),
    preload: Preload = None,
    python: Python = None,
    isolation: Isolation = "forkserver",
    name: Name = None,
    grace_seconds: GraceSeconds = 30.0,
    max_offline_seconds: MaxOfflineSeconds = 3600.0,
    with_parent: EndWithParent = False,
) -> None:
    """Run trials on this machine's devices for the service at --url.

    It needs that address and perhaps a token: no database, no Optuna. SIGTERM
    lets trials write their checkpoints and gives them back; a second one ends
    them at once.

    Examples:
      hpo worker --url http://hpo.example:8080
      hpo worker --devices 0,1 --slots-per-device 2 --checkpoints /shared/checkpoints
      hpo worker --code ./my_project --allow 'my_models.*' --set data_dir=/data
    """
    from hpo.worker.agent import run_worker
    from hpo.worker.options import DEFAULT_ALLOW, WorkerOptions

    end_with_parent(with_parent)
    try:
        options = WorkerOptions(
            url=url,
            token_file=token_file,
            slots=slots,
            devices=devices,
            slots_per_device=slots_per_device,
            code=code,
            allow=tuple(allow or DEFAULT_ALLOW),
            preload=tuple(preload or ()),
            commands=commands,
            python=python,
            isolation=isolation,
            checkpoints=checkpoints,
            settings=pairs(settings, "--set"),
            name=name,
            grace_seconds=grace_seconds,
            max_offline_seconds=max_offline_seconds,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    raise typer.Exit(run_worker(options))
