"""Out of memory: told from other errors, and freed before the trial ends for that reason."""

from __future__ import annotations

import gc
import resource
import sys
from collections.abc import Callable
from typing import TypeVar

import torch

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
    # Outside the except block: the error's traceback would keep model and graph alive.
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    raise TrialFailed(Reason.OUT_OF_MEMORY, message)


def _memory(device: torch.device) -> str:
    if device.type == "cuda":
        held, peak = torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device)
    else:
        import psutil  # a machine with torch alone can train on its GPU

        held = psutil.Process().memory_info().rss
        # Kilobytes on Linux, bytes on macOS.
        unit = 1 if sys.platform == "darwin" else 1024
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return f"{held // MEBIBYTE} MB held, {peak // MEBIBYTE} MB at the peak"
