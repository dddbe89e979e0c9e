"""`hpo demo`: a real study from launch to best parameters, for the first three minutes with hpo."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Annotated, Any

import typer

from hpo.cli.local import LocalOptions, LocalService, choose_port, local_service
from hpo.cli.processes import Interrupts
from hpo.cli.rooms import require_rooms
from hpo.cli.up import announce, prepared, worker_arguments
from hpo.errors import HpoError
from hpo.exits import Exit

EPOCHS = 20
WANTED_ACCURACY = 0.96
STUDY = {
    "name": "digits",
    "objective": "objectives.digits:mlp",
    "n_trials": 20,
    "settings": {"epochs": EPOCHS},
    "sampler": {"name": "tpe", "n_startup_trials": 6},
    # A trial is compared with the median of at least five others, after its third epoch.
    "pruner": {"name": "median", "n_startup_trials": 5, "n_warmup_steps": 3},
    "seed": 1,
}

Keep = Annotated[bool, typer.Option("--keep", help="Leave the service up until Ctrl-C.")]
Data = Annotated[Path, typer.Option(help="Folder; the demo makes one of its own inside.")]
Slots = Annotated[int, typer.Option(min=1, help="Trials at a time.")]


class WeakResult(HpoError):
    """The demo ran, but its best trial is not as good as it should be."""


def demo(keep: Keep = False, data: Data = Path("hpo-data"), slots: Slots = 2) -> None:
    """Train a digit classifier 20 times with what `hpo up` starts, and show the best parameters.

    Examples:
      hpo demo --keep
    """
    require_rooms("storage", "api")
    interrupts = Interrupts()
    interrupts.listen()
    folder = prepared(data / f"demo-{dt.datetime.now():%Y%m%d-%H%M%S}")
    options = LocalOptions(
        data=folder,
        port=choose_port(None),
        worker=worker_arguments(slots=slots, devices="cpu"),
        log_folder=folder,
    )
    try:
        with local_service(options, interrupts) as service:
            announce(service)
            _judge(_launch_and_watch(service), folder)
            typer.echo(f"Dashboard: {options.url}/dashboard")
            if keep:
                typer.echo("The service stays up until Ctrl-C.")
                service.wait_until(lambda: False)
    except KeyboardInterrupt:
        typer.echo("The service has ended.")
        raise typer.Exit(Exit.OK if keep else Exit.INTERRUPTED) from None
    typer.echo(
        "The service has ended; `make demo KEEP=1` leaves it up.\n"
        f"Look at this study again with: hpo up --data {data / folder.name}"
    )


def _launch_and_watch(service: LocalService) -> dict[str, Any]:
    from hpo.cli.study_watch import watch_study
    from hpo.client import Client

    def look_around() -> None:
        service.check()
        if service.interrupts.count:
            raise KeyboardInterrupt

    with Client(service.options.url) as client:
        study, _ = client.create_study(STUDY)
        typer.echo(f"Launched study {study['name']} by REST: POST {service.options.url}/v1/studies")
        return watch_study(client, study["name"], look_around=look_around)


def _judge(study: dict[str, Any], folder: Path) -> None:
    """Raises WeakResult unless the best validation accuracy is what this network can reach."""
    best = study["best"]
    accuracy = best["value"] if best else None
    if not isinstance(accuracy, float) or accuracy < WANTED_ACCURACY:
        raise WeakResult(
            f"the best validation accuracy is {accuracy}, expected {WANTED_ACCURACY} or more; "
            f"what the parts said stands in {folder}"
        )
    typer.echo(f"Validation accuracy: {accuracy:.4f}")
