"""A whole service on this machine: the API and one worker, started, watched and ended together.

`hpo up` and `hpo demo` differ in what they do while it is up.
"""

from __future__ import annotations

import errno
import os
import platform
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hpo.access import TOKEN_VARIABLE, new_secret, without_token
from hpo.cli.keeping import KeptPart
from hpo.cli.processes import Interrupts
from hpo.errors import HpoError, SchemaMismatch, Unavailable
from hpo.processes import POLL_SECONDS, Part, start_part

if TYPE_CHECKING:
    from hpo.client import Client

START_SECONDS = 90.0
API_PATIENCE_SECONDS = 12.0
FIRST_PORT, LAST_PORT = 8080, 8179


class PortInUse(HpoError):
    """Another program listens on this port."""

    code = "port_in_use"


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalOptions:
    """What a local service needs to know; `worker` holds further options of `hpo worker`."""

    data: Path
    port: int
    worker: Sequence[str] = ()
    dashboard_writes: bool = False
    grace_seconds: float = 30.0
    log_folder: Path | None = None
    # Where the parts print to when there is no folder for their logs.
    stdout: int | None = None
    # Between this API and this worker; it stands in no database and ends with them.
    own_token: str = field(default_factory=new_secret, repr=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def database(self) -> str:
        return f"sqlite:///{self.data / 'hpo.db'}"

    @property
    def worker_name(self) -> str:
        return f"{platform.node()}:{os.getpid()}"

    def log(self, name: str) -> Path | None:
        return None if self.log_folder is None else self.log_folder / f"{name}.log"


@dataclass(kw_only=True)
class LocalService:
    """The running parts, in the order in which they were started."""

    options: LocalOptions
    interrupts: Interrupts
    parts: list[KeptPart] = field(default_factory=list)
    is_up: bool = False

    def start(self, client: Client) -> None:
        """Starts API and worker, each when the one before it answers."""
        options = self.options
        writes = ["--dashboard-writes"] if options.dashboard_writes else []
        self._start(
            *("api", "--own-worker", "--db", options.database),
            *("--artifacts", str(options.data / "artifacts")),
            *("--port", str(options.port), *writes),
            patience_seconds=API_PATIENCE_SECONDS,
        )
        self.wait_until(lambda: is_ready(client), START_SECONDS, "the API to answer")
        self._start(
            *("worker", "--url", options.url, "--name", options.worker_name),
            *("--checkpoints", str(options.data / "checkpoints")),
            *("--grace-seconds", str(options.grace_seconds), *options.worker),
            patience_seconds=options.grace_seconds + 5,
        )
        self.wait_until(
            lambda: is_registered(client, options.worker_name), START_SECONDS, "the worker"
        )
        self.is_up = True

    def _start(self, name: str, *arguments: str, patience_seconds: float) -> None:
        environment = {**without_token(os.environ), TOKEN_VARIABLE: self.options.own_token}
        log, stdout = self.options.log(name), self.options.stdout

        def start() -> Part:
            words = [name, *arguments]
            return start_part(name, words, log=log, stdout=stdout, environment=environment)

        where = f"see {log}" if log else "see its lines above"
        self.parts.append(KeptPart(start, patience_seconds=patience_seconds, where=where))

    def check(self) -> None:
        """Starts parts again that have ended on their own. Raises PartEnded when that is vain."""
        for part in self.parts:
            part.keep() if self.is_up else part.insist()

    def wait_until(
        self, happened: Callable[[], bool], seconds: float = float("inf"), what: str = ""
    ) -> None:
        """Waits, and looks after the parts. Raises KeyboardInterrupt after a signal."""
        give_up_at = time.monotonic() + seconds
        while not happened():
            self.check()
            if self.interrupts.count:
                raise KeyboardInterrupt
            if time.monotonic() > give_up_at:
                raise Unavailable(f"waited {seconds:.0f} s in vain for {what}")
            time.sleep(POLL_SECONDS)

    def stop(self) -> None:
        """Ends the worker, so that it can give its trials back, then the API."""
        before = self.interrupts.count
        for part in reversed(self.parts):
            part.end(lambda: self.interrupts.count > before)


@contextmanager
def local_service(options: LocalOptions, interrupts: Interrupts) -> Iterator[LocalService]:
    """A service that is up inside the block and whose processes have ended after it."""
    from hpo.client import Client

    service = LocalService(options=options, interrupts=interrupts)
    try:
        with Client(options.url, token=options.own_token) as client:
            service.start(client)
        yield service
    finally:
        service.stop()


def is_ready(client: Client) -> bool:
    """Whether the API answers. Raises Unavailable for a fault that waiting does not mend."""
    try:
        client.ready()
    except Unavailable as error:
        if error.facts.get("code") == SchemaMismatch.code:
            raise
        return False
    return True


def is_registered(client: Client, name: str) -> bool:
    """Whether a living worker of this name is known to the API."""
    return any(found["name"] == name and found["is_alive"] for found in client.workers())


def choose_port(wanted: int | None) -> int:
    """The wanted port, any for 0, the first free one from 8080 for None. Raises PortInUse."""
    if wanted == 0:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])
    candidates = [wanted] if wanted else range(FIRST_PORT, LAST_PORT + 1)
    for port in candidates:
        if is_free(port):
            return port
    raise PortInUse(
        f"port {wanted} is in use; choose another --port, or leave it out for the first free one"
        if wanted
        else f"no port from {FIRST_PORT} to {LAST_PORT} is free; choose one with --port"
    )


def is_free(port: int) -> bool:
    """Whether nobody listens on the port of the loopback address."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True
