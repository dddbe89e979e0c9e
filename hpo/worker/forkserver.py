"""The process that starts children: it has the slow imports done, and forks one child per request.

A fork costs milliseconds where a fresh `import torch` costs seconds. It must never touch CUDA, or
its children could not. It obeys one supervisor over a Unix socket, whose end is also its own end
and that of all its children. With `--isolation spawn` it imports nothing, and its forks execute
`python -m hpo.worker.child`.

    requests   {"op": "start", "id", "device"} with two file descriptors: the wire and the output
               {"op": "end", "id", "is_asked_first", "grace_seconds"}
    events     {"event": "ready", "version", "failed": {module: message}}
               {"event": "started", "id", "pid"}, {"event": "refused", "id", "message"}
               {"event": "ended", "id", "exit_code"}
"""

from __future__ import annotations

import argparse
import gc
import importlib
import importlib.util
import json
import os
import selectors
import signal
import socket
import sys
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from hpo.version import __version__
from hpo.worker import child, orphans
from hpo.worker.devices import CPU, VISIBLE

MAX_REQUEST_BYTES = 65_536
CHILD_COMMAND = ("-P", "-m", "hpo.worker.child")
TRAINING_KIT = ("torch", "hpo.training")

Event = dict[str, Any]


@dataclass(kw_only=True, slots=True)
class Forked:
    """A child that has not been reaped: its id and group cannot be reused yet."""

    id: int
    pid: int
    kill_at: float | None = None


class ForkServer:
    """Forks, signals and reaps children; single-threaded, so that forks are safe."""

    def __init__(
        self, control: socket.socket, *, execute: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._control, self._execute, self._clock = control, execute, clock
        self._children: dict[int, Forked] = {}
        self._helpers: set[int] = set()  # processes that preloaded modules have started
        self._operations = {"start": self._start, "end": self._end}
        self._wakeup_reader, self._wakeup_writer = socket.socketpair()
        for end in (self._wakeup_reader, self._wakeup_writer):
            end.setblocking(False)

    def serve(self) -> None:
        """Works until the supervisor closes its end; then all children end."""
        # The handler has nothing to do: the wakeup socket ends the wait.
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup_writer.fileno())
        orphans.become_subreaper()
        self._helpers = orphans.own_children()
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(self._wakeup_reader, selectors.EVENT_READ)
            while self._take(selector.select(self._seconds_to_next_kill())):
                self._reap()
                self._kill_overdue()
        for forked in self._children.values():
            signal_group(forked.pid, signal.SIGKILL)
        for forked in self._children.values():
            os.waitpid(forked.pid, 0)
        orphans.end_orphans(self._helpers)

    def say(self, event: str, **fields: Any) -> None:
        """Tells the supervisor; it may be gone, which the next read notices."""
        try:
            self._control.send(json.dumps({"event": event, **fields}).encode())
        except OSError:
            return

    def _take(self, ready: Sequence[tuple[selectors.SelectorKey, int]]) -> bool:
        """Carries out what has come in; False when the supervisor has gone."""
        for key, _ in ready:
            if key.fileobj is self._wakeup_reader:
                self._wakeup_reader.recv(4096)
                continue
            request, descriptors, _, _ = socket.recv_fds(self._control, MAX_REQUEST_BYTES, 2)
            if not request:
                return False
            document = json.loads(request)
            self._operations[document.pop("op")](document, descriptors)
        return True

    def _start(self, request: Event, descriptors: Sequence[int]) -> None:
        flush_output()
        try:
            pid = os.fork()
        except OSError as error:
            self.say("refused", id=request["id"], message=str(error))
        else:
            if pid == 0:
                self._become_child(request["device"], *descriptors)
            self._children[request["id"]] = Forked(id=request["id"], pid=pid)
            self.say("started", id=request["id"], pid=pid)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _become_child(self, device: str, wire_fd: int, output_fd: int) -> NoReturn:
        """Leaves nothing of the server in the child but its imports."""
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for end in (self._control, self._wakeup_reader, self._wakeup_writer):
                end.close()
            os.setsid()
            orphans.become_subreaper()
            redirect(output_fd)
            os.environ[VISIBLE] = "" if device == CPU else device
            if self._execute:
                os.set_inheritable(wire_fd, True)
                arguments = [sys.executable, *CHILD_COMMAND, "--wire-fd", str(wire_fd)]
                os.execv(sys.executable, arguments)
            disown_finalizers()
            child.serve(wire_fd)
        except BaseException:
            traceback.print_exc()
        finally:  # whatever goes wrong, a child never returns into the server's loop
            child.leave(1)

    def _end(self, request: Event, _: Sequence[int]) -> None:
        forked = self._children.get(request["id"])
        if forked is None:
            return
        if request["is_asked_first"]:
            signal_group(forked.pid, signal.SIGTERM)
        kill_at = self._clock() + request["grace_seconds"]
        forked.kill_at = kill_at if forked.kill_at is None else min(kill_at, forked.kill_at)

    def _seconds_to_next_kill(self) -> float | None:
        times = [forked.kill_at for forked in self._children.values() if forked.kill_at is not None]
        return max(0.0, min(times) - self._clock()) if times else None

    def _kill_overdue(self) -> None:
        now = self._clock()
        for forked in self._children.values():
            if forked.kill_at is not None and forked.kill_at <= now:
                signal_group(forked.pid, signal.SIGKILL)
                forked.kill_at = None

    def _reap(self) -> None:
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        for forked in list(self._children.values()):
            if os.waitid(os.P_PID, forked.pid, options) is None:
                continue
            # Before the group's id is free again, end what the child has left behind.
            signal_group(forked.pid, signal.SIGKILL)
            _, state = os.waitpid(forked.pid, 0)
            del self._children[forked.id]
            self._end_orphans()
            self.say("ended", id=forked.id, exit_code=os.waitstatus_to_exitcode(state))
        self._end_orphans()  # those that were killed have ended now

    def _end_orphans(self) -> None:
        known = {forked.pid for forked in self._children.values()}
        orphans.end_orphans(known | self._helpers)


