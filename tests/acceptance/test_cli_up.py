"""`hpo up` as its user meets it: real processes, from the announcement to the last one's end."""

from __future__ import annotations

import contextlib
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from hpo.client import Client
from tests.acceptance.conftest import await_fact, is_ready
from tests.pages import text_of

pytestmark = pytest.mark.alone

HPO = [sys.executable, "-P", "-m", "hpo.cli"]
END_SECONDS = 30


class Service(NamedTuple):
    """A running `hpo up`, its address, and the processes that it has started."""

    process: subprocess.Popen[str]
    url: str
    parts: list[psutil.Process]

    def part(self, name: str, other_than: int = 0) -> psutil.Process | None:
        """The part of this name that runs now; None when it is a certain process, or none."""
        for found in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if found.pid != other_than and found.cmdline()[4:5] == [name]:
                    return found
        return None


Start = Callable[..., Service]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts services of one slot; the test ends them, or this does."""
    started: list[subprocess.Popen[str]] = []

    def begin(*words: str) -> Service:
        process = subprocess.Popen(
            [*HPO, "up", "--data", str(tmp_path / "data"), "--slots", "1", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        assert process.stdout is not None
        seen = []
        for line in process.stdout:
            seen.append(line)
            if found := re.search(r"API {8}(http://\S+)/v1", line):
                return Service(process, found[1], psutil.Process(process.pid).children())
        pytest.fail("".join(seen))

    yield begin
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def hpo(*words: str, url: str) -> subprocess.CompletedProcess[str]:
    """Calls `hpo` for a service."""
    return subprocess.run([*HPO, *words, "--url", url], capture_output=True, text=True)


def gone(parts: list[psutil.Process]) -> bool:
    """Whether the processes, and all that they started, end in time."""
    every = [process for part in parts for process in family(part)]
    return psutil.wait_procs(every, timeout=END_SECONDS)[1] == []


def family(part: psutil.Process) -> list[psutil.Process]:
    """A process and its children; nothing when it has ended already."""
    try:
        return [part, *part.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def test_a_study_from_the_readme_runs_and_ctrl_c_ends_everything(start: Start) -> None:
    service = start()
    port = service.url.rpartition(":")[2]
    text = text_of("README.md").splitlines()
    lines = [line for line in text if line.replace("'", "").startswith("curl -sf localhost:8080/")]
    lines = [line.replace("localhost:8080", f"127.0.0.1:{port}") for line in lines]
    for line in lines[:-1]:
        subprocess.run(shlex.split(line), check=True, capture_output=True)
    watched = hpo("study", "watch", "bowl", "--timeout-seconds", "120", url=service.url)
    assert watched.returncode == 0, watched
    assert "Study bowl: completed" in watched.stdout
    assert " 30/30 " in watched.stdout
    subprocess.run(shlex.split(lines[-1]), check=True, capture_output=True)

    best = hpo("study", "best", "bowl", "--json", url=service.url)
    shown = hpo("study", "show", "bowl", "--trials", url=service.url)
    listed = hpo("study", "list", url=service.url)
    assert '"x"' in best.stdout
    assert shown.stdout.count("COMPLETE") + shown.stdout.count("PRUNED") == 30
    assert "bowl" in listed.stdout

    every = [process for part in service.parts for process in family(part)]
    service.process.send_signal(signal.SIGINT)
    assert service.process.wait(END_SECONDS) == 0
    assert not any(process.is_running() for process in every)


def test_its_worker_goes_on_when_the_first_token_is_made(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = start()
    made = hpo("token", "create", "me", "--role", "admin", url=service.url)
    assert made.returncode == 0, made.stderr
    monkeypatch.setenv("HPO_TOKEN", made.stdout.strip())
    words = ("--name", "mine", "--objective", "objectives.synthetic:quadratic")
    watched = hpo("study", "create", *words, "--n-trials", "2", "--watch", url=service.url)
    assert watched.returncode == 0, watched.stderr


def test_errors_of_the_service_are_told_line_by_line(start: Start, tmp_path: Path) -> None:
    service = start()
    document = tmp_path / "study.yaml"
    document.write_text(
        "name: bad\nobjective: objectives.synthetic:quadratic\nn_trials: 0\n"
        "space: {lr: {type: float, low: 2, high: 1}}\npruner: medain\n"
    )
    refused = hpo("study", "create", "-f", str(document), url=service.url)
    assert refused.returncode == 1
    assert refused.stdout == ""
    for field in ("n_trials", "space.lr", "pruner"):
        assert re.search(rf"^{field}\b", refused.stderr, flags=re.MULTILINE), refused.stderr
    missing = hpo("study", "watch", "nothing", url=service.url)
    assert (missing.returncode, "nothing" in missing.stderr) == (1, True)
    for answer in (refused, missing):
        assert "Traceback" not in answer.stderr


def test_no_part_outlives_a_killed_parent(start: Start) -> None:
    """The database's lock is free again: the same folder is served anew at once."""
    service = start()
    service.process.kill()
    assert gone(service.parts)
    assert start().url.startswith("http://127.0.0.1:")


def test_a_part_that_is_killed_starts_again_and_its_study_ends(start: Start) -> None:
    """Both, one after the other, while a study runs; then Ctrl-C ends the new ones, too."""
    service = start()
    words = ("--name", "kept", "--objective", "objectives.synthetic:quadratic", "--set", "steps=2")
    assert hpo("study", "create", *words, "--n-trials", "5", url=service.url).returncode == 0
    for name in ("worker", "api"):
        killed = service.part(name)
        assert killed is not None
        killed.kill()
        await_fact(partial(service.part, name, killed.pid), what=f"for another {name}")
    with Client(service.url) as client:
        await_fact(lambda: is_ready(client), what="for the API")
        client.amend_study("kept", {"n_trials": 8})
        # A trial that the old worker had would wait for the end of its lease.
        await_fact(lambda: client.study("kept")["counts"]["COMPLETE"] >= 5, what="for its trials")
    every = psutil.Process(service.process.pid).children(recursive=True)
    service.process.send_signal(signal.SIGINT)
    assert service.process.wait(END_SECONDS) == 0
    assert not any(process.is_running() for process in every)
    assert service.process.stdout is not None
    said = service.process.stdout.read()
    for name in ("api", "worker"):
        assert f"The {name} was ended by SIGKILL; it starts again in 1 s." in said


def test_a_folder_has_one_service_at_a_time(start: Start, tmp_path: Path) -> None:
    start()
    second = subprocess.run(
        [*HPO, "up", "--data", str(tmp_path / "data")], capture_output=True, text=True
    )
    assert second.returncode == 1
    assert "error: the api ended with exit code 1" in second.stderr
    assert "hpo.db" in second.stderr
    assert "Traceback" not in second.stderr


def test_a_wanted_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = subprocess.run(
            [*HPO, "up", "--data", str(tmp_path), "--port", str(port)],
            capture_output=True,
            text=True,
        )
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"error: port {port} is in use")
