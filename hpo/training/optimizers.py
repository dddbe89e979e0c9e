"""Optimizers in their fastest form: one kernel for all parameters where a GPU has it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn


def make_optimizer(
    kind: Callable[..., torch.optim.Optimizer],
    parameters: Iterable[nn.Parameter | dict[str, Any]],
    **options: Any,
) -> torch.optim.Optimizer:
    """An optimizer of this kind, fused where its parameters lie on a GPU and it has such a form.

    `parameters` may be groups, as torch's optimizers take them: {"params": a list, "lr": …}.
    """
    held = list(parameters)
    groups = [each["params"] if isinstance(each, dict) else [each] for each in held]
    if may_fuse(kind, {parameter.device.type for group in groups for parameter in group}):
        options = {"fused": True, **options}
    return kind(held, **options)


def may_fuse(kind: Callable[..., Any], device_types: set[str]) -> bool:
    """Whether a kind has a fused form that is the faster one on these devices."""
    return device_types == {"cuda"} and "fused" in inspect.signature(kind).parameters
