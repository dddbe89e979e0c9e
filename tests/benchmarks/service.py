"""The service as a process of its own, as its users start it."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.acceptance.conftest import Service, serve

# As by default; no worker of a benchmark is slower than that.
LEASE_SECONDS = 60.0
TOLD_CHARACTERS = 4000


@contextlib.contextmanager
def service_on(url: str) -> Iterator[Service]:
    """`hpo api` on a database, ready; the end of its log is told when something fails."""
    with tempfile.TemporaryDirectory(prefix="hpo-bench-") as folder:
        try:
            yield from serve(url, Path(folder), lease_seconds=LEASE_SECONDS)
        except Exception:
            for log in sorted(Path(folder).glob("*.log")):
                sys.stderr.write(f"{log.name}:\n{log.read_text()[-TOLD_CHARACTERS:]}\n")
            raise
