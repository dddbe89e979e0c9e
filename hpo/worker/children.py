"""The supervisor's side of its child processes: starts, ends and awaits them.

All of them are children of the fork server (`hpo.worker.forkserver`), which is started anew when
it has died; this process forks nothing itself, as it has threads.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpo.access import without_token
from hpo.commands import COMMANDS_VARIABLE
from hpo.errors import HpoError
from hpo.version import __version__
from hpo.worker.forkserver import MAX_REQUEST_BYTES, signal_group
from hpo.worker.options import WorkerOptions
from hpo.worker.wire import Wire

READY_SECONDS = 300.0
STARTED_SECONDS = 60.0
CLOSE_SECONDS = 5.0

logger = logging.getLogger(__name__)


class ChildNotStarted(HpoError):
    """No child process could be started."""


@dataclass(kw_only=True, eq=False)
class Child:
    """One child process as its attempt sees it."""

    id: int
    server: ServerProcess
    wire: Wire
    output_fd: int
    pid: int | None = None
    exit_code: int | None = None
    fault: str | None = None
    started: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)

    def end(self, *, is_asked_first: bool, grace_seconds: float) -> None:
        """Ends the child's whole group in a while, with a SIGTERM at once when asked first."""
        self.server.request(
            {
                "op": "end",
                "id": self.id,
                "is_asked_first": is_asked_first,
                "grace_seconds": grace_seconds,
            }
        )

    def wait(self) -> int | None:
        """The exit code, negative for a signal; None when the fork server died with it."""
        self.ended.wait()
        return self.exit_code


class Children:
    """Starts children for all slots, and the fork server when there is none."""

    def __init__(self, options: WorkerOptions, *, n_threads: int) -> None:
        self._options = options
        self._environment = child_environment(os.environ, n_threads)
        if options.commands is not None:
            self._environment[COMMANDS_VARIABLE] = str(options.commands.resolve())
        self._isolation = options.isolation
        self._server: ServerProcess | None = None
        self._starting = threading.Lock()

    def start(self, device: str) -> Child:
        """Starts a child that sees one device. Raises ChildNotStarted."""
        return self._living_server().start_child(device)

    def use_spawn(self) -> None:
        """From now on children are started anew; their imports cannot be shared by forks."""
        with self._starting:
            self._isolation = "spawn"
            if self._server is not None:
                self._server.close()
            self._server = None

    def close(self) -> None:
        """Ends the server and with it every child that is left."""
        with self._starting:
            if self._server is not None:
                self._server.close()

    def _living_server(self) -> ServerProcess:
        with self._starting:
            if self._server is None or self._server.is_dead:
                self._server = ServerProcess(self._command(), self._environment)
                self._server.await_ready()
            return self._server

    def _command(self) -> list[str]:
        options = self._options
        python = options.python or sys.executable
        code = [] if options.code_folder is None else ["--code", options.code_folder]
        modules = [part for module in options.preload for part in ("--preload", module)]
        entry = [python, "-P", "-m", "hpo.worker.forkserver", "--isolation", self._isolation]
        return [*entry, *code, *modules]


def child_environment(environ: Mapping[str, str], n_threads: int) -> dict[str, str]:
    """What children inherit; it must stand before torch or OpenMP are loaded."""
    return {
        **without_token(environ),  # the code of a trial speaks to its worker, not to the service
        "OMP_NUM_THREADS": str(n_threads),
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # asking for CUDA must not start it before a fork
        "PYTHONSAFEPATH": "1",
    }


