"""What a trial is and how it can end; the handle that user code gets is `hpo.objective.Trial`."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class TrialState(enum.StrEnum):
    """Optuna's states; finer facts stand in `Reason`."""

    WAITING = "WAITING"
    RUNNING = "RUNNING"
    COMPLETE = "COMPLETE"
    PRUNED = "PRUNED"
    FAIL = "FAIL"

    @property
    def is_finished(self) -> bool:
        return self not in (TrialState.WAITING, TrialState.RUNNING)


class Reason(enum.StrEnum):
    """Why a trial ended, or why an attempt was cut."""

    OBJECTIVE_ERROR = "objective_error"
    DIVERGED = "diverged"
    OUT_OF_MEMORY = "out_of_memory"
    TIMED_OUT = "timed_out"
    NO_PROGRESS = "no_progress"
    LOST = "lost"
    DEVICE_ERROR = "device_error"
    INVALID_RESULT = "invalid_result"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"


# Faults of the machinery, not of the trial: another attempt of the same trial may succeed.
RETRIED_REASONS = frozenset({Reason.LOST, Reason.DEVICE_ERROR, Reason.PREEMPTED})


class Verdict(enum.StrEnum):
    """The answer to a report."""

    CONTINUE = "continue"
    PRUNE = "prune"
    STOP = "stop"
    PAUSE = "pause"


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """One reported value of a running trial."""

    step: int
    value: float
    elapsed_seconds: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.step < 0:
            raise ValueError(f"step must be 0 or more, got {self.step}")
        if not (math.isfinite(self.elapsed_seconds) and self.elapsed_seconds >= 0):
            raise ValueError(f"elapsed_seconds must be 0 or more, got {self.elapsed_seconds}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """A verdict with the numbers behind it (step, value, median, trials compared, …)."""

    verdict: Verdict
    reason: Reason | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """Why an attempt failed, in words for its owner."""

    reason: Reason
    message: str = ""
    traceback: str = ""
