"""`hpo up`: the API, one worker and the dashboard on this machine, with one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hpo.cli.local import LocalOptions, LocalService, choose_port, local_service
from hpo.cli.options import (
    DEFAULT_URL,
    Allow,
    AsJson,
    Code,
    Commands,
    DashboardWrites,
    Devices,
    EndWithParent,
    OwnSettings,
    Slots,
)
from hpo.cli.processes import Interrupts, end_with_parent
from hpo.cli.rooms import require_rooms
from hpo.version import __version__

STDERR = 2  # for what the parts print, when standard output is the answer's

Data = Annotated[
    Path, typer.Option(envvar="HPO_DATA", help="Folder for the database and the checkpoints.")
]
Port = Annotated[
    int | None,
    typer.Option(
        min=0, max=65535, help="Port to listen on, 0 for any; the first free one from 8080."
    ),
]
GraceSeconds = Annotated[
    float, typer.Option(min=0, help="Time for trials to write their checkpoints at the end.")
]


def up(
    slots: Slots = None,
    devices: Devices = "auto",
    data: Data = Path("hpo-data"),
    port: Port = None,
    code: Code = None,
    allow: Allow = None,
    settings: OwnSettings = None,
    commands: Commands = None,
    dashboard_writes: DashboardWrites = False,
    grace_seconds: GraceSeconds = 30.0,
    as_json: AsJson = False,
    with_parent: EndWithParent = False,
) -> None:
    """Start a service here: API, worker and dashboard, on SQLite. Ctrl-C ends it.

    Studies live in the data folder; start it again there and they go on. A part that
    is killed is started again. With --json standard output is one document, once the
    service is up.

    Examples:
      hpo up
      hpo up --slots 4 --code ./my_project --allow 'my_models.*'
    """
    require_rooms("storage", "api")
    interrupts = Interrupts()
    interrupts.listen()
    end_with_parent(with_parent)
    options = LocalOptions(
        data=prepared(data),
        port=choose_port(port),
        worker=worker_arguments(
            slots=slots,
            devices=devices,
            code=code,
            allow=allow,
            settings=settings,
            commands=commands,
        ),
        dashboard_writes=dashboard_writes,
        grace_seconds=grace_seconds,
        stdout=STDERR if as_json else None,
    )
    try:
        with local_service(options, interrupts) as service:
            announce(service, as_json=as_json)
            service.wait_until(lambda: False)
    except KeyboardInterrupt:
        typer.echo("The service has ended; its studies are kept.", err=as_json)


def prepared(folder: Path) -> Path:
    """The folder, made when missing, as an absolute path."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


def worker_arguments(
    *,
    slots: int | None,
    devices: str,
    code: Path | None = None,
    allow: list[str] | None = None,
    settings: list[str] | None = None,
    commands: Path | None = None,
) -> list[str]:
    """The options of `up` that are the worker's, as its command line reads them."""
    single = {
        "--slots": slots,
        "--devices": devices,
        "--code": code and code.resolve(),
        "--commands": commands,
    }
    repeated = {"--allow": allow or (), "--set": settings or ()}
    return [
        *(text for name, value in single.items() if value for text in (name, str(value))),
        *(text for name, values in repeated.items() for value in values for text in (name, value)),
    ]


def announce(service: LocalService, *, as_json: bool = False) -> None:
    """Tells where everything is, and what to type next."""
    options = service.options
    if as_json:
        from hpo.cli.output import print_json

        return print_json({"url": options.url, "data": str(options.data), "version": __version__})
    url = "" if options.url == DEFAULT_URL else f" --url {options.url}"
    typer.echo(
        f"hpo {__version__} is up; Ctrl-C ends it.\n"
        f"  API        {options.url}/v1\n"
        f"  API docs   {options.url}/docs\n"
        f"  Dashboard  {options.url}/dashboard\n"
        f"  Data       {options.data}\n"
        "Launch a study from another terminal:\n"
        f"  hpo study create{url} --name first --objective objectives.synthetic:quadratic "
        "--n-trials 20 --watch"
    )
