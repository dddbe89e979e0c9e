"""The exit codes of the command line, in one place: scripts decide by them what to do next."""

from __future__ import annotations

import enum


class Exit(enum.IntEnum):
    """How a command ended."""

    OK = 0
    FAILED = 1
    USAGE = 2
    DENIED = 3
    INTERRUPTED = 130


MEANINGS = {
    Exit.OK: "done",
    Exit.FAILED: "refused, failed, or no answer from the service",
    Exit.USAGE: "the command line is wrong",
    Exit.DENIED: "no token, or one that may not do this",
    Exit.INTERRUPTED: "ended by Ctrl-C",
}
