"""Means over samples: the last, shorter batch weighs by its size."""

from __future__ import annotations

from collections.abc import Mapping

import torch


class SampleMeans:
    """Sums on the device, in double precision, read once at the end: reading waits for a GPU."""

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}
        self._counts: dict[str, int] = {}

    def add_mean(self, name: str, mean: torch.Tensor, n_samples: int) -> None:
        """Adds a batch by its mean."""
        self._add(name, mean.detach().double() * n_samples, n_samples)

    def add(self, values: Mapping[str, torch.Tensor]) -> None:
        """Adds a batch by one value a sample."""
        for name, per_sample in values.items():
            if per_sample.dim() != 1:
                raise ValueError(
                    f"metric {name} must be one value a sample, got shape {tuple(per_sample.shape)}"
                )
            self._add(name, per_sample.detach().double().sum(), len(per_sample))

    def result(self) -> dict[str, float]:
        """The means by name."""
        return {name: float(total) / self._counts[name] for name, total in self._sums.items()}

    def _add(self, name: str, total: torch.Tensor, n_samples: int) -> None:
        self._sums[name] = self._sums[name] + total if name in self._sums else total
        self._counts[name] = self._counts.get(name, 0) + n_samples
