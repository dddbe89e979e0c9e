"""The nets that precisions are compared on: small pictures of 3x32x32, ten classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn
from torch.nn import functional

SHAPE, N_CLASSES = (3, 32, 32), 10


class SimpleCNN(nn.Sequential):
    """Two convolutions with pooling, one linear layer: 60,362 weights."""

    def __init__(self) -> None:
        super().__init__(
            *(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(64 * 8 * 8, N_CLASSES)),
        )


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False), nn.BatchNorm2d(n_out), nn.ReLU()),
            *(nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False), nn.BatchNorm2d(n_out)),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or n_in != n_out:
            narrow = nn.Conv2d(n_in, n_out, 1, stride, bias=False)
            self.shortcut = nn.Sequential(narrow, nn.BatchNorm2d(n_out))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.body(inputs) + self.shortcut(inputs))


class ResNet18(nn.Sequential):
    """ResNet-18 with the stem for small pictures: 11 million weights."""

    def __init__(self) -> None:
        stages = ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2))
        blocks = [block for a, b, s in stages for block in (Block(a, b, s), Block(b, b, 1))]
        stem = (nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, N_CLASSES))
        super().__init__(*stem, *blocks, *head)


NETS: Mapping[str, Callable[[], nn.Module]] = {"simple_cnn": SimpleCNN, "resnet18": ResNet18}
