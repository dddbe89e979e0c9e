"""`hpo api`: the HTTP server of a service."""

from __future__ import annotations

import ipaddress
import logging
import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hpo.access import token_of
from hpo.cli.options import DashboardWrites, Database, EndWithParent
from hpo.cli.processes import end_with_parent
from hpo.cli.rooms import require_driver, require_rooms
from hpo.errors import SchemaMismatch, Unavailable

if TYPE_CHECKING:
    from api.server import Server
    from storage.store import Store

# With the end of the database's work this stays below ten seconds.
GRACE_SECONDS = 7

Host = Annotated[
    str, typer.Option(envvar="HPO_HOST", metavar="ADDRESS", help="Address to listen on.")
]
Port = Annotated[int, typer.Option(envvar="HPO_PORT", min=1, max=65535, help="Port to listen on.")]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Listen beyond this machine although there is no token: whoever reaches the port can "
        "run any objective that the workers allow.",
    ),
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        envvar="HPO_ALLOW_HOST",
        metavar="NAME",
        help="Another name of this service, such as that of a proxy before it; give it once for "
        "each. On a loopback address requests to other names are refused.",
    ),
]
AllowOrigin = Annotated[
    list[str] | None,
    typer.Option(
        envvar="HPO_ALLOW_ORIGIN",
        metavar="ORIGIN",
        help="A site whose pages may use the API with a token, such as https://lab.example; give "
        "it once for each. None by default.",
    ),
]
RootPath = Annotated[
    str,
    typer.Option(
        envvar="HPO_ROOT_PATH",
        metavar="PATH",
        help="The prefix under which a proxy has this service, such as /hpo; none by default.",
    ),
]
LeaseSeconds = Annotated[
    float,
    typer.Option(
        envvar="HPO_LEASE_SECONDS",
        min=1,
        help="A worker that is silent for longer has lost its trials; workers renew six times as "
        "often.",
    ),
]
ArtifactsFolder = Annotated[
    Path | None,
    typer.Option(
        "--artifacts",
        envvar="HPO_ARTIFACTS",
        file_okay=False,
        help="Folder for the models of the best trials, shared by all API processes; beside a "
        "SQLite file when not given.",
    ),
]
MaxModelBytes = Annotated[
    int, typer.Option(envvar="HPO_MAX_MODEL_BYTES", min=1, help="The largest model to store.")
]
MaxImportBytes = Annotated[
    int,
    typer.Option(envvar="HPO_MAX_IMPORT_BYTES", min=1, help="The largest study to import."),
]
EventDays = Annotated[
    float, typer.Option(envvar="HPO_EVENT_DAYS", help="Events are kept for so many days.")
]
EventRows = Annotated[
    int, typer.Option(envvar="HPO_EVENT_ROWS", min=1, help="About so many events are kept at most.")
]
AccessLog = Annotated[bool, typer.Option("--access-log", help="Log every request.")]
LogFormat = Annotated[
    Literal["text", "json"], typer.Option(envvar="HPO_LOG_FORMAT", help="How log lines look.")
]
# `hpo up` gives its worker a token that stands in no database; the API knows it from the
# environment, where other users of the machine cannot read it.
OwnWorker = Annotated[bool, typer.Option("--own-worker", hidden=True)]


