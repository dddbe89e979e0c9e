"""`hpo api`: the HTTP server of a service."""

from __future__ import annotations

import ipaddress
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpo.cli.options import DashboardWrites, Database, EndWithParent
from hpo.cli.processes import end_with_parent
from hpo.cli.rooms import require_driver, require_rooms

if TYPE_CHECKING:
    from api.server import Server
    from storage.events import EventRetention
    from storage.store import Store

# With the end of the database's work this stays below ten seconds.
GRACE_SECONDS = 7

Host = Annotated[str, typer.Option(envvar="HPO_HOST", help="Address to listen on.")]
Port = Annotated[int, typer.Option(envvar="HPO_PORT", min=1, max=65535, help="Port to listen on.")]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Listen beyond this machine although there are no tokens yet: whoever reaches the "
        "port can run any objective that the workers allow.",
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
LeaseSeconds = Annotated[
    float,
    typer.Option(
        envvar="HPO_LEASE_SECONDS",
        min=1,
        help="A worker that is silent for longer has lost its trials; workers renew six times as "
        "often.",
    ),
]
EventDays = Annotated[
    float, typer.Option(envvar="HPO_EVENT_DAYS", help="Events are kept for so many days.")
]
EventRows = Annotated[
    int, typer.Option(envvar="HPO_EVENT_ROWS", min=1, help="About so many events are kept at most.")
]
AccessLog = Annotated[bool, typer.Option("--access-log", help="Log every request.")]


def api(
    db: Database,
    host: Host = "127.0.0.1",
    port: Port = 8080,
    insecure: Insecure = False,
    allow_host: AllowHost = None,
    dashboard_writes: DashboardWrites = False,
    lease_seconds: LeaseSeconds = 60.0,
    event_days: EventDays = 7.0,
    event_rows: EventRows = 200_000,
    access_log: AccessLog = False,
    with_parent: EndWithParent = False,
) -> None:
    """Serve REST under /v1, its documentation at /docs and optuna-dashboard at /dashboard.

    One process owns a SQLite file; on PostgreSQL start as many as you like.

    Examples:
      hpo api --db sqlite:///hpo.db
      hpo api --db postgresql+psycopg://hpo:secret@db/hpo --port 8080
    """
    check_host(host, insecure=insecure)
    end_with_parent(with_parent)
    use_utc()
    require_rooms("storage", "api")
    require_driver(db)
    from api.app import create_app
    from storage.events import EventRetention

    retention = EventRetention(days=event_days, rows=event_rows)
    with opened(db, lease_seconds=lease_seconds, retention=retention) as store:
        app = create_app(
            store,
            dashboard_writes=dashboard_writes,
            reap_seconds=store.times.reap_seconds,
            hosts=own_names(host, allow_host or ()),
        )
        serve(app, host=host, port=port, access_log=access_log)


def own_names(host: str, others: Sequence[str]) -> frozenset[str] | None:
    """Names by which a service on a loopback address is asked for; elsewhere any will do."""
    if not is_loopback(host):
        return None
    return frozenset({"localhost", "127.0.0.1", "::1", host, *(name.lower() for name in others)})


def check_host(host: str, *, insecure: bool) -> None:
    """Raises a usage error for an address that others can reach, unless that was asked for."""
    if not (insecure or is_loopback(host)):
        raise typer.BadParameter(
            f"{host} can be reached from other machines and this release has no tokens yet; "
            "listen on 127.0.0.1 and put a proxy with a login before it, or add --insecure in a "
            "network that you trust",
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
def opened(
    url: str, *, lease_seconds: float = 60.0, retention: EventRetention | None = None
) -> Iterator[Store]:
    """The store of a database; closing it releases the lock on a SQLite file."""
    from storage.records import LeaseTimes
    from storage.store import open_store

    times = LeaseTimes(lease_seconds=lease_seconds, heartbeat_seconds=lease_seconds / 6)
    store = open_store(url, times, retention=retention)
    try:
        yield store
    finally:
        store.close()


def serve(app: Any, *, host: str, port: int, access_log: bool) -> None:
    """Answers requests until SIGTERM or SIGINT, then lets running ones end."""
    import uvicorn

    from api.server import Server

    # The app object, not its name: `api` in the current folder may be someone else's.
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        access_log=access_log,
        log_level="info" if access_log else "warning",
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
