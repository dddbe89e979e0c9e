"""A worker inside the test's process, with real child processes; and waiting for what others do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from hpo.worker.agent import Agent
from hpo.worker.attempt import Node
from hpo.worker.calls import WorkerClient
from hpo.worker.children import Children
from hpo.worker.devices import Slot
from hpo.worker.options import WorkerOptions
from tests.fake_service import FakeService

CODE = Path(__file__).parent / "integration" / "objectives_for_tests"
ALLOW = ("samples", "faulty", "optuna_style", "trainings")


@contextmanager
def working(
    service: FakeService,
    children: Children,
    folder: Path,
    *,
    devices: Sequence[str] = ("cpu",),
    **given: Any,
) -> Iterator[Agent]:
    """A registered worker with a slot on each device; it drains at the end of the block."""
    options = WorkerOptions(
        **{"url": service.url, "code": CODE, "allow": ALLOW, "checkpoints": folder, **given}
    )
    slots = [Slot(index=index, device=device) for index, device in enumerate(devices)]
    with WorkerClient(service.url) as client:
        node = Node(options=options, client=client, children=children, n_threads=1)
        agent = Agent(node, client, slots, [])
        assert agent.register()
        thread = threading.Thread(target=agent.serve)
        thread.start()
        try:
            yield agent
        finally:
            agent.drain()
            thread.join(60)
            assert not thread.is_alive()


def await_fact(is_so: Callable[[], bool]) -> None:
    """Waits for what another process or thread does."""
    give_up_at = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < give_up_at
        time.sleep(0.01)


def await_file(path: Path) -> None:
    """Waits until another process has made a file."""
    await_fact(path.exists)


def await_end(pid: int) -> None:
    """Waits until a process that is not ours has ended."""
    try:
        psutil.Process(pid).wait(30)
    except psutil.NoSuchProcess:
        return
