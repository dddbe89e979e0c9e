"""Parts of a service as processes: `hpo` commands that never outlive the one that started them.

Each part holds the read end of a pipe whose write end only its parent has. When the parent ends,
by whatever signal, the kernel closes the pipe and the part ends itself: no orphan keeps the lock
on the SQLite file. This needs no Linux-only call and works from any thread.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

POLL_SECONDS = 0.1
LAST_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One process of the service, by the name its user knows it by."""

    name: str
    process: subprocess.Popen[bytes]

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def end(self, *, patience_seconds: float, is_urgent: Callable[[], bool]) -> None:
        """SIGTERM, once more when it gets urgent, SIGKILL when patience is over."""
        self.process.terminate()
        if not self._wait(patience_seconds, until=is_urgent):
            self.process.terminate()
            if not self._wait(LAST_SECONDS):
                self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()

    def _wait(self, seconds: float, *, until: Callable[[], bool] = lambda: False) -> bool:
        give_up_at = time.monotonic() + seconds
        while not self.has_ended:
            if until() or time.monotonic() > give_up_at:
                return False
            time.sleep(POLL_SECONDS)
        return True


def start_part(
    name: str,
    arguments: Sequence[str],
    *,
    log: Path | None = None,
    stdout: int | None = None,
    environment: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> Part:
    """Starts `hpo` with these arguments; its output goes to `log`, or to where ours goes.

    `stdout` is another place for standard output alone, as subprocess names it.
    """
    # Own session: Ctrl-C reaches us alone, and we end the parts in the right order.
    command = [sys.executable, "-P", "-m", "hpo.cli", *arguments, "--end-with-parent"]
    with contextlib.nullcontext() if log is None else log.open("ab") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=output if stdout is None else stdout,
            stderr=output,
            start_new_session=True,
            pass_fds=pass_fds,
        )
    return Part(name=name, process=process)
