"""Mixed precision as one small class, so that fp32, bf16 and fp16 are read once, on one path.

Weights, gradients, optimizer states and losses are fp32 always; autocast casts the inputs of
the operations that gain by it. Only fp16 needs a scaler. Where a precision needs less, its
part is a no-op on the same path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from hpo.errors import InvalidField
from hpo.training.batches import map_tensors

DTYPES: dict[str, torch.dtype | None] = {
    "fp32": None,
    "tf32": None,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
HALF_DTYPES = (torch.float16, torch.bfloat16)
INITIAL_SCALE = 2.0**16
# Without a floor enough overflows bring the scale to 0, where it stays for good.
SCALE_FLOOR = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """What became of one optimizer step; `grad_norm` stays on the device."""

    stepped: bool
    grad_norm: torch.Tensor | None
    scale: float


PLAIN = StepResult(stepped=True, grad_norm=None, scale=1.0)


class Precision:
    """Autocast, loss scaling and the optimizer step of one trial.

    Sets the TF32 flags of the process, on for "tf32" and off for every other name: PyTorch
    leaves them on for convolutions, and "fp32" then would not be what it says.
    """

    def __init__(
        self,
        name: str,
        device: torch.device,
        *,
        allow_slow: bool = False,
        initial_scale: float = INITIAL_SCALE,
    ) -> None:
        self.name = resolve_precision(name, device, allow_slow=allow_slow)
        self.device = device
        self.dtype = DTYPES[self.name]
        self.scaler = torch.amp.GradScaler(
            device.type, init_scale=initial_scale, enabled=self.name == "fp16"
        )
        self._scales = self.scaler.is_enabled()
        self.set_tf32()

    def set_tf32(self) -> None:
        """Sets the flags of the process again, where several precisions take turns in it."""
        torch.backends.cuda.matmul.allow_tf32 = self.name == "tf32"
        torch.backends.cudnn.allow_tf32 = self.name == "tf32"

    def autocast(self) -> AbstractContextManager[Any]:
        """A new context for one forward pass: a shared one would keep stale casts of weights."""
        if self.dtype is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)

    def forward(self, model: Callable[..., Any]) -> Callable[..., Any]:
        """The model under autocast with fp32 outputs, so that losses are computed in fp32."""

        def plain(*args: Any, **kwargs: Any) -> Any:
            output = model(*args, **kwargs)
            if isinstance(output, torch.Tensor) and output.dtype is torch.float32:
                return output
            return in_fp32(output)

        def forward(*args: Any, **kwargs: Any) -> Any:
            with self.autocast():
                return in_fp32(model(*args, **kwargs))

        # A context that does nothing still costs a percent of a small net's step.
        return plain if self.dtype is None else forward

    def backward(self, loss: torch.Tensor) -> None:
        """Adds the gradients of the scaled loss; call it outside autocast."""
        if self._scales:
            loss = self.scaler.scale(loss)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it so

    def step(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        measure: bool = False,
    ) -> StepResult:
        """Unscales once, clips, steps unless a gradient overflowed, and adapts the scale.

        The norm of the gradients is that before clipping; it is computed where `clip_norm` needs
        it or `measure` asks for it.
        """
        if self._scales:
            self.scaler.unscale_(optimizer)
        grad_norm = None
        if measure or clip_norm is not None or clip_value is not None:
            grad_norm = _clip(optimizer, clip_norm, clip_value, measure=measure)
        if not self._scales:  # a scaler that is switched off costs a percent of a small net's step
            optimizer.step()
            return PLAIN if grad_norm is None else replace(PLAIN, grad_norm=grad_norm)
        before = self.scaler.get_scale()
        self.scaler.step(optimizer)
        self.scaler.update()
        scale = self.scaler.get_scale()
        # The scale falls on a skip and only then; fused optimizers show it in no other way.
        stepped = scale >= before
        if scale < SCALE_FLOOR:
            self.scaler.update(SCALE_FLOOR)
            scale = SCALE_FLOOR
        return StepResult(stepped=stepped, grad_norm=grad_norm, scale=scale)

    def state_dict(self) -> dict[str, Any]:
        """The scaler's state; empty for every precision but fp16."""
        return self.scaler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the scaler."""
        self.scaler.load_state_dict(dict(state))


def resolve_precision(
    name: str,
    device: torch.device,
    *,
    allow_slow: bool = False,
    capability: tuple[int, int] | None = None,
) -> str:
    """The precision that `name` means on this device; `capability` is for tests without one."""
    if name == "auto":
        return _best_precision(device, capability)
    if name not in DTYPES:
        raise InvalidField("precision", f"must be auto, {', '.join(DTYPES)}, got {name!r}")
    if name == "fp16" and device.type == "cpu" and not allow_slow:
        raise InvalidField(
            "precision",
            "fp16 on a CPU is about 30 times slower than fp32; use bf16 or fp32, or set allow_slow",
        )
    return name


def _best_precision(device: torch.device, capability: tuple[int, int] | None) -> str:
    if device.type != "cuda":
        return "fp32"
    major, _ = capability or torch.cuda.get_device_capability(device)
    if major >= 8:
        return "bf16"
    return "fp16" if major == 7 else "fp32"


def to_fp32(tensor: torch.Tensor) -> torch.Tensor:
    """A half tensor as fp32; every other one as it is."""
    return tensor.float() if tensor.dtype in HALF_DTYPES else tensor


def in_fp32(output: Any) -> Any:
    """An output of any nesting with its half tensors as fp32."""
    return to_fp32(output) if isinstance(output, torch.Tensor) else map_tensors(to_fp32, output)


def check_weights(model: nn.Module) -> None:
    """Raises ValueError for a half parameter or buffer: small updates would vanish in it."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.dtype in HALF_DTYPES:
            raise ValueError(
                f"the model's {name} is {tensor.dtype}; leave weights and buffers in fp32, "
                "autocast casts by itself"
            )


def _clip(
    optimizer: torch.optim.Optimizer,
    clip_norm: float | None,
    clip_value: float | None,
    *,
    measure: bool,
) -> torch.Tensor | None:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if clip_norm is not None:
        return nn.utils.clip_grad_norm_(parameters, clip_norm)
    norm = None
    if measure:
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    if clip_value is not None:
        nn.utils.clip_grad_value_(parameters, clip_value)
    return norm
