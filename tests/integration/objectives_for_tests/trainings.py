"""Trainings by the kit that meet what real ones meet; tests give this folder to a worker."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import psutil
import torch
from torch import nn

from hpo.objective import Trial
from hpo.training import Split, TrainingObjective

FOREVER: list[Any] = []


class Line(TrainingObjective):
    """A line through points; each loss beyond `n_good_steps` overflows."""

    settings: Mapping[str, Any] = {
        "epochs": 100,
        "batch_size": 8,
        "precision": "fp16",
        "allow_slow": True,
        "n_good_steps": 4,
    }

    def __init__(self) -> None:
        self.n_steps = 0

    def model(self, params: Mapping[str, Any]) -> nn.Module:
        return nn.Linear(1, 1)

    def data(self, params: Mapping[str, Any]) -> Split:
        self.n_good_steps = params["n_good_steps"]
        x = torch.linspace(-1, 1, 32).reshape(-1, 1)
        return Split(train=(x, 2 * x), valid=(x, 2 * x))

    def loss(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(output, target)

    def step(self, forward: Any, batch: Any) -> torch.Tensor:
        self.n_steps += 1
        factor = 1e-3 if self.n_steps <= self.n_good_steps else float("inf")
        return super().step(forward, batch) * factor

    def optimizer(
        self, parameters: Iterator[nn.Parameter], params: Mapping[str, Any]
    ) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)


def fills_memory(trial: Trial) -> float:
    """Holds 200 MB to its end, in a cycle that nobody breaks."""
    trial.set_user_attr("mb_before", psutil.Process().memory_info().rss >> 20)
    held: list[Any] = [torch.ones(50_000_000)]
    held.append(held)
    FOREVER.append(held)
    trial.set_user_attr("mb_after", psutil.Process().memory_info().rss >> 20)
    return 1.0


def compiles(trial: Trial) -> float:
    """Is silent for longer than it may be, with and without saying so."""
    if trial.settings["says_so"]:
        trial.set_uncounted(True)
    time.sleep(trial.settings["seconds"])  # stands for a compiler
    trial.set_uncounted(False)
    trial.report(1.0, 0)
    return 1.0
