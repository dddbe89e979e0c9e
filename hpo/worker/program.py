"""A program that a trial runs: its output as it comes, and its end with all that it has started.

It stays in the process group of the trial's own process, so whatever ends the trial ends it too:
the fork server kills the group and collects those that have left it.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, cast

import psutil

READ_BYTES = 65_536
MAX_LINE_BYTES = 65_536  # longer ones are cut into pieces
POLL_SECONDS = 0.2
LINGER_SECONDS = 1.0  # for output that is left when a program has ended; others may hold its pipe


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """Whole lines of one stream, or a piece of a line that is too long."""

    content: bytes
    is_error: bool


class Program:
    """A program that runs from now on, until it ends or the block does. Raises OSError."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._process = subprocess.Popen(
            arguments,
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._clock = clock
        self._asked: list[psutil.Process] = []
        self._kill_at: float | None = None
        self._selector = selectors.DefaultSelector()
        self._begun: dict[IO[bytes], bytes] = {}
        for stream in (self._process.stdout, self._process.stderr):
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ)
            self._begun[stream] = b""

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._kill()
        self._process.wait()
        self._selector.close()
        for stream in self._begun:
            stream.close()

    @property
    def exit_code(self) -> int:
        """Negative for a signal; to be read after the last of the outputs."""
        assert self._process.returncode is not None
        return self._process.returncode

    @property
    def is_asked(self) -> bool:
        """Whether it has been asked to end."""
        return self._kill_at is not None

    def ask_to_end(self, grace_seconds: float) -> None:
        """SIGTERM to it and to all that it has started, SIGKILL a while later."""
        self._kill_at = self._clock() + grace_seconds
        self._asked = self._family()
        for process in self._asked:
            with contextlib.suppress(psutil.Error):
                process.terminate()

    def outputs(self) -> Iterator[list[Output]]:
        """What it has written, until it has ended; nothing now and then while it is silent."""
        while not self._has_ended():
            yield self._read(POLL_SECONDS)
            if self._kill_at is not None and self._clock() >= self._kill_at:
                self._kill()
        give_up_at = self._clock() + LINGER_SECONDS
        while self._selector.get_map() and self._clock() < give_up_at:
            yield self._read(POLL_SECONDS)
        yield [self._output(stream, rest) for stream, rest in self._begun.items() if rest]

    def _has_ended(self) -> bool:
        if not self._selector.get_map():  # it has closed its output: it is about to end
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(POLL_SECONDS)
        # A shell ends at once when it is asked, while what it has started writes a checkpoint.
        return self._process.poll() is not None and not any(map(_is_alive, self._asked))

    def _read(self, seconds: float) -> list[Output]:
        found: list[Output] = []
        for key, _ in self._selector.select(seconds) if self._selector.get_map() else ():
            stream = cast(IO[bytes], key.fileobj)
            piece = os.read(key.fd, READ_BYTES)
            if not piece:
                self._selector.unregister(stream)
            lines, end, rest = (self._begun[stream] + piece).rpartition(b"\n")
            if len(rest) >= MAX_LINE_BYTES:
                lines, end, rest = lines + end + rest, b"", b""
            self._begun[stream] = rest
            if lines or end:
                found.append(self._output(stream, lines + end))
        return found

    def _output(self, stream: IO[bytes], content: bytes) -> Output:
        return Output(content=content, is_error=stream is self._process.stderr)

    def _family(self) -> list[psutil.Process]:
        if self._process.returncode is not None:  # its number may be another's by now
            return []
        with contextlib.suppress(psutil.Error):
            found = psutil.Process(self._process.pid)
            return [found, *found.children(recursive=True)]
        return []

    def _kill(self) -> None:
        for process in {*self._asked, *self._family()}:
            with contextlib.suppress(psutil.Error):
                process.kill()


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
