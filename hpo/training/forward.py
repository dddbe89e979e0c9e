"""The model as a training calls it: its memory layout, compiled or not, under autocast."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._dynamo.callback import callback_handler

from hpo.training.batches import map_tensors
from hpo.training.checkpoint import say
from hpo.training.memory import is_out_of_memory


class Compiled:
    """A model through torch.compile; one that cannot be compiled is called as it is.

    Attributes:
        failure: why it is not compiled after all; None while it is.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._compiled: Callable[..., Any] | None = None
        self.failure: str | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.failure is not None:
            return self._model(*args, **kwargs)
        try:
            if self._compiled is None:
                self._compiled = torch.compile(self._model)
            return self._compiled(*args, **kwargs)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            # A backend's own words stand in the second line.
            words = " ".join(str(error).strip().splitlines()[:2])
            failure = f"{type(error).__name__}: {words}"
        # An error that is the model's own is raised here, as the model raises it.
        output = self._model(*args, **kwargs)
        self.failure = failure
        say(f"torch.compile failed, going on without it: {failure}")
        return output


@contextmanager
def noting_compilation(note: Callable[[bool], None]) -> Iterator[None]:
    """Calls `note(True)` when torch begins to compile, `note(False)` when it is done."""
    handler = callback_handler
    begin = handler.register_start_callback(lambda *_: note(True))
    end = handler.register_end_callback(lambda *_: note(False))
    try:
        yield
    finally:
        handler.remove_start_callback(begin)
        handler.remove_end_callback(end)


def laid_out(model: Callable[..., Any]) -> Callable[..., Any]:
    """The model with each image batch among its inputs turned to channels last."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return model(*map_tensors(to_channels_last, args), **map_tensors(to_channels_last, kwargs))

    return call


def to_channels_last(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of four dimensions with its channels last in memory; every other one as it is."""
    if tensor.dim() != 4:
        return tensor
    return tensor.contiguous(memory_format=torch.channels_last)
