"""The model and all that changes with it, and one optimizer step in its right order.

zero_grad, [autocast(forward), loss, scaled backward] for each part of the batch, unscale once,
clip, step, adapt the scale; then average and schedule, if it was a real step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from hpo.training.batches import Batch, count_samples, split_batch
from hpo.training.checkpoint import say
from hpo.training.ema import Ema
from hpo.training.forward import Compiled, laid_out
from hpo.training.memory import Rewind, free_unused, halving_on_out_of_memory
from hpo.training.options import TrainingOptions
from hpo.training.precision import Precision, StepResult, check_weights
from hpo.training.recipe import Recipe


class Learner:
    """What one attempt of a trial trains.

    `halves_batches` says whether a batch is tried again in smaller parts when memory runs out;
    by default on a GPU alone.
    """

    def __init__(
        self,
        recipe: Recipe,
        params: Mapping[str, Any],
        options: TrainingOptions,
        device: torch.device,
        *,
        halves_batches: bool | None = None,
    ) -> None:
        self.recipe, self.options, self.device = recipe, options, device
        self.precision = Precision(options.precision, device, allow_slow=options.allow_slow)
        if self.precision.name == "tf32" and device.type == "cpu":
            say("precision: tf32 is plain fp32 on a CPU")
        layout = torch.channels_last if options.channels_last else torch.preserve_format
        self.model = recipe.model(params).to(device, memory_format=layout)  # type: ignore[call-overload]  # torch's overloads lack it
        check_weights(self.model)
        self.compiled = Compiled(self.model) if options.compile else None
        call = self.compiled or self.model
        self.forward = self.precision.forward(laid_out(call) if options.channels_last else call)
        self.optimizer = recipe.optimizer(self.model.parameters(), params)
        self.scheduler = recipe.scheduler(self.optimizer, params)
        self.ema = None if options.ema_decay is None else Ema(self.model, options.ema_decay)
        self.micro_batch = options.micro_batch
        halves = device.type == "cuda" if halves_batches is None else halves_batches
        self._rewind = Rewind(self.model, device) if halves else None
        self._has_batch_norm = any(
            isinstance(module, _BatchNorm) for module in self.model.modules()
        )
        self._eval_size = options.eval_batch_size

    def train_step(
        self, batch: Batch, n_samples: int | None = None, *, measure: bool = False
    ) -> tuple[torch.Tensor, StepResult]:
        """One optimizer step on the batch: its mean loss, and what became of the step.

        `measure` asks for the norm of the gradients.
        """
        drop_gradients(self.optimizer)
        if self._rewind is None and self.micro_batch is None:
            loss = self._backward(batch)
        else:
            loss = self._gradients(batch, n_samples or count_samples(batch))
        result = self.precision.step(
            self.optimizer,
            clip_norm=self.options.clip_norm,
            clip_value=self.options.clip_value,
            measure=measure,
        )
        if result.stepped:
            if self.ema is not None:
                self.ema.update()
            if self.scheduler is not None:
                self.scheduler.step()
        return loss, result

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Evaluation mode without gradients, with averaged weights where they are asked for."""
        with self._averaged(), evaluating(self.model):
            yield

    def _averaged(self) -> AbstractContextManager[None]:
        averaged = self.ema is not None and self.options.evaluate_ema
        return self.ema.in_place() if self.ema and averaged else nullcontext()

    def evaluated_weights(self) -> dict[str, Any]:
        """A copy on the CPU of the weights that evaluation sees, which may be averages."""
        with self._averaged():
            return {name: _copied(value) for name, value in self.model.state_dict().items()}

    def evaluate(self, source: Any) -> dict[str, float]:
        """The recipe's metrics on a source of batches, whole again when memory ran out."""

        def measure(size: int) -> dict[str, float]:
            with self.evaluating():
                return dict(self.recipe.evaluate(self.forward, source.batches(size, self.device)))

        size = self._eval_size or self.micro_batch or self.options.batch_size
        if self._rewind is None:
            return measure(size)
        metrics, fitted = halving_on_out_of_memory(measure, size, before_retry=self._say_smaller)
        if fitted < size:
            self._eval_size = fitted
        return metrics

    def user_attrs(self) -> dict[str, Any]:
        """What became of the options where a trial has to find out."""
        attrs: dict[str, Any] = {"precision": self.precision.name}
        if self.micro_batch != self.options.micro_batch:
            attrs["micro_batch"] = self.micro_batch
        if self.compiled is not None:
            attrs["compiled"] = self.compiled.failure is None
        return attrs

    def state_dict(self) -> dict[str, Any]:
        """All that a checkpoint needs of it."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "scaler": self.precision.state_dict(),
            "ema": None if self.ema is None else self.ema.state_dict(),
            "micro_batch": self.micro_batch,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        self.precision.load_state_dict(state["scaler"])
        if self.ema is not None:
            self.ema.load_state_dict(state["ema"])
        self.micro_batch = state["micro_batch"]

    def _gradients(self, batch: Batch, n_samples: int) -> torch.Tensor:
        size = min(self.micro_batch or n_samples, n_samples)
        if self._rewind is None:
            return self._accumulate(batch, n_samples, size)
        self._rewind.mark()
        # Not the optimizer's step: one that failed half way could not be repeated.
        loss, fitted = halving_on_out_of_memory(
            lambda size: self._accumulate(batch, n_samples, size),
            size,
            smallest=2 if self._has_batch_norm else 1,  # it needs two samples for a variance
            before_retry=self._start_batch_again,
        )
        if fitted < size:
            self.micro_batch = fitted
        return loss

    def _accumulate(self, batch: Batch, n_samples: int, size: int) -> torch.Tensor:
        if size >= n_samples:
            return self._backward(batch)
        # Parts weigh by their samples, as the last may be short.
        losses = [
            self._backward(part, weight=count_samples(part) / n_samples)
            for part in split_batch(batch, size, n_samples)
        ]
        return torch.stack(losses).sum()

    def _backward(self, batch: Batch, *, weight: float | None = None) -> torch.Tensor:
        loss = self.recipe.step(self.forward, batch)
        if weight is not None:
            loss = loss * weight
        self.precision.backward(loss)
        return loss.detach()

    def _start_batch_again(self, size: int) -> None:
        assert self._rewind is not None
        drop_gradients(self.optimizer)
        self._say_smaller(size)
        if self._has_batch_norm:
            say("BatchNorm sees those smaller parts: its statistics are noisier than before")
        self._rewind.rewind()

    def _say_smaller(self, size: int) -> None:
        free_unused(self.device)
        say(f"out of memory: going on with {size} samples at a time; the batch stays whole")


def _copied(value: Any) -> Any:
    """Extra state of a module may be no tensor."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def drop_gradients(optimizer: torch.optim.Optimizer) -> None:
    """As `zero_grad` does; its profiling costs a percent of a small net's step."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; each module gets back the mode that it had."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, is_training in modes:
            module.training = is_training
