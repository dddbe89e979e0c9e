"""Means over samples: the last, shorter batch weighs by its size."""

from __future__ import annotations

from collections.abc import Mapping

import torch


class SampleMeans:
    """Sums in double precision; those of a GPU stay there, as each reading waits for its work."""

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor | float] = {}
        self._counts: dict[str, int] = {}

    def add_mean(self, name: str, mean: torch.Tensor, n_samples: int) -> torch.Tensor | float:
        """Adds a batch by its mean; the sum so far, which is finite as long as all means are."""
        # On a CPU a plain number is 30 times cheaper than a tensor of one element.
        total = mean.item() * n_samples if mean.is_cpu else mean.detach().double() * n_samples
        return self._add(name, total, n_samples)

    def add(self, values: Mapping[str, torch.Tensor]) -> None:
        """Adds a batch by one value a sample."""
        for name, per_sample in values.items():
            if per_sample.dim() != 1:
                raise ValueError(
                    f"metric {name} must be one value a sample, got shape {tuple(per_sample.shape)}"
                )
            total = per_sample.detach().sum(dtype=torch.float64)
            self._add(name, total.item() if total.is_cpu else total, len(per_sample))

    def result(self) -> dict[str, float]:
        """The means by name."""
        return {name: float(total) / self._counts[name] for name, total in self._sums.items()}

    def state_dict(self) -> dict[str, list[float]]:
        """Sums and counts as plain numbers."""
        return {name: [float(self._sums[name]), n] for name, n in self._counts.items()}

    def load_state_dict(self, state: Mapping[str, list[float]]) -> None:
        """Goes on with what `state_dict` returned."""
        self._sums = {name: total for name, (total, _) in state.items()}
        self._counts = {name: int(count) for name, (_, count) in state.items()}

    def _add(self, name: str, total: torch.Tensor | float, n_samples: int) -> torch.Tensor | float:
        self._counts[name] = self._counts.get(name, 0) + n_samples
        self._sums[name] = total = self._sums.get(name, 0.0) + total
        return total
