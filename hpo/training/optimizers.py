"""Optimizers in their fastest form: one kernel for all parameters where a GPU has it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn


def make_optimizer(
    kind: Callable[..., torch.optim.Optimizer], parameters: Iterable[nn.Parameter], **options: Any
) -> torch.optim.Optimizer:
    """An optimizer of this kind, fused where its parameters lie on a GPU and it has such a form."""
    held = list(parameters)
    if may_fuse(kind, {parameter.device.type for parameter in held}):
        options = {"fused": True, **options}
    return kind(held, **options)


def may_fuse(kind: Callable[..., Any], device_types: set[str]) -> bool:
    """Whether a kind has a fused form that is the faster one on these devices."""
    return device_types == {"cuda"} and "fused" in inspect.signature(kind).parameters
