"""Programs as trials of a real worker: they are paused, go on, and end with their trial."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from hpo.worker.children import Children
from hpo.worker.options import WorkerOptions
from tests.fake_service import Document, FakeService
from tests.worker_kit import CODE, await_end, await_file, working

RUN = "objectives.command:run"


@contextmanager
def children_with(commands: Path | None) -> Iterator[Children]:
    """Children of a worker with such a file; their server imports nothing."""
    options = WorkerOptions(url="http://127.0.0.1:1", commands=commands, isolation="spawn")
    children = Children(options, n_threads=1)
    try:
        yield children
    finally:
        children.close()


@pytest.fixture(scope="module")
def lenders() -> Iterator[Children]:
    with children_with(CODE / "commands.yaml") as children:
        yield children


def offer(service: FakeService, command: str, attempt: int = 1, **members: object) -> Document:
    settings = {"command": command, **members.pop("settings", {})}  # type: ignore[dict-item]  # a dict
    token = f"token-{attempt}"
    return service.offer(RUN, settings=settings, number=0, attempt=attempt, token=token, **members)


def started(folder: Path, attempt: int = 1) -> list[int]:
    """The program of an attempt and what it has started, by their numbers."""
    pids = folder / f"1f6d/0/attempt-{attempt}/pids"
    await_file(pids)
    found: list[int] = json.loads(pids.read_text())
    return found


def test_values_reach_the_program_as_the_study_has_them(
    service: FakeService, lenders: Children, tmp_path: Path
) -> None:
    text = "--a 'b' \"c\"; $(exit 1)\nä 十"
    offer(service, "tells", params={"text": text})
    with working(service, lenders, tmp_path, allow=("objectives.*",)):
        assert service.wait_for("complete")["value"] == 1.0
    assert service.log_text == f"--text={text}\n"


def test_a_program_is_paused_and_goes_on_from_its_own_checkpoint(
    service: FakeService, lenders: Children, tmp_path: Path
) -> None:
    offer(service, "counts", settings={"steps": 1000})
    with working(service, lenders, tmp_path, allow=("objectives.*",)) as agent:
        service.wait_for("report", 3)
        agent.drain()
        service.wait_for("release")
    for pid in started(tmp_path):
        await_end(pid)
    last = service.all("report")[-1]["step"]
    offer(service, "counts", attempt=2, settings={"steps": last + 5})
    with working(service, lenders, tmp_path, allow=("objectives.*",)):
        service.wait_for("complete")
    # The signal may have come between a report and the count of it.
    (resumed,) = (said["resumed_from_step"] for said in service.all("start")[1:])
    assert resumed in (last - 1, last)
    assert service.all("report")[-1]["step"] == last + 4


@pytest.mark.parametrize("ended", ["the child", "the fork server"])
def test_a_program_ends_with_the_process_of_its_trial(
    service: FakeService, lenders: Children, tmp_path: Path, ended: str
) -> None:
    offer(service, "counts", settings={"steps": 1000})
    with working(service, lenders, tmp_path, allow=("objectives.*",)):
        program, child_of_it, daemon = started(tmp_path)
        child = psutil.Process(program).parent()
        assert child is not None
        server = child.parent()
        assert server is not None
        os.kill(child.pid if ended == "the child" else server.pid, signal.SIGKILL)
        assert service.wait_for("fail")["reason"] == "lost"
        await_end(program)
        await_end(child_of_it)
        if ended == "the child":
            await_end(daemon)
        else:  # nobody is left who could know it
            os.kill(daemon, signal.SIGKILL)


def test_a_lost_lease_ends_the_program(
    service: FakeService, lenders: Children, tmp_path: Path
) -> None:
    claim = offer(service, "counts", settings={"steps": 1000})
    with working(service, lenders, tmp_path, allow=("objectives.*",)):
        pids = started(tmp_path)
        service.lost_tokens.add(claim["token"])
        for pid in pids:
            await_end(pid)


def test_a_worker_without_a_file_says_how_to_name_one(service: FakeService, tmp_path: Path) -> None:
    offer(service, "counts")
    with (
        children_with(None) as children,
        working(service, children, tmp_path, allow=("objectives.*",)),
    ):
        failed = service.wait_for("fail")
    assert failed["reason"] == "objective_error"
    assert "hpo worker --commands" in failed["message"]
