"""The service as a process of its own, as its users start it."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.acceptance.conftest import Service, serve

# As by default; no worker of a benchmark is slower than that.
LEASE_SECONDS = 60.0


@contextlib.contextmanager
def service_on(url: str) -> Iterator[Service]:
    """`hpo api` on a database, ready; what it wrote goes with it unless it fails."""
    with tempfile.TemporaryDirectory(prefix="hpo-bench-") as folder:
        yield from serve(url, Path(folder), lease_seconds=LEASE_SECONDS)
