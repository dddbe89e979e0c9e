"""When a training has diverged: its numbers are no longer finite and it would only burn time.

fp16 overflows now and then by design, so it counts skipped steps; fp32 and bf16 never skip, one
non-finite loss or gradient is the end. A sum of losses stays finite only while every loss is, so
the sum is all that is read: after each step on a CPU, every 50 on a GPU, where a reading waits
for all work before it. A gradient that is not finite spoils the weights and with them the next
loss; its norm is looked at now and then, from the first step on.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any, NoReturn

import torch

from hpo.objective import TrialFailed
from hpo.training.precision import Precision, StepResult
from hpo.trial import Reason

MAX_SKIPPED_IN_ROW = 20
LOOK_STEPS = 50
KEPT_NORMS = 1000
QUANTILES = {"grad_norm_p05": 0.05, "grad_norm_p50": 0.5, "grad_norm_p95": 0.95}


class DivergenceWatch:
    """Raises TrialFailed with the reason `diverged`; counts skipped steps and keeps norms."""

    def __init__(self, precision: Precision) -> None:
        self.n_steps, self.skipped, self.skipped_in_row = 0, 0, 0
        self._scales = precision.scaler.is_enabled()
        self._is_cuda = precision.device.type == "cuda"
        self._norms: deque[float] = deque(maxlen=KEPT_NORMS)

    @property
    def looks(self) -> bool:
        """Whether the next step is one to look at, so that its gradient norm is wanted."""
        return self.n_steps % LOOK_STEPS == 0

    def after_step(self, loss_sum: torch.Tensor | float, result: StepResult) -> None:
        """Takes note of one optimizer step and of the sum of all losses of the epoch so far."""
        is_look, norm = self.n_steps % LOOK_STEPS == 0, result.grad_norm
        self.n_steps += 1
        if self._scales:
            self._count(result)
        elif is_look or not self._is_cuda:
            self._check(loss_sum, norm)
        if is_look and result.stepped and norm is not None:
            self._norms.append(float(norm))

    def after_epoch(self, loss_sum: torch.Tensor | float) -> None:
        """Looks at an epoch whose last steps nobody looked at."""
        if not self._scales:
            self._check(loss_sum, None)

    def state_dict(self) -> dict[str, Any]:
        """Its counts and norms."""
        counts = [self.n_steps, self.skipped, self.skipped_in_row]
        return {"counts": counts, "norms": list(self._norms)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on with what `state_dict` returned."""
        self.n_steps, self.skipped, self.skipped_in_row = state["counts"]
        self._norms.extend(state["norms"])

    def user_attrs(self) -> dict[str, Any]:
        """The figures that stay with the trial; norms are those looked at, before clipping."""
        attrs: dict[str, Any] = {"skipped_steps": self.skipped}
        if self._norms:
            norms = torch.tensor(self._norms, dtype=torch.float64)
            for name, quantile in QUANTILES.items():
                attrs[name] = float(f"{norms.quantile(quantile).item():.6g}")
        return attrs

    def _check(self, loss_sum: torch.Tensor | float, norm: torch.Tensor | None) -> None:
        if not math.isfinite(loss_sum) or (norm is not None and not math.isfinite(norm)):
            diverged(f"loss or gradient is not finite by training step {self.n_steps}")

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
