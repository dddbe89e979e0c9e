"""Each sample once an epoch, in an order that depends on seed and epoch alone."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from hpo.training import Loader, Resident, Stream
from hpo.training.batches import count_samples, map_tensors, move_batch, split_batch
from hpo.training.data import source_of
from hpo.training.source import Shuffle

CPU = torch.device("cpu")
SOURCES = {
    "resident": lambda tensors: Resident(*tensors),
    "loader": lambda tensors: Loader(TensorDataset(*tensors)),
    "loader-2": lambda tensors: Loader(TensorDataset(*tensors), n_workers=2),
}


def numbered(n_samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    numbers = torch.arange(n_samples)
    return numbers.float(), numbers


def read(source: Any, batch_size: int = 4, shuffle: Shuffle | None = None) -> list[int]:
    return [int(n) for batch in source.batches(batch_size, CPU, shuffle) for n in batch[1]]


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("shuffle", [None, Shuffle(seed=3, epoch=2)])
def test_every_sample_comes_once(kind: str, shuffle: Shuffle | None) -> None:
    source = SOURCES[kind](numbered(11))
    sizes = [count_samples(batch) for batch in source.batches(4, CPU, shuffle)]
    assert sizes == [4, 4, 3]
    order = read(source, shuffle=shuffle)
    assert sorted(order) == list(range(11))
    assert (order == list(range(11))) is (shuffle is None)


@pytest.mark.parametrize("kind", SOURCES)
def test_the_order_is_a_function_of_seed_and_epoch(kind: str) -> None:
    source = SOURCES[kind](numbered(50))
    first = read(source, shuffle=Shuffle(seed=1, epoch=0))
    torch.rand(5)
    assert first == read(source, batch_size=7, shuffle=Shuffle(seed=1, epoch=0))
    assert first == read(Resident(*numbered(50)), shuffle=Shuffle(seed=1, epoch=0))
    assert first != read(source, shuffle=Shuffle(seed=1, epoch=1))
    assert first != read(source, shuffle=Shuffle(seed=2, epoch=0))


@pytest.mark.parametrize("kind", SOURCES)
def test_reading_draws_nothing_from_the_trial(kind: str) -> None:
    source = SOURCES[kind](numbered(8))
    before = torch.get_rng_state()
    read(source, shuffle=Shuffle(seed=1, epoch=0))
    read(source)
    assert torch.equal(torch.get_rng_state(), before)


class Handlers(Dataset[Any]):
    """Tells how the process that reads it answers SIGTERM."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return index, int(signal.getsignal(signal.SIGTERM) is signal.SIG_IGN)


@pytest.mark.parametrize("n_workers", [0, 1])
def test_loader_processes_alone_ignore_sigterm(n_workers: int) -> None:
    assert read(Loader(Handlers(), n_workers=n_workers)) == [int(n_workers > 0)] * 2


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("shuffle", [None, Shuffle(seed=3, epoch=2)])
@pytest.mark.parametrize("start", [0, 1, 2, 3])
def test_it_goes_on_from_any_batch(kind: str, shuffle: Shuffle | None, start: int) -> None:
    source = SOURCES[kind](numbered(11))
    whole = [batch[1].tolist() for batch in source.batches(4, CPU, shuffle)]
    rest = [batch[1].tolist() for batch in source.batches(4, CPU, shuffle, start=start)]
    assert rest == whole[start:]


def test_loader_processes_outlive_an_epoch_that_was_broken_off() -> None:
    loader = Loader(Pids(), n_workers=1)
    batches = loader.batches(2, CPU, Shuffle(seed=1, epoch=0))
    pid = int(next(batches)[1][0])
    batches.close()
    epochs = [list(loader.batches(2, CPU, Shuffle(seed=1, epoch=epoch))) for epoch in (1, 2)]
    for epoch in epochs:
        assert sorted(int(number) for batch in epoch for number in batch[0]) == list(range(12))
        assert {int(found) for batch in epoch for found in batch[1]} == {pid}