class ServerProcess:
    """One running fork server."""

    def __init__(self, command: list[str], environment: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control, self._python = ours, command[0]
        with theirs:
            fd = theirs.fileno()
            try:
                self._process = subprocess.Popen(
                    [*command, "--control-fd", str(fd)],
                    env=dict(environment),
                    pass_fds=(fd,),
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,  # a Ctrl-C in the terminal is for the supervisor
                )
            except OSError as error:
                ours.close()
                raise ChildNotStarted(f"cannot start {self._python}: {error}") from error
        self._ids = itertools.count()
        self._children: dict[int, Child] = {}
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self.is_dead = False
        self._listener = threading.Thread(target=self._listen, name="hpo-children", daemon=True)
        self._listener.start()

    def await_ready(self) -> None:
        """Raises ChildNotStarted when the server has ended instead."""
        if not self._ready.wait(READY_SECONDS) or self.is_dead:
            self.close()
            raise ChildNotStarted(
                f"{self._python} could not start hpo.worker.forkserver, see above; "
                f"install it there: {self._python} -m pip install hpo-service"
            )

    def start_child(self, device: str) -> Child:
        """Raises ChildNotStarted when the machine or the server does not let it."""
        ours, theirs = socket.socketpair()
        reader, writer = os.pipe()
        child = Child(id=next(self._ids), server=self, wire=Wire(ours), output_fd=reader)
        self._enter(child)
        request = {"op": "start", "id": child.id, "device": device}
        self.request(request, theirs.fileno(), writer)
        theirs.close()
        os.close(writer)
        child.started.wait(STARTED_SECONDS)
        if child.pid is None:
            child.wire.close()
            os.close(reader)
            cause = child.fault or "the fork server does not answer"
            raise ChildNotStarted(f"no child process could be started: {cause}")
        return child

    def _enter(self, child: Child) -> None:
        with self._lock:
            self._children[child.id] = child
            if self.is_dead:
                child.started.set()

    def request(self, document: Mapping[str, Any], *descriptors: int) -> None:
        """Sends a request; a server that is gone has ended what there was to end."""
        with contextlib.suppress(OSError):
            socket.send_fds(self._control, [json.dumps(document).encode()], descriptors)

    def close(self) -> None:
        """Ends the server, which ends its children."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        if not self._ready.is_set():  # it has no children, and its imports may last
            self._process.kill()
        try:
            self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:  # it sits in an import that does not end
            self._process.kill()
        self._listener.join()

    def _listen(self) -> None:
        takers: dict[str, Callable[..., None]] = {
            "ready": self._take_ready,
            "started": self._take_started,
            "refused": self._take_refused,
            "ended": self._take_ended,
        }
        while event := self._receive():
            takers[event.pop("event")](**event)
        self._process.wait()
        self._bury()

    def _receive(self) -> dict[str, Any] | None:
        try:
            packet = self._control.recv(MAX_REQUEST_BYTES)
        except OSError:
            return None
        document: dict[str, Any] | None = json.loads(packet) if packet else None
        return document

    def _take_ready(self, *, version: str, failed: Mapping[str, str]) -> None:
        if version != __version__:
            logger.warning("%s has hpo %s, this is %s", self._python, version, __version__)
        for module, message in failed.items():
            logger.warning("preload of %s failed: %s", module, message)
        self._ready.set()

    def _take_started(self, *, id: int, pid: int) -> None:
        child = self._children[id]
        child.pid = pid
        child.started.set()

    def _take_refused(self, *, id: int, message: str) -> None:
        with self._lock:
            child = self._children.pop(id)
        child.fault = message
        child.started.set()

    def _take_ended(self, *, id: int, exit_code: int) -> None:
        with self._lock:
            child = self._children.pop(id)
        child.exit_code = exit_code
        self._end(child)

    def _bury(self) -> None:
        """The server is gone, so children that are left have nobody to reap them."""
        with self._lock:
            self.is_dead = True
            left = list(self._children.values())
            self._children.clear()
        for child in left:
            if child.pid is not None:
                signal_group(child.pid, signal.SIGKILL)
            child.started.set()
            self._end(child)
        self._control.close()
        self._ready.set()

    def _end(self, child: Child) -> None:
        child.wire.end_input()
        child.ended.set()
