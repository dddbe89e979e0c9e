"""Clothes in 28x28 pixels: two nets on Fashion-MNIST, which is read from its own IDX files."""

from __future__ import annotations

import gzip
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from hpo import FloatRange, IntRange
from hpo.space import Space
from hpo.study import Direction
from hpo.training import Split, TrainingObjective, make_optimizer

DEBIAN_DIR = Path("/usr/share/datasets/fashion-mnist")
IMAGE_SIZE, N_CLASSES = 28, 10
# IDX: two zero bytes, the type of the elements (8: unsigned byte), the number of dimensions.
IDX_UNSIGNED_BYTE = b"\x00\x00\x08"


class SimpleCNN(nn.Module):
    """Two convolutions with pooling, then one linear layer."""

    def __init__(
        self, channels: int, *, n_inputs: int = 1, image_size: int = IMAGE_SIZE, dropout: float = 0
    ) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(n_inputs, channels, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(channels, 2 * channels, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        # Each of the two poolings halves the sides: 28 pixels become 7, 32 become 8.
        self.classifier = nn.Sequential(
            nn.Dropout(dropout), nn.Linear(2 * channels * (image_size // 4) ** 2, N_CLASSES)
        )

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        # B batch, C colours, H height, W width
        return self.classifier(self.features(images_BCHW))  # type: ignore[no-any-return]  # nn.Module


class Clothes(TrainingObjective):
    """What the nets share: data, loss and metric. Needs the data set's files (`data_dir`)."""

    direction = Direction.MAXIMIZE
    metric = "accuracy"
    settings: ClassVar[Mapping[str, Any]] = {
        "train_size": 10_000,
        "valid_size": 2_000,
        "data_dir": None,
    }

    def data(self, params: Mapping[str, Any]) -> Split:
        folder = find_data(params["data_dir"])
        n_valid, n_train = int(params["valid_size"]), int(params["train_size"])
        images, labels = read_pairs(folder, "train", n_valid + n_train)
        return Split(
            train=(images[n_valid:], labels[n_valid:]),
            valid=(images[:n_valid], labels[:n_valid]),
        )

    def loss(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        # The negative log-likelihood. A net that ends in LogSoftmax, for nll_loss, would compute
        # it in half precision under autocast on a CPU; here the loss gets logits in fp32.
        return functional.cross_entropy(output, target)

    def metrics(self, output: torch.Tensor, target: torch.Tensor) -> Mapping[str, torch.Tensor]:
        return {"accuracy": output.argmax(dim=1) == target}


class FashionCNN(Clothes):
    """A small convolutional net on Fashion-MNIST; needs the data set's files (`data_dir`)."""

    space: ClassVar[Space] = {
        "lr": FloatRange(low=1e-4, high=1e-1, log=True),
        "dropout": FloatRange(low=0.0, high=0.5),
        "channels": IntRange(low=8, high=16, step=4),
    }
    settings: ClassVar[Mapping[str, Any]] = {
        **Clothes.settings,
        "epochs": 3,
        "channels_last": True,  # four times the steps a second under bf16
    }

    def model(self, params: Mapping[str, Any]) -> nn.Module:
        return SimpleCNN(params["channels"], dropout=params["dropout"])

    def optimizer(
        self, parameters: Iterator[nn.Parameter], params: Mapping[str, Any]
    ) -> torch.optim.Optimizer:
        return make_optimizer(torch.optim.Adam, parameters, lr=params["lr"])


class FashionMLP(Clothes):
    """The net 784-128-64-10 of many a first lesson, with SGD, on Fashion-MNIST (`data_dir`)."""

    space: ClassVar[Space] = {
        "lr": FloatRange(low=1e-3, high=1.0, log=True),
        "momentum": FloatRange(low=0.0, high=0.95),
    }
    settings: ClassVar[Mapping[str, Any]] = {**Clothes.settings, "epochs": 5, "batch_size": 64}

    def model(self, params: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(IMAGE_SIZE**2, 128),
            nn.ReLU(),
            nn.Linear(128, 64),
            nn.ReLU(),
            nn.Linear(64, N_CLASSES),
        )

    def optimizer(
        self, parameters: Iterator[nn.Parameter], params: Mapping[str, Any]
    ) -> torch.optim.Optimizer:
        return make_optimizer(
            torch.optim.SGD, parameters, lr=params["lr"], momentum=params["momentum"]
        )


cnn = FashionCNN()
mlp = FashionMLP()


def find_data(data_dir: str | None) -> Path:
    """The folder of the IDX files. Raises FileNotFoundError that says how to get them."""
    folder = DEBIAN_DIR if data_dir is None else Path(data_dir)
    if any((folder / f"train-images-idx3-ubyte{suffix}").is_file() for suffix in ("", ".gz")):
        return folder
    raise FileNotFoundError(
        f"no Fashion-MNIST in {folder}: install Debian's package dataset-fashion-mnist, or fetch "
        "the four IDX files from github.com/zalandoresearch/fashion-mnist (data/fashion) and name "
        "their folder by the setting data_dir"
    )


def read_pairs(folder: Path, part: str, n_samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The first `n_samples` images, about -1 to 2, and labels of the part "train" or "t10k"."""
    pixels = read_idx(folder / f"{part}-images-idx3-ubyte", n_samples)
    labels = read_idx(folder / f"{part}-labels-idx1-ubyte", n_samples)
    images = torch.from_numpy(pixels).float().unsqueeze(1)
    return (images / 255 - 0.286) / 0.353, torch.from_numpy(labels).long()


def read_idx(path: Path, n_items: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The first items of an IDX file, plain or compressed. Raises ValueError for another format."""
    with _open(path) as file:
        magic = file.read(4)
        if magic[:3] != IDX_UNSIGNED_BYTE:
            raise ValueError(f"{path} is no IDX file of unsigned bytes")
        shape = [int.from_bytes(file.read(4), "big") for _ in range(magic[3])]
        if shape[0] < n_items:
            raise ValueError(f"{path} holds {shape[0]} items, {n_items} are asked for")
        size = n_items * math.prod(shape[1:])
        content = file.read(size)
    if len(content) != size:
        raise ValueError(f"{path} is cut off")
    return np.frombuffer(bytearray(content), dtype=np.uint8).reshape(n_items, *shape[1:])


def _open(path: Path) -> BinaryIO:
    packed = path.with_name(path.name + ".gz")
    return gzip.open(packed) if packed.is_file() else path.open("rb")  # type: ignore[return-value]  # GzipFile reads alike
