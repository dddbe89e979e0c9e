"""What a training step keeps in memory, told apart by what it is, in the same way on any device.

Mixed precision leaves weights, gradients and moments in fp32 and adds half copies of the weights;
only what the forward pass saves for the backward pass shrinks. So the parts are counted apart:
each storage once, as views and tensors saved twice share one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

LEAF = "torch::autograd::AccumulateGrad"


@dataclass(frozen=True, kw_only=True, slots=True)
class Footprint:
    """Bytes of one training step.

    Attributes:
        held_bytes: weights, buffers, gradients, optimizer states and the batch.
        activation_bytes: what the forward pass keeps for the backward pass beside these.
        weight_copy_bytes: casts of the weights that are kept with the activations.
    """

    held_bytes: int
    activation_bytes: int
    weight_copy_bytes: int


def footprint(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Iterable[torch.Tensor],
    loss_of: Callable[[], torch.Tensor],
) -> Footprint:
    """Counts them in a forward and backward pass; the optimizer must have stepped before."""
    saved: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        loss = loss_of()
    kept, copies = _storages(saved), _storages(filter(_is_of_weights, saved))
    saved.clear()
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it so
    held = _storages(_held(model, optimizer, batch))
    return Footprint(
        held_bytes=sum(held.values()),
        activation_bytes=sum(kept[key] for key in kept.keys() - held.keys() - copies.keys()),
        weight_copy_bytes=sum(copies[key] for key in copies.keys() - held.keys()),
    )


def _held(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Iterable[torch.Tensor]
) -> Iterator[torch.Tensor]:
    for parameter in model.parameters():
        yield parameter
        if parameter.grad is not None:
            yield parameter.grad
        state: dict[str, Any] = optimizer.state[parameter]
        yield from (value for value in state.values() if isinstance(value, torch.Tensor))
    yield from model.buffers()
    yield from batch


def _storages(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    storages = [tensor.untyped_storage() for tensor in tensors]
    return {storage.data_ptr(): storage.nbytes() for storage in storages}


def _is_of_weights(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a weight, or a cast or view of one and of nothing else."""
    function = tensor.grad_fn
    if function is None:
        return isinstance(tensor, nn.Parameter)
    while function is not None and len(function.next_functions) == 1:
        function = function.next_functions[0][0]
    return function is not None and function.name() == LEAF
