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
LEASE_SECONDS = "6"

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

    url: str
    folder: Path
    client: Client
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

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
        checkpoints = str(self.folder / "checkpoints")
        process = self.start("worker", "--url", self.url, "--checkpoints", checkpoints, *arguments)
        await_fact(lambda: len(self.client.workers()) > n_before, what="for the worker")
        return process

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
        for process in reversed(self.processes):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
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


def serve(database_url: str, folder: Path) -> Iterator[Service]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with Client(url) as client:
        service = Service(url=url, folder=folder, client=client)
        try:
            service.start(
                *(
                    "api",
                    "--db",
                    database_url,
                    "--port",
                    str(port),
                    "--lease-seconds",
                    LEASE_SECONDS,
                )
            )
            await_fact(lambda: is_ready(client), what="for the API")
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