def api(
    db: Database,
    host: Host = "127.0.0.1",
    port: Port = 8080,
    insecure: Insecure = False,
    allow_host: AllowHost = None,
    dashboard_writes: DashboardWrites = False,
    lease_seconds: LeaseSeconds = 60.0,
    allow_origin: AllowOrigin = None,
    root_path: RootPath = "",
    event_days: EventDays = 7.0,
    event_rows: EventRows = 200_000,
    access_log: AccessLog = False,
    log_format: LogFormat = "text",
    own_worker: OwnWorker = False,
    artifacts: ArtifactsFolder = None,
    max_model_bytes: MaxModelBytes = 2 * 1024**3,
    max_import_bytes: MaxImportBytes = 256 * 1024**2,
    with_parent: EndWithParent = False,
) -> None:
    """Serve REST under /v1, its documentation at /docs and optuna-dashboard at /dashboard.

    One process owns a SQLite file; on PostgreSQL start as many as you like.

    Examples:
      hpo api --db sqlite:///hpo.db
      hpo api --db postgresql+psycopg://hpo:secret@db/hpo --port 8080
    """
    check_root_path(root_path)
    end_with_parent(with_parent)
    use_utc()
    require_rooms("storage", "api")
    require_driver(db)
    from api.app import Access, create_app
    from api.logs import set_up_logs
    from storage.events import EventRetention

    set_up_logs(log_format, level=logging.INFO if access_log else logging.WARNING)
    options = {
        "artifacts": artifacts or folder_beside(db),
        "max_model_bytes": max_model_bytes,
        "retention": EventRetention(days=event_days, rows=event_rows),
    }
    with opened(db, lease_seconds=lease_seconds, **options) as store:
        may_be_open = insecure or is_loopback(host)
        if not may_be_open:
            check_tokens(host, store)
        access = Access(
            hosts=own_names(host, allow_host or ()),
            root_path=root_path.rstrip("/"),
            origins=frozenset(allow_origin or ()),
            may_be_open=may_be_open,
            own_token=token_of(os.environ) if own_worker else None,
        )
        app = create_app(
            store,
            dashboard_writes=dashboard_writes,
            reap_seconds=store.times.reap_seconds,
            access=access,
            max_import_bytes=max_import_bytes,
        )
        serve(app, host=host, port=port)


def folder_beside(db: str) -> Path | None:
    """Where models lie by default: beside a SQLite file; a database server has no such place."""
    scheme, _, path = db.partition(":///")
    return Path(path).parent / "artifacts" if scheme.startswith("sqlite") and path else None


def own_names(host: str, others: Sequence[str]) -> frozenset[str] | None:
    """Names by which a service on a loopback address is asked for; elsewhere any will do."""
    if not is_loopback(host):
        return None
    return frozenset({"localhost", "127.0.0.1", "::1", host, *(name.lower() for name in others)})


def check_root_path(path: str) -> None:
    """Raises a usage error for a prefix that no proxy has."""
    if path and not re.fullmatch(r"(/[\w.~-]+)+/?", path):
        raise typer.BadParameter(
            f"must be a path such as /hpo, got {path!r}", param_hint="--root-path"
        )


def check_tokens(host: str, store: Store) -> None:
    """Raises a usage error for an address that others can reach while there is no token.

    A database that does not answer yet is no obstacle: nobody gets in before it has one.
    """
    try:
        store.prepare()
        is_open = not store.tokens.keys().any_token_ever
    except (Unavailable, SchemaMismatch):
        return
    if is_open:
        raise typer.BadParameter(
            f"{host} can be reached from other machines and there is no token yet; make one with "
            "`hpo token create NAME --role admin --db …`, listen on 127.0.0.1, or add --insecure "
            "in a network that you trust",
            param_hint="--host",
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address; an unknown name counts as no."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def use_utc() -> None:
    """Optuna 5.0 stores naive local times; under TZ=UTC they are UTC."""
    os.environ["TZ"] = "UTC"
    time.tzset()


@contextmanager
def opened(url: str, *, lease_seconds: float = 60.0, **options: Any) -> Iterator[Store]:
    """The store of a database; closing it releases the lock on a SQLite file."""
    from storage.records import LeaseTimes
    from storage.store import open_store

    times = LeaseTimes(lease_seconds=lease_seconds, heartbeat_seconds=lease_seconds / 6)
    store = open_store(url, times, **options)
    try:
        yield store
    finally:
        store.close()


def serve(app: Any, *, host: str, port: int) -> None:
    """Answers requests until SIGTERM or SIGINT, then lets running ones end."""
    import uvicorn

    from api.server import Server

    # The app object, not its name: `api` in the current folder may be someone else's.
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        access_log=False,  # api.observing writes a line that names no query
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    server = Server(config)
    _stop_on_signals(server)
    server.run()


def _stop_on_signals(server: Server) -> None:
    """Makes a signal an ordinary end: uvicorn raises it once more after its graceful stop."""

    def stop(number: int, frame: object) -> None:
        server.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
