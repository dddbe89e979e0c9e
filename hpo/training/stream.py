"""Records from files that are read as they come: each once an epoch, whoever reads them.

Loader processes share the files among them, and the records of a file only where there are fewer
files than processes: a process that skips what others read still has to read it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from hpo.seeds import derive_seed
from hpo.training.batches import Batch, move_batch
from hpo.training.loader import loading
from hpo.training.source import Shuffle

BUFFER_SIZE = 1024


class Stream:
    """A source of the records that `read` gives for each of the files.

    In training the files come in a new order each epoch, and records through a shuffle buffer of
    `buffer_size`. To go on within an epoch the records before are read again, for the buffers lie
    in the loader processes; so `read` must give the same records each time.
    """

    def __init__(
        self,
        files: Sequence[Any],
        read: Callable[[Any], Iterable[Any]],
        *,
        n_workers: int = 0,
        prefetch_factor: int | None = None,
        buffer_size: int = BUFFER_SIZE,
        collate: Callable[[list[Any]], Batch] | None = None,
    ) -> None:
        if not files:
            raise ValueError("a stream needs at least one file")
        if buffer_size < 1:
            raise ValueError(f"buffer_size must be 1 or more, got {buffer_size}")
        self._files, self._read, self._buffer_size = list(files), read, buffer_size
        self._options = {"collate_fn": collate, **loading(n_workers, prefetch_factor)}

    def batches(
        self,
        batch_size: int,
        device: torch.device,
        shuffle: Shuffle | None = None,
        *,
        start: int = 0,
    ) -> Iterator[Batch]:
        records = _Records(self._files, self._read, self._buffer_size, shuffle)
        loader: DataLoader[Any] = DataLoader(
            records, batch_size=batch_size, pin_memory=device.type == "cuda", **self._options
        )
        for batch in itertools.islice(loader, start, None):
            yield move_batch(batch, device)


class _Records(IterableDataset[Any]):
    """The records of one epoch; in a loader process, its share of them."""

    def __init__(
        self,
        files: list[Any],
        read: Callable[[Any], Iterable[Any]],
        buffer_size: int,
        shuffle: Shuffle | None,
    ) -> None:
        self._files, self._read = files, read
        self._buffer_size, self._shuffle = buffer_size, shuffle

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, n_workers = (0, 1) if info is None else (info.id, info.num_workers)
        if self._shuffle is None:
            return self._read_all(shares(self._files, worker, n_workers))
        stream = self._shuffle.seed, "stream", self._shuffle.epoch
        order = random.Random(derive_seed(*stream)).sample(self._files, k=len(self._files))
        records = self._read_all(shares(order, worker, n_workers))
        return shuffled(records, self._buffer_size, random.Random(derive_seed(*stream, worker)))

    def _read_all(self, parts: Iterable[tuple[Any, int, int]]) -> Iterator[Any]:
        for file, first, stride in parts:
            yield from itertools.islice(self._read(file), first, None, stride)


def shares(files: Sequence[Any], worker: int, n_workers: int) -> list[tuple[Any, int, int]]:
    """What one process reads, as (file, first record, stride)."""
    if len(files) >= n_workers:
        return [(file, 0, 1) for file in files[worker::n_workers]]
    chosen = worker % len(files)
    readers = range(chosen, n_workers, len(files))
    return [(files[chosen], readers.index(worker), len(readers))]


def shuffled(records: Iterable[Any], buffer_size: int, rng: random.Random) -> Iterator[Any]:
    """Records in random order, each within reach of a buffer that is filled from the front."""
    buffer: list[Any] = []
    for record in records:
        if len(buffer) < buffer_size:
            buffer.append(record)
            continue
        place = rng.randrange(buffer_size)
        yield buffer[place]
        buffer[place] = record
    rng.shuffle(buffer)
    yield from buffer
