"""Which devices a worker uses, and the slots on them.

GPUs are found through NVML, never through CUDA: a process that has touched CUDA cannot fork
children that use it. They are named by UUID, which every CUDA process reads the same way.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpo.worker.options import WorkerOptions

CPU = "cpu"
VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """A place where one trial runs at a time. `device` is "cpu" or an entry for CUDA."""

    index: int
    device: str = CPU

    @property
    def kind(self) -> str:
        return device_kind(self.device)


def device_kind(device: str) -> str:
    """What an objective calls the device: each child sees only its own, as the first."""
    return CPU if device == CPU else "cuda"


def find_slots(
    options: WorkerOptions,
    environ: Mapping[str, str],
    *,
    find_gpus: Callable[[], Sequence[str]] | None = None,
) -> list[Slot]:
    """The slots that the options ask for. Raises ValueError when the devices are not there."""
    devices = choose_devices(options.devices, environ, find_gpus=find_gpus or find_gpu_uuids)
    if devices == [CPU]:
        n_slots = options.slots or max(1, core_count() // 2)
    else:
        n_slots = max(1, int(len(devices) * options.slots_per_device))
        n_slots = min(n_slots, options.slots or n_slots)
    return [Slot(index=index, device=devices[index % len(devices)]) for index in range(n_slots)]


def choose_devices(
    wanted: str, environ: Mapping[str, str], *, find_gpus: Callable[[], Sequence[str]]
) -> list[str]:
    """The devices of "auto", "cpu" or a list of indices among the visible GPUs."""
    if wanted == CPU:
        return [CPU]
    inherited = environ.get(VISIBLE)
    visible = list(find_gpus()) if inherited is None else visible_entries(inherited)
    if wanted == "auto":
        return visible or [CPU]
    return [_pick(entry.strip(), visible) for entry in wanted.split(",")]


def visible_entries(text: str) -> list[str]:
    """The entries of CUDA_VISIBLE_DEVICES as CUDA reads them: up to the first that is invalid."""
    entries: list[str] = []
    for entry in (part.strip() for part in text.split(",")):
        if not entry or entry.startswith("-") or entry in entries:
            break
        entries.append(entry)
    return entries


def _pick(entry: str, visible: Sequence[str]) -> str:
    if entry in visible and not entry.isdigit():
        return entry
    if entry.isdigit() and int(entry) < len(visible):
        return visible[int(entry)]
    known = f"GPUs 0 to {len(visible) - 1} are visible" if visible else "no GPU is visible"
    raise ValueError(f"devices: there is no GPU {entry!r}; {known}; choose among them, auto or cpu")


def find_gpu_uuids() -> list[str]:
    """UUIDs of this machine's GPUs, or of their MIG parts; none without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        return [_text(uuid) for handle in handles for uuid in _uuids_of(pynvml, handle)]
    finally:
        pynvml.nvmlShutdown()


def _uuids_of(pynvml: Any, handle: Any) -> list[Any]:
    """One GPU counts once, or once per MIG part: CUDA in a process sees one part only."""
    try:
        is_split = pynvml.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE
    except pynvml.NVMLError:  # GPUs that know no MIG
        is_split = False
    if not is_split:
        return [pynvml.nvmlDeviceGetUUID(handle)]
    parts = []
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            part = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except pynvml.NVMLError:  # places that hold no part
            continue
        parts.append(pynvml.nvmlDeviceGetUUID(part))
    return parts


def _text(uuid: str | bytes) -> str:
    return uuid.decode() if isinstance(uuid, bytes) else uuid


def core_count() -> int:
    """The cores this process may use, which in a container or a batch system are not all."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads_per_child(n_slots: int, environ: Mapping[str, str]) -> int:
    """OMP_NUM_THREADS of the user, or an equal share of the cores."""
    given = environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdigit() and int(given) else max(1, core_count() // n_slots)