def signal_group(pid: int, number: signal.Signals) -> None:
    """Signals a child's whole group; the child alone when it has not made its group yet."""
    for send in (os.killpg, os.kill):
        try:
            send(pid, number)
        except (ProcessLookupError, PermissionError):
            continue
        return


def redirect(output_fd: int) -> None:
    """Sends the output of this process, Python's and all other, to one descriptor."""
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (output_fd, 1), (output_fd, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(output_fd)


def disown_finalizers() -> None:
    """Leaves the finalizers of preloaded modules to the server: torch's take 40 ms of an exit."""
    registry = weakref.finalize._registry  # type: ignore[attr-defined]  # there is no public way
    for finalizer in list(registry):
        finalizer.atexit = False


def flush_output() -> None:
    """Leaves no half-written output that a fork would write twice."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def preload(modules: Sequence[str]) -> dict[str, str]:
    """Imports what children will need; says which failed, for an import error is not the end."""
    failed = {}
    kit = TRAINING_KIT if importlib.util.find_spec("torch") else ()
    for module in (*kit, *modules):
        try:
            importlib.import_module(module)
        except BaseException as error:
            failed[module] = f"{type(error).__name__}: {error}"
    gc.collect()
    gc.freeze()  # a collection in a child would copy the pages of all these modules
    return failed


def main(arguments: Sequence[str] | None = None) -> None:
    """Serves the supervisor at the other end of `--control-fd`."""
    # Slurm and systemd signal every process; what children do about it is the supervisor's word.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    # Imports may have started threads of their own (BLAS); they survive forks.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    parser = argparse.ArgumentParser()
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--isolation", choices=("forkserver", "spawn"), default="forkserver")
    parser.add_argument("--code", default=None)
    parser.add_argument("--preload", action="append", default=[])
    given = parser.parse_args(arguments)
    child.put_code_first(given.code)
    is_spawn = given.isolation == "spawn"
    failed = {} if is_spawn else preload(given.preload)
    server = ForkServer(socket.socket(fileno=given.control_fd), execute=is_spawn)
    server.say("ready", version=__version__, failed=failed)
    server.serve()


if __name__ == "__main__":
    main()
