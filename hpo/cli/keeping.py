"""Keeps a part of a service alive: one that ends on its own is started again, after a pause.

The pause doubles while the part ends soon after its start; after several such ends it is given up.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import typer

from hpo.errors import HpoError
from hpo.processes import Part

SOON_SECONDS = 60.0
MAX_EARLY_ENDS = 5
FIRST_PAUSE_SECONDS = 1.0


class PartEnded(HpoError):
    """A part of the service has ended on its own."""

    code = "part_ended"


class KeptPart:
    """One part, and how often it has ended soon after its start. `start` makes a new process."""

    def __init__(
        self,
        start: Callable[[], Part],
        *,
        patience_seconds: float,
        where: str = "see its lines above",
        clock: Callable[[], float] = time.monotonic,
        tell: Callable[[str], None] = lambda text: typer.echo(text, err=True),
    ) -> None:
        self._start, self._clock, self._tell = start, clock, tell
        self._patience_seconds, self._where = patience_seconds, where
        self._n_early, self._due_at = 0, float("inf")
        self._begin()

    def _begin(self) -> None:
        self.part, self._started_at = self._start(), self._clock()
        self._is_told = False

    def insist(self) -> None:
        """Raises PartEnded when it has ended, as while the service starts."""
        if self.part.has_ended:
            raise PartEnded(f"the {self.part.name} {self._end}")

    def keep(self) -> None:
        """Starts it again once its pause is over. Raises PartEnded after too many early ends."""
        if not self.part.has_ended:
            return
        if not self._is_told:
            self._note_the_end()
        elif self._clock() >= self._due_at:
            self.end()
            self._begin()

    def end(self, is_urgent: Callable[[], bool] = lambda: False) -> None:
        """Ends it for good, and frees what belonged to its process."""
        self.part.end(patience_seconds=self._patience_seconds, is_urgent=is_urgent)

    def _note_the_end(self) -> None:
        now, name = self._clock(), self.part.name
        self._n_early = self._n_early + 1 if now - self._started_at < SOON_SECONDS else 1
        if self._n_early >= MAX_EARLY_ENDS:
            raise PartEnded(
                f"the {name} {self._end}. It has ended {self._n_early} times within "
                f"{SOON_SECONDS:.0f} s of its start, so it is not started again; studies are kept"
            )
        pause = FIRST_PAUSE_SECONDS * 2 ** (self._n_early - 1)
        self._due_at, self._is_told = now + pause, True
        self._tell(f"The {name} {self._end}; it starts again in {pause:g} s.")

    @property
    def _end(self) -> str:
        code = self.part.process.returncode
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return f"has ended with exit code {code}, {self._where}"
