"""Handwritten digits, 1,797 pictures of 8x8: the example of a `TrainingObjective`."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler

from hpo import Categorical, FloatRange, IntRange
from hpo.space import Space
from hpo.study import Direction
from hpo.training import Split, TrainingObjective, make_optimizer

N_PIXELS, N_CLASSES = 64, 10
N_TRAIN, N_VALID = 1_257, 270  # the other 270 are the test part
SPLIT_SEED = 2024

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "Adam": torch.optim.Adam,
    "AdamW": torch.optim.AdamW,
    "RMSprop": torch.optim.RMSprop,
}


class DigitsMLP(TrainingObjective):
    """A multilayer perceptron on scikit-learn's digits; an epoch takes some 30 milliseconds."""

    space: ClassVar[Space] = {
        "lr": FloatRange(low=1e-5, high=1e-1, log=True),
        "optimizer": Categorical(choices=tuple(OPTIMIZERS)),
        "dropout": FloatRange(low=0.1, high=0.5),
        "layers": IntRange(low=2, high=5),
        "hidden": IntRange(low=32, high=256, log=True),
    }
    direction = Direction.MAXIMIZE
    metric = "accuracy"
    settings: ClassVar[Mapping[str, Any]] = {"epochs": 20, "batch_size": 64}

    def model(self, params: Mapping[str, Any]) -> nn.Module:
        widths = [N_PIXELS] + [params["hidden"]] * (params["layers"] - 1)
        blocks: list[nn.Module] = []
        for n_in, n_out in itertools.pairwise(widths):
            blocks += [nn.Linear(n_in, n_out), nn.ReLU(), nn.Dropout(params["dropout"])]
        return nn.Sequential(*blocks, nn.Linear(widths[-1], N_CLASSES))

    def data(self, params: Mapping[str, Any]) -> Split:
        images, labels = read_digits()
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(SPLIT_SEED))
        train, valid, test = torch.split(order, [N_TRAIN, N_VALID, len(order) - N_TRAIN - N_VALID])
        return Split(
            train=(images[train], labels[train]),
            valid=(images[valid], labels[valid]),
            test=(images[test], labels[test]),
        )

    def loss(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(output, target)

    def metrics(self, output: torch.Tensor, target: torch.Tensor) -> Mapping[str, torch.Tensor]:
        return {"accuracy": output.argmax(dim=1) == target}

    def optimizer(
        self, parameters: Iterator[nn.Parameter], params: Mapping[str, Any]
    ) -> torch.optim.Optimizer:
        return make_optimizer(OPTIMIZERS[params["optimizer"]], parameters, lr=params["lr"])

    def scheduler(self, optimizer: torch.optim.Optimizer, params: Mapping[str, Any]) -> LRScheduler:
        # Without it the accuracy of the last epoch, the trial's value, jumps by two percent.
        n_batches = math.ceil(N_TRAIN / int(params["batch_size"]))
        return CosineAnnealingLR(optimizer, T_max=int(params["epochs"]) * n_batches)


mlp = DigitsMLP()


@functools.cache
def read_digits() -> tuple[torch.Tensor, torch.Tensor]:
    """All images, scaled to 0 to 1, and their labels; do not change the tensors."""
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("the digits come with scikit-learn: pip install scikit-learn")
    # Its file alone: importing scikit-learn takes 1.5 s, longer than a whole trial.
    path = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
    table = torch.from_numpy(np.loadtxt(path, delimiter=",", dtype=np.float32))
    return table[:, :N_PIXELS] / 16, table[:, N_PIXELS].long()