class Pids(Dataset[Any]):
    """Tells which process reads it."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return index, os.getpid()


class Noise(Dataset[Any]):
    """A new random number at each reading, from each of the three generators."""

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> Any:
        drawn = [torch.rand(()).item(), random.random(), float(np.random.rand())]
        return torch.tensor(drawn, dtype=torch.float64), index


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # of the number of cores
def test_property_20_what_loader_processes_draw_does_not_depend_on_their_number() -> None:
    def drawn(n_workers: int, epoch: int = 0) -> torch.Tensor:
        loader = Loader(Noise(), n_workers=n_workers)
        return torch.cat([b[0] for b in loader.batches(2, CPU, Shuffle(seed=1, epoch=epoch))])

    one, three, later = drawn(1), drawn(3), drawn(1, epoch=1)
    assert torch.equal(one, three)
    assert one.unique().numel() == one.numel()
    assert not set(one.flatten().tolist()) & set(later.flatten().tolist())


KILLED = """
    import os, signal, torch
    from hpo.training import Loader
    from hpo.worker.child import forget_signal_handlers
    from hpo.worker.endings import ending_of

    class Killed(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            if index == 6:
                os.kill(os.getpid(), signal.SIGKILL)
            return index

    def read():
        try:
            return sum(map(len, Loader(Killed(), n_workers=1).batches(2, torch.device("cpu"))))
        finally:
            forget_signal_handlers()

    ending = ending_of(read)
    print(ending.reason, ending.message)
"""


def test_a_loader_process_that_is_killed_is_an_error_and_no_hang() -> None:
    """In a process of its own: PyTorch raises it wherever the main thread happens to be.

    What it raises depends on the moment; to the worker it is one and the same.
    """
    command = [sys.executable, "-c", textwrap.dedent(KILLED)]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith("objective_error a DataLoader worker died; often shared memory")


@pytest.mark.parametrize("wrap", [TensorDataset, lambda *t: Subset(TensorDataset(*t), [0])])
def test_loader_processes_are_refused_tensors_on_a_device(wrap: Any) -> None:
    dataset = wrap(torch.zeros(3, device="meta"))
    with pytest.raises(ValueError, match="tensors on meta"):
        Loader(dataset, n_workers=1)
    Loader(dataset)  # the trial itself can read them


DEVICE = torch.device("meta")  # any that is not the CPU


@pytest.mark.parametrize("shuffle", [None, Shuffle(seed=3, epoch=2)])
@pytest.mark.parametrize(("free", "share"), [(160, 0.5), (80, 1.0), (1e12, 0.01)])
def test_tensors_that_fit_move_once(shuffle: Any, free: float, share: float, capsys: Any) -> None:
    """80 bytes."""
    resident = Resident(torch.zeros(20), share=share, free=lambda device: free)
    for _ in range(2):
        batches = list(resident.batches(8, DEVICE, shuffle))
        assert [(len(b[0]), b[0].device.type) for b in batches] == [(n, "meta") for n in (8, 8, 4)]
    assert resident._tensors[0].device.type == "meta"
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("shuffle", [None, Shuffle(seed=3, epoch=2)])
@pytest.mark.parametrize(("free", "share"), [(159, 0.5), (0, 1.0), (1e12, 0.0)])
def test_tensors_that_do_not_fit_move_batch_by_batch(
    shuffle: Any, free: float, share: float, capsys: Any
) -> None:
    resident = Resident(torch.zeros(20), share=share, free=lambda device: free)
    for _ in range(2):
        batches = list(resident.batches(8, DEVICE, shuffle))
        assert [(len(b[0]), b[0].device.type) for b in batches] == [(n, "meta") for n in (8, 8, 4)]
    assert resident._tensors[0].device.type == "cpu"
    assert capsys.readouterr().out.count("stays with the host") == 1


def test_resident_tensors_of_two_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\[3, 4\]"):
        Resident(torch.zeros(3), torch.zeros(4))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_inputs_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match="autocast"):
        Resident(torch.zeros(3, dtype=dtype))


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(())


@pytest.mark.parametrize("data", [[1, 2], "train", 3, (torch.zeros(3), "labels")])
def test_what_is_no_data_is_refused(data: Any) -> None:
    with pytest.raises(TypeError, match="tensors, a dataset or a source"):
        source_of(data)


def test_a_stream_is_no_set_for_a_loader() -> None:
    with pytest.raises(ValueError, match="map-style"):
        Loader(Endless())


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (torch.zeros(3), Resident),
        (numbered(3), Resident),
        (TensorDataset(*numbered(3)), Loader),
        (Endless(), Stream),
        (Resident(*numbered(3)), Resident),
    ],
)
def test_tensors_become_resident_and_datasets_loaded(data: Any, kind: type) -> None:
    assert type(source_of(data)) is kind


class Pair(NamedTuple):
    inputs: torch.Tensor
    target: torch.Tensor


class Output(dict[str, Any]):
    """Built by keywords, as the outputs of some model libraries are."""

    def __init__(self, *, logits: torch.Tensor) -> None:
        super().__init__(logits=logits)


NESTINGS = [
    torch.arange(7),
    (torch.arange(7), torch.zeros(7, 2)),
    [torch.arange(7), {"mask": torch.ones(7)}],
    {"inputs": torch.arange(7), "name": "batch"},
    Pair(torch.arange(7), torch.ones(7)),
    Output(logits=torch.arange(7)),
]


@pytest.mark.parametrize("batch", NESTINGS, ids=lambda batch: type(batch).__name__)
@pytest.mark.parametrize("micro_batch", [1, 3, 7, 8])
def test_batches_of_any_nesting_are_split_by_samples(batch: Any, micro_batch: int) -> None:
    parts = list(split_batch(batch, micro_batch, 7))
    assert {type(part) for part in parts} == {type(batch)}
    size = min(micro_batch, 7)
    assert [count_samples(part) for part in parts] == [size] * (7 // size) + [7 % size] * (
        7 % size > 0
    )


@pytest.mark.parametrize("batch", NESTINGS, ids=lambda batch: type(batch).__name__)
def test_a_nesting_keeps_its_shape(batch: Any) -> None:
    moved = map_tensors(lambda tensor: tensor + 0, move_batch(batch, CPU))
    assert type(moved) is type(batch)
    assert str(moved) == str(batch)


@pytest.mark.parametrize("batch", [(), {}, "text", None])
def test_a_batch_without_a_tensor_has_no_size(batch: Any) -> None:
    with pytest.raises(ValueError, match="tensor"):
        count_samples(batch)
