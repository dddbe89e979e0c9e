"""The worker as the process it is: signals, its own death, what it has imported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import psutil
import pytest

from tests.fake_service import FakeService, problem
from tests.worker_kit import CODE

HEAVY = ("torch", "optuna", "sqlalchemy", "fastapi", "pydantic", "numpy")

# Prints what the process has imported once it has served.
PROGRAM = """
import sys
from pathlib import Path
from hpo.worker.agent import run_worker
from hpo.worker.options import WorkerOptions

url, code, checkpoints, python, grace = sys.argv[1:]
options = WorkerOptions(
    url=url, devices="cpu", slots=1, code=Path(code), checkpoints=Path(checkpoints),
    python=python or None, isolation="spawn",
    allow=("samples", "broken", "objectives.synthetic"), grace_seconds=float(grace),
)
exit_code = run_worker(options)
print(*sorted({name.partition(".")[0] for name in sys.modules}))
sys.exit(exit_code)
"""


SLEEP = "import time; time.sleep(600)"


@contextmanager
def worker(
    url: str,
    folder: Path,
    *,
    python: str = "",
    grace_seconds: float = 20.0,
    errors: IO[str] | None = None,
) -> Iterator[subprocess.Popen[str]]:
    """A worker process in a session of its own; killed at the end when it is still there."""
    arguments = [url, str(CODE), str(folder), python, str(grace_seconds)]
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        env={**os.environ},
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_sigterm_drains_and_ends_with_exit_code_0(service: FakeService, tmp_path: Path) -> None:
    service.offer("samples:gentle")
    with worker(service.url, tmp_path) as process:
        service.wait_for("report")
        process.send_signal(signal.SIGTERM)
        service.wait_for("release")
        assert process.wait(30) == 0


def test_the_supervisor_imports_nothing_heavy(service: FakeService, tmp_path: Path) -> None:
    service.offer("samples:described", params={"x": 0.5})
    with worker(service.url, tmp_path) as process:
        service.wait_for("complete")
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=30)
    assert "hpo" in output.split()
    assert not set(HEAVY) & set(output.split())


def test_it_registers_what_it_can_serve_and_tells_what_it_cannot(
    service: FakeService, tmp_path: Path
) -> None:
    errors = tmp_path / "errors"
    with errors.open("w") as file, worker(service.url, tmp_path, errors=file) as process:
        registered = service.wait_for("register")
        service.wait_for("claims")
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    offers = {offer["objective"]: offer for offer in registered["objectives"]}
    assert {"samples:described", "samples:configured"} <= offers.keys()
    assert any(name.startswith("objectives.synthetic:") for name in offers)
    described = offers["samples:described"]
    assert described["direction"] == "maximize"
    assert described["space"]["x"]["high"] == 1.0
    assert described["summary"] == "Reports and returns x."
    assert registered["protocol"] == 1
    assert registered["devices"] == ["cpu"]
    log = errors.read_text()
    assert "objectives in broken are not offered: ModuleNotFoundError" in log
    assert f"slot 0 on cpu: serving samples, broken, objectives.synthetic for {service.url}" in log


def test_a_second_signal_ends_it_at_once(service: FakeService, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    service.offer("samples:stubborn", settings={"pid_file": str(pid_file)})
    errors = tmp_path / "errors"
    with errors.open("w") as file, worker(service.url, tmp_path, errors=file) as process:
        service.wait_for("report")
        process.send_signal(signal.SIGTERM)
        await_text(errors, "stopping")
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 128 + signal.SIGTERM
    assert not psutil.pid_exists(int(pid_file.read_text()))
    assert not service.all("release")


def test_ctrl_c_in_a_terminal_drains(service: FakeService, tmp_path: Path) -> None:
    service.offer("samples:gentle")
    with worker(service.url, tmp_path) as process:
        service.wait_for("report")
        os.killpg(process.pid, signal.SIGINT)  # a terminal signals the whole foreground group
        service.wait_for("release")
        assert process.wait(30) == 0
    assert (tmp_path / "1f6d/0/attempt-1/checkpoint").read_text() == "all of it"


def test_a_signal_to_every_process_drains(service: FakeService, tmp_path: Path) -> None:
    service.offer("samples:gentle")
    with worker(service.url, tmp_path) as process:
        service.wait_for("report")
        supervisor = psutil.Process(process.pid)
        for one in (*supervisor.children(recursive=True), supervisor):  # as Slurm and systemd do
            one.send_signal(signal.SIGTERM)
        service.wait_for("release")
        assert process.wait(30) == 0
    assert (tmp_path / "1f6d/0/attempt-1/checkpoint").read_text() == "all of it"


def test_the_grace_period_holds_the_end_of_a_child_that_does_not_stop(
    service: FakeService, tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    service.offer("samples:stubborn", settings={"pid_file": str(pid_file)})
    with worker(service.url, tmp_path, grace_seconds=6.0) as process:
        service.wait_for("report")
        process.send_signal(signal.SIGTERM)
        assert process.wait(6.0) == 0
    assert not psutil.pid_exists(int(pid_file.read_text()))
    assert len(service.all("release")) == 1


def test_the_worker_ends_while_the_api_is_away(service: FakeService, tmp_path: Path) -> None:
    service.offer("samples:gentle")
    with worker(service.url, tmp_path, grace_seconds=2.0) as process:
        service.wait_for("report")
        service.is_away = True
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    assert not service.all("release")


def test_children_do_not_outlive_a_killed_supervisor(service: FakeService, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    service.offer("samples:stubborn", settings={"pid_file": str(pid_file)})
    with worker(service.url, tmp_path) as process:
        service.wait_for("report")
        child = psutil.Process(int(pid_file.read_text()))
        server = child.parent()
        process.kill()
        assert not psutil.wait_procs([child, server], timeout=10)[1]


def test_it_waits_for_an_api_that_is_not_there_yet(service: FakeService, tmp_path: Path) -> None:
    service.is_away = True
    errors = tmp_path / "errors"
    with errors.open("w") as file, worker(service.url, tmp_path, errors=file) as process:
        await_text(errors, "waiting for the API")
        service.is_away = False
        service.wait_for("register")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_promptly_while_the_api_is_away(
    service: FakeService, tmp_path: Path, number: signal.Signals
) -> None:
    service.is_away = True
    errors = tmp_path / "errors"
    with errors.open("w") as file, worker(service.url, tmp_path, errors=file) as process:
        await_text(errors, "waiting for the API")
        process.send_signal(number)
        assert process.wait(3) == 0
    assert "Traceback" not in errors.read_text()


def test_a_signal_ends_it_promptly_while_its_imports_last(
    service: FakeService, tmp_path: Path
) -> None:
    errors = tmp_path / "errors"
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho it imports >&2\nexec {sys.executable} -c '{SLEEP}'\n")
    python.chmod(0o755)
    with (
        errors.open("w") as file,
        worker(service.url, tmp_path, python=str(python), errors=file) as process,
    ):
        await_text(errors, "it imports")
        process.send_signal(signal.SIGTERM)
        assert process.wait(3) == 0
    assert not service.said


def test_another_protocol_ends_it_with_the_cure(service: FakeService, tmp_path: Path) -> None:
    service.refuse = lambda verb, _: problem(409, "version_mismatch")
    errors = tmp_path / "errors"
    with errors.open("w") as file, worker(service.url, tmp_path, errors=file) as process:
        assert process.wait(30) == 1
    assert "version mismatch" in errors.read_text()


def test_a_python_without_hpo_is_named(service: FakeService, tmp_path: Path) -> None:
    errors = tmp_path / "errors"
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    with (
        errors.open("w") as file,
        worker(service.url, tmp_path, python=str(python), errors=file) as process,
    ):
        assert process.wait(30) == 1
    assert f"install it there: {python} -m pip install hpo-service" in errors.read_text()


def await_text(path: Path, text: str) -> None:
    """Waits until another process has written a text."""
    process = subprocess.run(
        ["/bin/sh", "-c", 'timeout 30 tail -n +1 -f "$1" | grep -q -m 1 -e "$2"', "sh", path, text],
        check=False,
    )
    assert process.returncode == 0, path.read_text()
