"""What the host says of its memory: shared memory for loaders, and kills by the kernel."""

from __future__ import annotations

import os
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
KERNEL_COUNTERS = Path("/proc/vmstat")
FEW_BYTES = 2**30


def shared_memory_bytes(folder: Path = SHARED_MEMORY) -> int | None:
    """The size of shared memory; None where there is no such thing."""
    try:
        facts = os.statvfs(folder)
    except OSError:
        return None
    return facts.f_blocks * facts.f_frsize


def shared_memory_warning(n_bytes: int | None) -> str | None:
    """What to do when loader processes will not have enough shared memory."""
    if n_bytes is None or n_bytes >= FEW_BYTES:
        return None
    return (
        f"{SHARED_MEMORY} holds {n_bytes / 2**20:.0f} MiB only: DataLoaders with worker processes "
        "die of a bus error when it is full; give a container more with --shm-size=8g (in a "
        "compose file shm_size: 8g), or load with num_workers=0"
    )


def kernel_oom_kills(counters: Path = KERNEL_COUNTERS) -> int | None:
    """How many processes the kernel has killed since its start because memory ran out.

    Those of full containers count as well; None where the kernel does not tell.
    """
    try:
        for line in counters.read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    except (OSError, ValueError):
        return None
    return None


def ran_out_of_memory(before: int | None, after: int | None) -> bool:
    """Whether the kernel killed for lack of memory between two looks at its counter."""
    return before is not None and after is not None and after > before
