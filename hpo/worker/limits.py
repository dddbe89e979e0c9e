"""How long an attempt may last and how long it may be silent, and the thread that sees to it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hpo.trial import Reason
from hpo.worker.outcome import Outcome, failure


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a claim allows its attempt; None is without end.

    `seconds_left` is what earlier attempts have left of the trial's time.
    """

    seconds_left: float | None = None
    no_progress_seconds: float | None = None

    def overrun(self, elapsed_seconds: float, silent_seconds: float) -> Outcome | None:
        """How an attempt fails that is this old and has been silent for so long."""
        if self.seconds_left is not None and elapsed_seconds >= self.seconds_left:
            message = (
                f"the trial's time is up: {self.seconds_left:g} s were left of its "
                f"trial_timeout_seconds, and this attempt has taken {elapsed_seconds:.1f} s"
            )
            return failure(Reason.TIMED_OUT, message)
        if self.no_progress_seconds is not None and silent_seconds >= self.no_progress_seconds:
            message = (
                f"no report for {silent_seconds:.1f} s, where no_progress_seconds allows "
                f"{self.no_progress_seconds:g}; this attempt has taken {elapsed_seconds:.1f} s"
            )
            return failure(Reason.NO_PROGRESS, message)
        return None

    def seconds_to_next(self, elapsed_seconds: float, silent_seconds: float) -> float | None:
        """How long nothing can be overrun."""
        pairs = (
            (self.seconds_left, elapsed_seconds),
            (self.no_progress_seconds, silent_seconds),
        )
        return min((limit - used for limit, used in pairs if limit is not None), default=None)


class Watchdog:
    """Calls `on_overrun` once, from a thread of its own, when a limit is overrun."""

    def __init__(
        self,
        limits: Limits,
        on_overrun: Callable[[Outcome], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits, self._on_overrun, self._clock = limits, on_overrun, clock
        self._started_at = self._reported_at = clock()
        self._n_waits, self._waiting_since = 0, 0.0
        self._is_over = False
        self._changed = threading.Condition()

    def start(self) -> None:
        """Counts from now on."""
        self._started_at = self._reported_at = self._clock()
        if self._limits != Limits():
            threading.Thread(target=self._watch, name="hpo-limits", daemon=True).start()

    def stop(self) -> None:
        """From now on nothing is overrun."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def note_report(self) -> None:
        """The attempt has made progress."""
        with self._changed:
            self._reported_at = self._clock()
            self._changed.notify_all()

    def begin_wait(self) -> None:
        """Silence does not count from now on, until each wait has ended."""
        with self._changed:
            self._n_waits += 1
            if self._n_waits == 1:
                self._waiting_since = self._clock()
                self._changed.notify_all()

    def end_wait(self) -> None:
        """Ends one wait; without one it does nothing."""
        with self._changed:
            if self._n_waits == 1:
                self._reported_at += self._clock() - self._waiting_since
                self._changed.notify_all()
            self._n_waits = max(0, self._n_waits - 1)

    @contextmanager
    def waiting_for_service(self) -> Iterator[None]:
        """The child is silent inside the block because the service does not answer."""
        self.begin_wait()
        try:
            yield
        finally:
            self.end_wait()

    def _watch(self) -> None:
        with self._changed:
            while not self._is_over:
                now = self._clock()
                elapsed = now - self._started_at
                until = self._waiting_since if self._n_waits else now
                silent = until - self._reported_at
                overrun = self._limits.overrun(elapsed, silent)
                if overrun is not None:
                    break
                self._changed.wait(self._limits.seconds_to_next(elapsed, silent))
            else:
                return
        self._on_overrun(overrun)
