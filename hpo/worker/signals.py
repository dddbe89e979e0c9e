"""What SIGTERM and SIGINT mean to a worker."""

from __future__ import annotations

import signal
import threading
from types import FrameType

NUMBERS = (signal.SIGTERM, signal.SIGINT)


class Ended(BaseException):
    """A signal ends the worker now, wherever its main thread is."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"exit code {exit_code}")
        self.exit_code = exit_code


class Signals:
    """The first signal drains a worker that serves, the second ends it at once.

    A worker that does not serve yet holds no trial, so the first one ends it, whatever it waits
    for: slow imports, or an API that is away.
    """

    def __init__(self) -> None:
        self.draining = threading.Event()
        self.is_serving = False
        self._n_signals = 0

    def listen(self) -> None:
        """From now on; to be called in the main thread."""
        for number in NUMBERS:
            signal.signal(number, self._take)

    def ignore(self) -> None:
        """The way out is short; nothing interrupts it."""
        for number in NUMBERS:
            signal.signal(number, signal.SIG_IGN)

    def _take(self, number: int, _frame: FrameType | None) -> None:
        self._n_signals += 1
        if self.is_serving and self._n_signals == 1:
            # Not here: the main thread may be inside `wait` with the event's own lock.
            threading.Thread(target=self.draining.set, daemon=True).start()
            return
        self.ignore()
        raise Ended(128 + number if self.is_serving else 0)
