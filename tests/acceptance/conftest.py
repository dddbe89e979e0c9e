"""Real processes of the real command, as their users start them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hpo.client import Client
from hpo.errors import HpoError

# Short, so that the end of a dead worker's lease can be waited for.
LEASE_SECONDS = 6.0

HPO = str(Path(sys.executable).with_name("hpo"))


def await_fact(fact: Callable[[], Any], seconds: float = 90.0, what: str = "") -> Any:
    """Waits until `fact` is true and answers it."""
    give_up_at = time.monotonic() + seconds
    while not (found := fact()):
        assert time.monotonic() < give_up_at, f"waited in vain {what}"
        time.sleep(0.05)
    return found


@dataclass
class Service:
    """An API process and its workers on one database."""

    database_url: str
    port: int
    folder: Path
    client: Client
    lease_seconds: float = LEASE_SECONDS
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.client.url

    @property
    def api(self) -> subprocess.Popen[bytes]:
        """The API process that was started last."""
        return [process for process in self.processes if process.args[1] == "api"][-1]

    def start_api(self) -> subprocess.Popen[bytes]:
        """Starts an API process, which becomes ready when it can."""
        options = ("--port", str(self.port), "--lease-seconds", str(self.lease_seconds))
        return self.start("api", "--db", self.database_url, *options)

    def await_ready(self) -> None:
        await_fact(lambda: is_ready(self.client), what="for the API")

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        log = self.folder / f"{arguments[0]}-{len(self.processes)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [HPO, *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        self.processes.append(process)
        return process

    def start_worker(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts a worker and waits until it is registered."""
        n_before = len(self.client.workers())
        process = self.launch_worker(*arguments)
        await_fact(lambda: len(self.client.workers()) > n_before, what="for the worker")
        return process

    def launch_worker(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts a worker, which registers when it can."""
        checkpoints = str(self.folder / "checkpoints")
        return self.start("worker", "--url", self.url, "--checkpoints", checkpoints, *arguments)

    def await_end(self, study: str, seconds: float = 240.0) -> dict[str, Any]:
        """Waits until a study is no longer running and answers it."""
        return await_fact(
            lambda: (
                found := self.client.study(study),
                found if found["state"] not in ("running", "stopping") else None,
            )[1],
            seconds,
            f"for the end of {study}",
        )

    def stop(self) -> None:
        """Ends what still runs: workers first, so that they can give their trials back."""
        running = [process for process in self.processes if process.poll() is None]
        apis = [process for process in running if process.args[1] == "api"]
        for part in ([process for process in running if process not in apis], apis):
            for process in part:
                process.send_signal(signal.SIGTERM)
            for process in part:
                try:
                    process.wait(timeout=45)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_ready(client: Client) -> bool:
    try:
        client.ready()
    except HpoError:
        return False
    return True


def serve(database_url: str, folder: Path, **fields: Any) -> Iterator[Service]:
    port = free_port()
    with Client(f"http://127.0.0.1:{port}") as client:
        service = Service(
            database_url=database_url, port=port, folder=folder, client=client, **fields
        )
        try:
            service.start_api()
            service.await_ready()
            yield service
        finally:
            service.stop()


@pytest.fixture
def service(empty_database_url: str, tmp_path: Path) -> Iterator[Service]:
    """A service on an empty database of each kind; it makes its schema itself."""
    yield from serve(empty_database_url, tmp_path)


@pytest.fixture
def sqlite_service(sqlite_url: str, tmp_path: Path) -> Iterator[Service]:
    yield from serve(sqlite_url, tmp_path)
