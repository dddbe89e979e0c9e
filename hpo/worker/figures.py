"""How busy the devices of this node are, as heartbeats tell it; never through CUDA.

What a driver does not tell is left out: a worker works without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpo.worker.devices import CPU

Figures = dict[str, Any]


def device_figures(devices: Sequence[str]) -> list[Figures]:
    """One entry for each of the devices that can be asked, each named once."""
    found = [_cpu_figures()] if CPU in devices else []
    gpus = [device for device in dict.fromkeys(devices) if device != CPU]
    return found + _gpu_figures(gpus) if gpus else found


def _cpu_figures() -> Figures:
    """Of the whole machine; the share since the call before, 0 in the first one."""
    import psutil

    memory = psutil.virtual_memory()
    return {
        "device": CPU,
        "utilization": min(1.0, psutil.cpu_percent() / 100),
        "memory_used_bytes": memory.total - memory.available,
        "memory_total_bytes": memory.total,
    }


def _gpu_figures(devices: Sequence[str]) -> list[Figures]:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        return [found for device in devices if (found := _gpu(pynvml, device)) is not None]
    finally:
        pynvml.nvmlShutdown()


def _gpu(pynvml: Any, device: str) -> Figures | None:
    """None for what NVML does not know by this name, such as an index among visible ones."""
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(device)
        memory, name = pynvml.nvmlDeviceGetMemoryInfo(handle), pynvml.nvmlDeviceGetName(handle)
    except pynvml.NVMLError:
        return None
    return {
        "device": device,
        "name": name.decode() if isinstance(name, bytes) else name,
        "utilization": _utilization(pynvml, handle),
        "memory_used_bytes": int(memory.used),
        "memory_total_bytes": int(memory.total),
    }


def _utilization(pynvml: Any, handle: Any) -> float | None:
    try:
        return float(min(1.0, pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100))
    except pynvml.NVMLError:  # MIG parts do not tell
        return None
