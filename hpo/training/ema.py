"""A moving average of the weights, which often evaluates better than the weights themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


class Ema:
    """Averages of all parameters; buffers, such as those of BatchNorm, stay the model's own.

    The first updates weigh more, so that a short training does not average its random beginning.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._decay, self.n_updates = decay, 0
        self._names = [name for name, _ in model.named_parameters()]
        self._parameters: list[torch.Tensor] = list(model.parameters())
        self._averages = [parameter.detach().clone() for parameter in self._parameters]

    @torch.no_grad()
    def update(self) -> None:
        """Takes note of the weights after a real optimizer step."""
        self.n_updates += 1
        decay = min(self._decay, self.n_updates / (9 + self.n_updates))
        torch._foreach_lerp_(self._averages, self._parameters, 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model computes with the averages; afterwards it has its own weights again."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def state_dict(self) -> dict[str, Any]:
        """The averages by parameter."""
        averages = dict(zip(self._names, self._averages, strict=True))
        return {"n_updates": self.n_updates, "averages": averages}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned."""
        self.n_updates = state["n_updates"]
        for name, average in zip(self._names, self._averages, strict=True):
            average.copy_(state["averages"][name])

    def _swap(self) -> None:
        # Storages change hands and nothing is copied, so the weights come back to the bit.
        for index, parameter in enumerate(self._parameters):
            self._averages[index], parameter.data = parameter.data, self._averages[index]
