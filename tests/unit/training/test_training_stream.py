"""Each record of the files once an epoch, by any number of processes, in an order of its own."""

from __future__ import annotations

import collections
import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from hpo.training import Stream
from hpo.training.data import source_of
from hpo.training.options import TrainingOptions
from hpo.training.source import Shuffle
from hpo.training.stream import shares, shuffled

# PyTorch warns of more processes than cores, which is no matter here.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
CPU = torch.device("cpu")
SIZES = (7, 0, 12, 1, 5)


def write_files(folder: Path, sizes: tuple[int, ...] = SIZES) -> list[Path]:
    numbers = itertools.count()
    files = []
    for index, size in enumerate(sizes):
        path = folder / f"part-{index}.txt"
        path.write_text("".join(f"{next(numbers)}\n" for _ in range(size)))
        files.append(path)
    return files


def read_numbers(path: Path) -> Iterator[torch.Tensor]:
    """Notes beside the file that it was opened."""
    with (path.parent / "opened.log").open("a") as log:
        log.write(f"{path.name}\n")
    for line in path.read_text().splitlines():
        yield torch.tensor(int(line))


def read(
    source: Any, batch_size: int = 4, shuffle: Shuffle | None = None, start: int = 0
) -> list[list[int]]:
    return [batch.tolist() for batch in source.batches(batch_size, CPU, shuffle, start=start)]


def flat(batches: list[list[int]]) -> list[int]:
    return [number for batch in batches for number in batch]


@pytest.mark.parametrize("n_workers", [0, 1, 2, 5])
@pytest.mark.parametrize("sizes", [SIZES, (25,), (2,)], ids=["files", "one-file", "few-records"])
@pytest.mark.parametrize("shuffle", [None, Shuffle(seed=3, epoch=2)], ids=["in-order", "shuffled"])
def test_property_21_every_record_comes_exactly_once(
    tmp_path: Path, n_workers: int, sizes: tuple[int, ...], shuffle: Shuffle | None
) -> None:
    stream = Stream(write_files(tmp_path, sizes), read_numbers, n_workers=n_workers, buffer_size=6)
    assert sorted(flat(read(stream, shuffle=shuffle))) == list(range(sum(sizes)))


@pytest.mark.parametrize("n_workers", [0, 1, 2, 5])
def test_no_file_is_read_twice_where_there_are_enough(tmp_path: Path, n_workers: int) -> None:
    stream = Stream(write_files(tmp_path), read_numbers, n_workers=n_workers)
    read(stream, shuffle=Shuffle(seed=1, epoch=0))
    opened = (tmp_path / "opened.log").read_text().split()
    assert sorted(opened) == [f"part-{index}.txt" for index in range(5)]


@pytest.mark.parametrize("n_files", range(1, 6))
@pytest.mark.parametrize("n_workers", range(1, 8))
def test_the_shares_of_the_processes_are_a_partition(n_files: int, n_workers: int) -> None:
    seen: collections.Counter[tuple[int, int]] = collections.Counter()
    for worker in range(n_workers):
        for file, first, stride in shares(range(n_files), worker, n_workers):
            seen.update((file, record) for record in range(11)[first::stride])
    assert seen == {(file, record): 1 for file in range(n_files) for record in range(11)}


@pytest.mark.parametrize("n_workers", [0, 2])
def test_the_order_is_a_function_of_seed_and_epoch(tmp_path: Path, n_workers: int) -> None:
    stream = Stream(write_files(tmp_path), read_numbers, n_workers=n_workers, buffer_size=8)
    first = read(stream, shuffle=Shuffle(seed=1, epoch=0))
    torch.rand(3), random.random()
    assert first == read(stream, shuffle=Shuffle(seed=1, epoch=0))
    others = [Shuffle(seed=1, epoch=1), Shuffle(seed=2, epoch=0)]
    assert all(first != read(stream, shuffle=other) for other in others)


def test_files_come_in_a_new_order_each_epoch(tmp_path: Path) -> None:
    files = write_files(tmp_path, (1,) * 8)
    orders = set()
    for epoch in range(5):
        stream = Stream(files, read_numbers, buffer_size=1)  # so small that it shuffles nothing
        orders.add(tuple(flat(read(stream, shuffle=Shuffle(seed=1, epoch=epoch)))))
    assert len(orders) == 5


@pytest.mark.parametrize("n_workers", [0, 2])
@pytest.mark.parametrize("start", [0, 1, 3, 7, 9])
def test_it_goes_on_from_any_batch(tmp_path: Path, n_workers: int, start: int) -> None:
    stream = Stream(write_files(tmp_path), read_numbers, n_workers=n_workers, buffer_size=5)
    shuffle = Shuffle(seed=4, epoch=1)
    assert read(stream, shuffle=shuffle, start=start) == read(stream, shuffle=shuffle)[start:]


@pytest.mark.parametrize("n_workers", [0, 2])
def test_reading_draws_nothing_from_the_trial(tmp_path: Path, n_workers: int) -> None:
    stream = Stream(write_files(tmp_path), read_numbers, n_workers=n_workers)
    before = torch.get_rng_state(), random.getstate()
    read(stream, shuffle=Shuffle(seed=1, epoch=0))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


@pytest.mark.parametrize("buffer_size", [1, 2, 10, 1000])
def test_a_shuffle_buffer_loses_nothing_and_reaches_as_far_as_it_is_large(buffer_size: int) -> None:
    order = list(shuffled(range(200), buffer_size, random.Random(3)))
    assert sorted(order) == list(range(200))
    # A record cannot come before the buffer has reached it.
    assert all(number < place + buffer_size for place, number in enumerate(order))
    assert (order == list(range(200))) is (buffer_size == 1)


class Numbers(IterableDataset[Any]):
    """A dataset as PyTorch has them, which knows nothing of processes."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.arange(23))


@pytest.mark.parametrize("n_workers", [0, 1, 3])
def test_an_iterable_dataset_is_shared_by_records(n_workers: int) -> None:
    source = source_of(Numbers(), TrainingOptions(loader_workers=n_workers))
    assert sorted(flat(read(source))) == list(range(23))
    assert sorted(flat(read(source, shuffle=Shuffle(seed=1, epoch=0)))) == list(range(23))


@pytest.mark.parametrize(
    ("files", "options", "text"),
    [([], {}, "at least one file"), (["x"], {"buffer_size": 0}, "buffer_size")],
)
def test_a_stream_of_nothing_is_refused(files: Any, options: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Stream(files, iter, **options)
