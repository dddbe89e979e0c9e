"""Batches of any nesting: tensors in tuples, lists and dicts are counted, split and moved."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch

# A tensor, or tuples, lists and dicts of batches; each tensor has the samples along dimension 0.
Batch: TypeAlias = Any


def map_tensors(function: Callable[[torch.Tensor], Any], tree: Any) -> Any:
    """The same nesting with `function` applied to each tensor; other leaves stay as they are."""
    if isinstance(tree, torch.Tensor):
        return function(tree)
    if isinstance(tree, dict):
        mapped = {key: map_tensors(function, value) for key, value in tree.items()}
        # Keyword arguments on purpose: subclasses such as model outputs are built by them.
        return mapped if type(tree) is dict else type(tree)(**mapped)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_tensors(function, value) for value in tree))
    if isinstance(tree, tuple | list):
        return type(tree)(map_tensors(function, value) for value in tree)
    return tree


def count_samples(batch: Batch) -> int:
    """The number of samples, by the first tensor found."""
    if type(batch) is tuple and batch and isinstance(batch[0], torch.Tensor):
        return batch[0].shape[0]  # the usual kind, several times a step
    for tensor in iterate_tensors(batch):
        return tensor.shape[0]
    raise ValueError("a batch must hold at least one tensor")


def iterate_tensors(tree: Any) -> Iterator[torch.Tensor]:
    """All tensors of a nesting, in order."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, dict):
        yield from iterate_tensors(list(tree.values()))
    elif isinstance(tree, tuple | list):
        for value in tree:
            yield from iterate_tensors(value)


def split_batch(batch: Batch, size: int, n_samples: int) -> Iterator[Batch]:
    """Parts of at most `size` of the batch's samples, itself when it needs no splitting."""
    if size >= n_samples:
        yield batch
        return
    for start in range(0, n_samples, size):
        yield map_tensors(operator.itemgetter(slice(start, start + size)), batch)


def move_batch(batch: Batch, device: torch.device) -> Batch:
    """The batch on the device; copies from pinned memory do not wait."""
    return map_tensors(lambda tensor: tensor.to(device, non_blocking=True), batch)
