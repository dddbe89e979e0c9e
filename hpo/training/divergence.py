"""When a training has diverged: its numbers are no longer finite and it would only burn time.

fp16 overflows now and then by design, so it counts skipped steps; fp32 and bf16 never skip, one
non-finite loss or gradient is the end. The flag stays on the device and is read every 50 steps
on a GPU, where each reading waits for all work before it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NoReturn

import torch

from hpo.objective import TrialFailed
from hpo.training.precision import Precision, StepResult
from hpo.trial import Reason

MAX_SKIPPED_IN_ROW = 20
CUDA_CHECK_STEPS = 50


class DivergenceWatch:
    """Raises TrialFailed with the reason `diverged`; counts skipped steps on the way."""

    def __init__(self, precision: Precision) -> None:
        self.skipped, self.skipped_in_row = 0, 0
        self._scales = precision.scaler.is_enabled()
        self._every = CUDA_CHECK_STEPS if precision.device.type == "cuda" else 1
        self._seen = 0
        self._is_bad = torch.zeros((), dtype=torch.bool, device=precision.device)

    @property
    def needs_grad_norm(self) -> bool:
        """Whether the next step is one to look at, so that its gradient norm is wanted."""
        return not self._scales and (self._seen + 1) % self._every == 0

    def after_step(self, loss: torch.Tensor, result: StepResult) -> None:
        """Takes note of one optimizer step."""
        self._seen += 1
        if self._scales:
            self._count(result)
            return
        self._is_bad |= ~torch.isfinite(loss.detach())
        if result.grad_norm is not None:
            self._is_bad |= ~torch.isfinite(result.grad_norm)
        if self._seen % self._every == 0:
            self.after_epoch()

    def after_epoch(self) -> None:
        """Reads the flag."""
        if bool(self._is_bad):
            diverged(f"loss or gradient is not finite by training step {self._seen}")

    def _count(self, result: StepResult) -> None:
        self.skipped += not result.stepped
        self.skipped_in_row = 0 if result.stepped else self.skipped_in_row + 1
        if self.skipped_in_row >= MAX_SKIPPED_IN_ROW:
            diverged(f"{self.skipped_in_row} steps in a row overflowed at scale {result.scale:g}")


def check_metrics(step: int, metrics: Mapping[str, float]) -> None:
    """Raises TrialFailed when one of the values is not finite."""
    for name, value in metrics.items():
        if not math.isfinite(value):
            diverged(f"validation {name} is {value} after step {step}")


def diverged(message: str) -> NoReturn:
    """Ends the trial as diverged."""
    raise TrialFailed(Reason.DIVERGED, message)
