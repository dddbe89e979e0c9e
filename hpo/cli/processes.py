"""What a process of the command line does about signals, and about the end of its parent.

The other half, how a parent starts such processes, stands in `hpo.processes`.
"""

from __future__ import annotations

import os
import signal
import threading


class Interrupts:
    """Counts SIGINT and SIGTERM; loops look at the count, so nothing is cut in the middle."""

    def __init__(self) -> None:
        self.count = 0

    def listen(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)

    def _note(self, number: int, frame: object) -> None:
        self.count += 1


def end_with_parent(wanted: bool) -> None:
    """Sends ourselves SIGTERM when standard input, a pipe from our parent, is closed."""
    if wanted:
        threading.Thread(target=_await_parent, name="parent-watch", daemon=True).start()


def _await_parent() -> None:
    # os.read, not sys.stdin: a thread inside a buffered read breaks the interpreter's shutdown.
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
