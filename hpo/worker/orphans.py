"""Ends what trials leave behind outside their process group, such as daemons of their own.

On Linux a process that is a subreaper becomes the parent of every orphan below it. Each child is
one, so its orphans stay with it while it lives; the fork server is one, so they are handed to it
when the child ends. Elsewhere, and on kernels that do not list children, groups must do.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Collection
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
THREADS = Path("/proc/self/task")


def become_subreaper() -> None:
    """Adopts orphans from now on, where they could be found as well."""
    if is_possible():
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def is_possible() -> bool:
    """Whether this kernel lists the children of a process."""
    return (THREADS / str(os.getpid()) / "children").exists()


def own_children() -> set[int]:
    """The processes whose parent is this one."""
    found: set[int] = set()
    for listing in THREADS.glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended meanwhile
            found.update(map(int, listing.read_text().split()))
    return found


def end_orphans(known: Collection[int]) -> None:
    """Kills and reaps every child of this process that is not known, and their children."""
    seen: set[int] = set()
    while new := own_children() - seen - set(known):
        for pid in new:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        seen |= new
