"""A map-style dataset behind a DataLoader, for sets that do not fit or change with each reading."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from hpo.training.batches import Batch, iterate_tensors, move_batch
from hpo.training.seeds import epoch_order, seed_stream
from hpo.training.source import Shuffle

# The batch's stream and the sample's index: what a loader process needs to read one sample.
Key = tuple[str, int]


class Loader:
    """A map-style dataset, read by `n_workers` processes or by the trial itself.

    Loader processes draw from streams of their batch, so neither their number nor a resume in the
    middle of an epoch changes what a random transformation does.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        n_workers: int = 0,
        prefetch_factor: int | None = None,
        collate: Callable[[list[Any]], Batch] | None = None,
    ) -> None:
        if not hasattr(dataset, "__len__"):
            raise ValueError("a Loader needs a map-style dataset with a length")
        if n_workers:
            check_on_cpu(dataset)
        self._n_samples = len(dataset)
        self._batches = _Batches()
        self._options: dict[str, Any] = {
            "dataset": _Keyed(dataset),
            "batch_sampler": self._batches,
            "collate_fn": collate,
            **loading(n_workers, prefetch_factor),
            # Starting them again in each epoch would take longer than many an epoch.
            "persistent_workers": n_workers > 0,
        }
        self._loader: DataLoader[Any] | None = None

    def batches(
        self,
        batch_size: int,
        device: torch.device,
        shuffle: Shuffle | None = None,
        *,
        start: int = 0,
    ) -> Iterator[Batch]:
        if self._loader is None:
            self._loader = DataLoader(**self._options, pin_memory=device.type == "cuda")
        order, stream = list(range(self._n_samples)), "in order"
        if shuffle is not None:
            order = epoch_order(self._n_samples, shuffle.seed, shuffle.epoch).tolist()
            stream = f"{shuffle.seed}/{shuffle.epoch}"
        self._batches.keys = [
            [(f"{stream}/{first}", index) for index in order[first : first + batch_size]]
            for first in range(start * batch_size, self._n_samples, batch_size)
        ]
        for batch in self._loader:
            yield move_batch(batch, device)


class _Batches:
    """The batch sampler of a loader that outlives its epochs."""

    def __init__(self) -> None:
        self.keys: list[list[Key]] = []

    def __iter__(self) -> Iterator[list[Key]]:
        return iter(self.keys)

    def __len__(self) -> int:
        return len(self.keys)


class _Keyed(Dataset[Any]):
    """A dataset that is read by keys, a batch at a time."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getitems__(self, keys: Sequence[Key]) -> list[Any]:
        if get_worker_info() is not None:
            seed_stream(keys[0][0], "loader")
        indices = [index for _, index in keys]
        if hasattr(self._dataset, "__getitems__"):
            return list(self._dataset.__getitems__(indices))
        return [self._dataset[index] for index in indices]


def loading(n_workers: int, prefetch_factor: int | None) -> dict[str, Any]:
    """The options of a DataLoader that decide who reads; its streams stay off the trial's own."""
    return {
        "num_workers": n_workers,
        "prefetch_factor": prefetch_factor if n_workers else None,
        "worker_init_fn": _ignore_sigterm if n_workers else None,
        # Its own generator: drawing the workers' seeds would disturb the trial's dropout.
        "generator": torch.Generator(),
    }


def check_on_cpu(dataset: Any) -> None:
    """Raises ValueError for tensors on a device: a forked loader process cannot read them."""
    while dataset is not None:
        for tensor in iterate_tensors(list(vars(dataset).values())):
            if tensor.device.type != "cpu":
                raise ValueError(
                    f"the dataset holds tensors on {tensor.device}, which loader processes cannot "
                    "read; keep them on the CPU, or give the tensors themselves as the data"
                )
        dataset = vars(dataset).get("dataset")  # what a Subset is of


def _ignore_sigterm(_worker: int) -> None:
    # Slurm and systemd signal every process; the trial itself decides when its loaders end.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
