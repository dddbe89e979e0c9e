"""Where batches come from: tensors that lie on the device, or a dataset behind a DataLoader.

Resident is the default: on sets that fit the device, indexing a tensor is 7 to 200 times faster
than a DataLoader. The order of an epoch is a function of (seed, epoch), so a resumed trial
needs no position of an iterator.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
from torch.utils.data import DataLoader, Dataset

from hpo.seeds import derive_seed
from hpo.training.batches import Batch, move_batch
from hpo.training.precision import HALF_DTYPES
from hpo.training.seeds import epoch_order


@dataclass(frozen=True, kw_only=True, slots=True)
class Shuffle:
    """Which order an epoch takes; no Shuffle means the order of the set."""

    seed: int
    epoch: int


class Source(Protocol):
    """A set of samples that is read in batches, any number of times."""

    def __len__(self) -> int:
        """The number of samples."""

    def batches(
        self, batch_size: int, device: torch.device, shuffle: Shuffle | None = None
    ) -> Iterator[Batch]:
        """Each sample once, on the device; the last batch may be shorter."""


class Resident:
    """Tensors with the samples along dimension 0, moved to the device once."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        if len({len(tensor) for tensor in tensors}) != 1:
            raise ValueError(f"tensors must have one length, got {[len(t) for t in tensors]}")
        if any(tensor.dtype in HALF_DTYPES for tensor in tensors):
            raise ValueError("leave inputs and targets in fp32, autocast casts by itself")
        self._tensors = tensors

    def __len__(self) -> int:
        return len(self._tensors[0])

    def batches(
        self, batch_size: int, device: torch.device, shuffle: Shuffle | None = None
    ) -> Iterator[Batch]:
        self._tensors = tuple(tensor.to(device) for tensor in self._tensors)
        if shuffle is None:
            yield from zip(
                *(torch.split(tensor, batch_size) for tensor in self._tensors), strict=True
            )
            return
        order = epoch_order(len(self), shuffle.seed, shuffle.epoch).to(device)
        # One gather a batch: one for the whole epoch falls out of the cache and is 3 times slower.
        for index in torch.split(order, batch_size):
            yield tuple(tensor[index] for tensor in self._tensors)


class Loader:
    """A map-style dataset, read by `n_workers` processes or by the trial itself."""

    def __init__(self, dataset: Dataset[Any], *, n_workers: int = 0) -> None:
        if not hasattr(dataset, "__len__"):
            raise ValueError("a Loader needs a map-style dataset with a length")
        self._dataset, self._n_workers = dataset, n_workers

    def __len__(self) -> int:
        return len(self._dataset)

    def batches(
        self, batch_size: int, device: torch.device, shuffle: Shuffle | None = None
    ) -> Iterator[Batch]:
        order = _order(len(self), shuffle)
        loader: DataLoader[Any] = DataLoader(
            self._dataset,
            batch_size=batch_size,
            sampler=order,
            num_workers=self._n_workers,
            pin_memory=device.type == "cuda",
            worker_init_fn=_ignore_sigterm if self._n_workers else None,
            # Its own generator: drawing the workers' seeds would disturb the trial's dropout.
            generator=_workers_generator(shuffle),
        )
        for batch in loader:
            yield move_batch(batch, device)


Data: TypeAlias = Source | torch.Tensor | tuple[torch.Tensor, ...] | Dataset[Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """The parts of a data set; `test` is for the chosen model and never read in a search."""

    train: Data
    valid: Data
    test: Data | None = None


def source_of(data: Data) -> Source:
    """Tensors as Resident, a dataset as Loader, a source as it is. Raises TypeError otherwise."""
    if isinstance(data, torch.Tensor):
        return Resident(data)
    if isinstance(data, tuple) and all(isinstance(part, torch.Tensor) for part in data):
        return Resident(*data)
    if isinstance(data, Dataset):
        return Loader(data)
    if hasattr(data, "batches") and hasattr(data, "__len__"):
        return data
    raise TypeError(f"data must be tensors, a map-style dataset or a source, got {type(data)}")


def _order(n_samples: int, shuffle: Shuffle | None) -> list[int]:
    if shuffle is None:
        return list(range(n_samples))
    return epoch_order(n_samples, shuffle.seed, shuffle.epoch).tolist()


def _workers_generator(shuffle: Shuffle | None) -> torch.Generator:
    parts = ("valid",) if shuffle is None else (shuffle.seed, shuffle.epoch)
    return torch.Generator().manual_seed(derive_seed("workers", *parts))


def _ignore_sigterm(_worker: int) -> None:
    # Slurm and systemd signal every process; the trial itself decides when its loaders end.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
