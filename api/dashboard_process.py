"""The process that serves optuna-dashboard: started when somebody looks, ended when nobody does.

Its pages work for seconds on a study of 10,000 trials and hold the interpreter meanwhile, so they
get one of their own. It listens on a socket in a folder that only our user can enter, and ends
with us, however we end: see `hpo.processes`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hpo.access import TOKEN_VARIABLE
from hpo.errors import Unavailable
from hpo.processes import Part, start_part
from storage.store import Store

logger = logging.getLogger(__name__)

IDLE_SECONDS = 300.0
# Between two starts, so that one which fails at once does not take all of the machine.
RETRY_SECONDS = 5.0
END_SECONDS = 2.0
BACKLOG = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class _Running:
    part: Part
    socket_path: Path

    def end(self) -> None:
        self.part.end(patience_seconds=END_SECONDS, is_urgent=lambda: False)
        shutil.rmtree(self.socket_path.parent, ignore_errors=True)


class DashboardProcess:
    """At most one process at a time; every method may be called from any thread."""

    def __init__(
        self, store: Store, *, writes: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._writes, self._clock = store, writes, clock
        self._lock = threading.Lock()
        self._running: _Running | None = None
        self._n_open, self._used_at, self._started_at = 0, 0.0, float("-inf")

    @property
    def pid(self) -> int | None:
        running = self._running
        return None if running is None else running.part.process.pid

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Keeps the process for as long as a request is open."""
        with self._lock:
            self._n_open += 1
        try:
            yield
        finally:
            with self._lock:
                self._n_open -= 1
                self._used_at = self._clock()

    def socket_path(self) -> Path:
        """Where it listens, from its first moment on; starts it if need be. Raises Unavailable."""
        with self._lock:
            if self._running is not None and self._running.part.has_ended:
                logger.warning("the dashboard's process has ended; it is started again")
                self._end()
            if self._running is None:
                self._start()
            assert self._running is not None
            return self._running.socket_path

    def end_if_idle(self) -> None:
        """To be called now and then."""
        with self._lock:
            if not self._n_open and self._clock() >= self._used_at + IDLE_SECONDS:
                self._end()

    def close(self) -> None:
        with self._lock:
            self._end()

    def _end(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.end()

    def _start(self) -> None:
        if self._clock() < self._started_at + RETRY_SECONDS:
            raise Unavailable("The dashboard's process ends at once; the service's log says why.")
        self._started_at = self._clock()
        folder = Path(tempfile.mkdtemp(prefix="hpo-dashboard-"))
        try:
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(str(folder / "socket"))
                listening.listen(BACKLOG)
                part = self._start_part(listening.fileno())
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            logger.warning("cannot start the dashboard: %s", error)
            raise Unavailable(f"The dashboard cannot be started: {error.strerror}.") from error
        self._running = _Running(part=part, socket_path=folder / "socket")

    def _start_part(self, fd: int) -> Part:
        artifacts = self._store.artifacts
        environment = {
            **{name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE},
            "TZ": "UTC",
            "HPO_DB": self._store.url,  # not an argument, which everybody on the machine can read
        }
        arguments = ["dashboard", "--socket-fd", str(fd)]
        if artifacts is not None:
            arguments += ["--artifacts", str(artifacts.folder.resolve())]
        if self._writes:
            arguments.append("--dashboard-writes")
        return start_part("dashboard", arguments, environment=environment, pass_fds=[fd])
