"""How busy the devices of workers were in the last minutes, as their heartbeats told.

Kept in memory, in each API process for the heartbeats that came to it, and nowhere else.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

KEPT_SAMPLES = 60
MAX_WORKERS = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceFigures:
    """One look at a device; `utilization` is a share, None where the device does not tell."""

    device: str
    name: str | None
    utilization: float | None
    memory_used_bytes: int
    memory_total_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """What one device of a worker told, and when."""

    at: dt.datetime
    figures: DeviceFigures


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


@dataclass
class DeviceHistory:
    """The last samples of each device of the workers that beat last."""

    clock: Callable[[], dt.datetime] = _now
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _workers: OrderedDict[UUID, dict[str, deque[Sample]]] = field(default_factory=OrderedDict)

    def note(self, worker: UUID, told: Sequence[DeviceFigures]) -> None:
        """Adds what a heartbeat told of each device."""
        now = self.clock()
        with self._lock:
            known = self._workers.pop(worker, {})
            self._workers[worker] = {
                figures.device: _longer(known.get(figures.device), Sample(at=now, figures=figures))
                for figures in told
            }
            while len(self._workers) > MAX_WORKERS:
                self._workers.popitem(last=False)

    def of(self, worker: UUID) -> list[list[Sample]]:
        """By device, the samples of a worker, the oldest first."""
        with self._lock:
            return [list(samples) for samples in self._workers.get(worker, {}).values()]


def _longer(known: deque[Sample] | None, sample: Sample) -> deque[Sample]:
    samples = deque[Sample](maxlen=KEPT_SAMPLES) if known is None else known
    samples.append(sample)
    return samples
