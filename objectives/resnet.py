"""Fine-tuning: a ResNet-18 that starts from given weights, on scikit-learn's digits.

Its parts have torchvision's names, so a file of its `resnet18` can be the start:
`settings: {weights: /models/resnet18.pth}`. Without one it starts from random weights.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from hpo import FloatRange
from hpo.space import Space
from hpo.study import Direction
from hpo.training import Split, TrainingObjective, make_optimizer
from objectives.digits import N_CLASSES, N_TRAIN, mlp

IMAGENET_CLASSES, IMAGENET_MEAN, IMAGENET_STD = 1_000, 0.449, 0.226  # over the three colours


class Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(n_out)
        self.downsample: nn.Module | None = None
        if stride != 1 or n_in != n_out:
            self.downsample = nn.Sequential(
                nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out)
            )

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        around = x_BCHW if self.downsample is None else self.downsample(x_BCHW)
        within = functional.relu(self.bn1(self.conv1(x_BCHW)))
        return functional.relu(self.bn2(self.conv2(within)) + around)


class ResNet18(nn.Sequential):
    """The net of He et al. (2015) with 18 layers; `width` 64 is theirs."""

    def __init__(self, width: int = 64, n_classes: int = IMAGENET_CLASSES) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        n_in = width
        for index, stride in enumerate((1, 2, 2, 2)):
            n_out = width * 2**index
            blocks = nn.Sequential(Block(n_in, n_out, stride), Block(n_out, n_out, 1))
            self.add_module(f"layer{index + 1}", blocks)
            n_in = n_out
        self.avgpool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.fc = nn.Linear(n_in, n_classes)


class FineTuned(TrainingObjective):
    """A ResNet-18 with a new head, fine-tuned on the digits in two parts of each batch."""

    space: ClassVar[Space] = {
        "lr": FloatRange(low=1e-4, high=1e-2, log=True),  # of the new head
        "body_share": FloatRange(low=0.01, high=1.0, log=True),  # of it, for all the rest
        "weight_decay": FloatRange(low=1e-5, high=1e-1, log=True),
    }
    direction = Direction.MAXIMIZE
    metric = "accuracy"
    settings: ClassVar[Mapping[str, Any]] = {
        "epochs": 3,
        "batch_size": 64,
        # Gradients of two parts add up to those of the batch. BatchNorm is the exception: it takes
        # mean and variance from 32 images, so do not make the parts very small.
        "micro_batch": 32,
        "channels_last": True,
        "weights": None,
        "freeze_body": False,
        "width": 64,
        "image_size": 32,
        "train_size": 600,
    }

    def model(self, params: Mapping[str, Any]) -> nn.Module:
        model = ResNet18(int(params["width"]))
        if params["weights"] is not None:
            load_weights(model, Path(params["weights"]))
        if params["freeze_body"]:
            freeze(model)
        model.fc = nn.Linear(model.fc.in_features, N_CLASSES)
        return model

    def data(self, params: Mapping[str, Any]) -> Split:
        n_train = min(int(params["train_size"]), N_TRAIN)
        grow = functools.partial(as_photos, image_size=int(params["image_size"]))
        digits: Any = mlp.data(params)
        (images, labels), (valid_images, valid_labels) = digits.train, digits.valid
        return Split(
            train=(grow(images[:n_train]), labels[:n_train]),
            valid=(grow(valid_images), valid_labels),
        )

    def loss(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(output, target)

    def metrics(self, output: torch.Tensor, target: torch.Tensor) -> Mapping[str, torch.Tensor]:
        return {"accuracy": output.argmax(dim=1) == target}

    def optimizer(
        self, parameters: Iterator[nn.Parameter], params: Mapping[str, Any]
    ) -> torch.optim.Optimizer:
        *body, head_weight, head_bias = parameters  # the head is the last module
        groups: list[dict[str, Any]] = [
            {"params": [head_weight, head_bias], "lr": params["lr"]},
            {
                "params": [parameter for parameter in body if parameter.requires_grad],
                "lr": params["lr"] * params["body_share"],
            },
        ]
        return make_optimizer(torch.optim.AdamW, groups, weight_decay=params["weight_decay"])


finetune = FineTuned()


def load_weights(model: nn.Module, path: Path) -> None:
    """Takes all but the head from a file of a state dict. Raises ValueError for another net's."""
    # A file from elsewhere may hold code; with weights_only none of it runs.
    state = torch.load(path, map_location="cpu", weights_only=True)
    body = {name: tensor for name, tensor in state.items() if not name.startswith("fc.")}
    try:
        missing, unknown = model.load_state_dict(body, strict=False)
    except RuntimeError as error:  # of another width
        raise ValueError(f"{path} does not fit: {error}") from None
    if unknown or set(missing) != {"fc.weight", "fc.bias"}:
        strange = [*unknown, *(name for name in missing if not name.startswith("fc."))]
        names = ", ".join(strange[:5]) + ", …" * (len(strange) > 5)
        raise ValueError(f"{path} holds no ResNet-18; missing or unknown there: {names}")


def freeze(model: nn.Module) -> None:
    """Keeps the weights as they are, and with them the statistics of BatchNorm.

    In training mode those would follow the new images though no weight does; the training loop
    leaves a module in the mode that it finds.
    """
    model.requires_grad_(False)
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.eval()


def as_photos(images: torch.Tensor, image_size: int) -> torch.Tensor:
    """Flat 8x8 images from 0 to 1 as what a net trained on ImageNet expects."""
    grey = functional.interpolate(
        images.reshape(-1, 1, 8, 8), size=(image_size, image_size), mode="bilinear"
    )
    return ((grey - IMAGENET_MEAN) / IMAGENET_STD).expand(-1, 3, -1, -1).contiguous()
