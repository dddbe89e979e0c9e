"""`hpo dashboard`: the process in which `hpo api` has optuna-dashboard served; not for users."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from hpo.cli.options import DashboardWrites, Database, EndWithParent
from hpo.cli.processes import end_with_parent
from hpo.cli.rooms import require_rooms

SocketFd = Annotated[int, typer.Option("--socket-fd", help="The open socket to listen on.")]
ArtifactsFolder = Annotated[
    Path | None, typer.Option("--artifacts", help="The folder of artifacts.")
]


def dashboard(
    db: Database,
    socket_fd: SocketFd,
    artifacts: ArtifactsFolder = None,
    dashboard_writes: DashboardWrites = False,
    with_parent: EndWithParent = False,
) -> None:
    """Serve the pages of optuna-dashboard to the API that has started this process."""
    require_rooms("storage", "api")
    from api.dashboard_server import serve_dashboard
    from api.logs import set_up_logs

    end_with_parent(with_parent)
    set_up_logs("text", level=logging.WARNING)
    serve_dashboard(db, fd=socket_fd, artifacts=artifacts, writes=dashboard_writes)
