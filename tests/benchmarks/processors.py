"""Who works how much: the processor's seconds of processes and of all that they have started."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import psutil


class Processors:
    """Seconds of work of some process families, by name, since the last look."""

    def __init__(self, groups: Mapping[str, int]) -> None:
        self._groups = groups
        self._before = self._now()

    def since(self) -> dict[str, float]:
        now, before = self._now(), self._before
        self._before = now
        return {name: now[name] - before[name] for name in now}

    def _now(self) -> dict[str, float]:
        return {name: sum(_seconds_of(pid)) for name, pid in self._groups.items()}


def _seconds_of(pid: int) -> Iterator[float]:
    root = psutil.Process(pid)
    if pid == psutil.Process().pid:  # those whom we have started are told apart
        yield sum(root.cpu_times()[:2])
        return
    yield sum(root.cpu_times()[:4])  # with its children that have ended
    for process in root.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            yield sum(process.cpu_times()[:2])
