"""The parts of a data set, and how each kind of data becomes a source of batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.utils.data import Dataset, IterableDataset

from hpo.training.loader import Loader
from hpo.training.options import TrainingOptions
from hpo.training.resident import Resident
from hpo.training.source import Source
from hpo.training.stream import Stream

Data: TypeAlias = Source | torch.Tensor | tuple[torch.Tensor, ...] | Dataset[Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """The parts of a data set; `test` is for the chosen model and never read in a search."""

    train: Data
    valid: Data
    test: Data | None = None


def source_of(data: Data, options: TrainingOptions | None = None) -> Source:
    """Tensors as Resident, datasets as Loader or Stream, a source as it is. Raises TypeError."""
    options = options or TrainingOptions()
    n_workers, prefetch = options.loader_workers, options.prefetch_factor
    if isinstance(data, torch.Tensor):
        return Resident(data, share=options.resident_share)
    if isinstance(data, tuple) and all(isinstance(part, torch.Tensor) for part in data):
        return Resident(*data, share=options.resident_share)
    if isinstance(data, IterableDataset):
        return Stream([data], iter, n_workers=n_workers, prefetch_factor=prefetch)
    if isinstance(data, Dataset):
        return Loader(data, n_workers=n_workers, prefetch_factor=prefetch)
    if hasattr(data, "batches"):
        return data
    raise TypeError(f"data must be tensors, a dataset or a source of batches, got {type(data)}")
