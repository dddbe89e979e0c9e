"""What a training reads from: samples in batches, in an order that seed and epoch decide alone.

So a resumed trial needs no position of an iterator: it reads from a number of batches on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from hpo.training.batches import Batch


@dataclass(frozen=True, kw_only=True, slots=True)
class Shuffle:
    """Which order an epoch takes; no Shuffle means the order of the set."""

    seed: int
    epoch: int


class Source(Protocol):
    """Samples that are read in batches, any number of times."""

    def batches(
        self,
        batch_size: int,
        device: torch.device,
        shuffle: Shuffle | None = None,
        *,
        start: int = 0,
    ) -> Iterator[Batch]:
        """Each sample once, on the device, from batch `start` on; the last may be shorter."""
