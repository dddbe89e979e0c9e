"""Out of memory: told from other errors, answered by smaller parts, or the end of the trial.

On a GPU the batch is tried again in parts of half the size: the optimizer sees the same batch, so
the training stays the same but for rounding. On a CPU there is nothing to gain by it.
"""

from __future__ import annotations

import gc
import resource
import sys
from collections import defaultdict
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

from hpo.objective import TrialFailed
from hpo.trial import Reason

T = TypeVar("T")

# cuBLAS, cuDNN and the CPU allocator raise plain RuntimeErrors.
MESSAGES = (
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "can't allocate memory",
    "not enough memory",
)
MEBIBYTE = 2**20


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the device or the host had too little memory."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in MESSAGES)


def failing_out_of_memory(function: Callable[[], T], device: torch.device) -> T:
    """Calls the function; out of memory becomes TrialFailed with what was held and the peak."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    try:
        return function()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        message = f"does not fit: {_memory(device)}; {str(error).partition(chr(10))[0]}"
    free_unused(device)
    raise TrialFailed(Reason.OUT_OF_MEMORY, message)


def halving_on_out_of_memory(
    function: Callable[[int], T],
    size: int,
    *,
    smallest: int = 1,
    before_retry: Callable[[int], None],
) -> tuple[T, int]:
    """Calls `function(size)`, again with half the size each time memory runs out.

    Returns its result and the size that fitted.
    """
    while True:
        try:
            return function(size), size
        except (RuntimeError, MemoryError) as error:
            if size <= smallest or not is_out_of_memory(error):
                raise
        # Outside the except block: the error's traceback would keep the graph alive.
        size = max(size // 2, smallest)
        before_retry(size)


class Rewind:
    """Puts torch's random streams and the model's buffers back to where a batch began."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._device = device
        by_dtype: dict[torch.dtype, list[torch.Tensor]] = defaultdict(list)
        for buffer in model.buffers():
            by_dtype[buffer.dtype].append(buffer)
        # A few launches for all buffers together rather than one for each.
        self._pairs = [
            (buffers, [torch.empty_like(buffer) for buffer in buffers])
            for buffers in by_dtype.values()
        ]

    @torch.no_grad()
    def mark(self) -> None:
        """Takes note of the present."""
        for buffers, kept in self._pairs:
            torch._foreach_copy_(kept, buffers)
        self._cpu = torch.get_rng_state()
        if self._device.type == "cuda":
            self._cuda = torch.cuda.get_rng_state(self._device)

    @torch.no_grad()
    def rewind(self) -> None:
        """Goes back to the mark."""
        for buffers, kept in self._pairs:
            torch._foreach_copy_(buffers, kept)
        torch.set_rng_state(self._cpu)
        if self._device.type == "cuda":
            torch.cuda.set_rng_state(self._cuda, self._device)


def free_unused(device: torch.device) -> None:
    """Gives back what nothing refers to; call it outside the except block of an error."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def free_bytes(device: torch.device) -> float:
    """What is free on the device; without bound where tensors need not be moved to it."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else float("inf")


def memory_attrs(device: torch.device) -> dict[str, int]:
    """Figures of a GPU's memory since the trial began; nothing on a CPU."""
    if device.type != "cuda":
        return {}
    return {
        "held_mb": torch.cuda.memory_allocated(device) // MEBIBYTE,
        "peak_mb": torch.cuda.max_memory_allocated(device) // MEBIBYTE,
        "allocation_retries": torch.cuda.memory_stats(device).get("num_alloc_retries", 0),
    }


def _memory(device: torch.device) -> str:
    if device.type == "cuda":
        held, peak = torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device)
        free, total = torch.cuda.mem_get_info(device)
        others = total - free - torch.cuda.memory_reserved(device)
        return (
            f"{held // MEBIBYTE} MB held, {peak // MEBIBYTE} MB at the peak, "
            f"{others // MEBIBYTE} of the device's {total // MEBIBYTE} MB held by others"
        )
    import psutil  # a machine with torch alone can train on its GPU

    held = psutil.Process().memory_info().rss
    # Kilobytes on Linux, bytes on macOS.
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return f"{held // MEBIBYTE} MB held, {peak // MEBIBYTE} MB at the peak"
