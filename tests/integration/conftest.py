"""What tests of the worker share: a scripted service, and one fork server for all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hpo.worker.children import Children
from hpo.worker.options import WorkerOptions
from tests.fake_service import FakeService, serving
from tests.worker_kit import CODE


@pytest.fixture
def service() -> Iterator[FakeService]:
    with serving(FakeService()) as service:
        yield service


@pytest.fixture(scope="session")
def children() -> Iterator[Children]:
    """One fork server: it takes its time to import torch."""
    options = WorkerOptions(url="http://127.0.0.1:1", code=CODE)
    children = Children(options, n_threads=1)
    yield children
    children.close()
