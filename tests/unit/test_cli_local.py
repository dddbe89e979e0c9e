"""The parts of a local service: their ports, their ends, and what is waited for."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpo.cli import local
from hpo.cli.demo import WANTED_ACCURACY, WeakResult, _judge
from hpo.cli.keeping import MAX_EARLY_ENDS, SOON_SECONDS, KeptPart, PartEnded
from hpo.cli.local import (
    LocalOptions,
    LocalService,
    PortInUse,
    choose_port,
    is_free,
    is_ready,
    is_registered,
)
from hpo.cli.processes import Interrupts
from hpo.errors import Unavailable
from hpo.processes import Part

SLEEPER = "import time; print('ready', flush=True); time.sleep(600)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPER}"
# Ends at the second SIGTERM only, as a worker does whose trials take long.
DRAINING = (
    "import pathlib, signal, sys; seen = pathlib.Path({path!r})\n"
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7) if seen.exists() else seen.touch())\n"
    f"{SLEEPER}"
)


def part(code: str) -> Part:
    """A part that runs this program and has begun to."""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.stdout.close()
    return Part(name="worker", process=process)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


class TestPorts:
    def test_0_is_any_free_one(self) -> None:
        port = choose_port(0)
        assert port > 1024
        assert is_free(port)

    def test_a_taken_port_is_not_free(self, taken: int) -> None:
        assert not is_free(taken)

    def test_the_first_free_port_is_chosen(
        self, taken: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(local, "FIRST_PORT", taken)
        monkeypatch.setattr(local, "LAST_PORT", taken + 20)
        chosen = choose_port(None)
        assert taken < chosen <= taken + 20

    def test_no_free_port_is_an_error(self, taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(local, "FIRST_PORT", taken)
        monkeypatch.setattr(local, "LAST_PORT", taken)
        with pytest.raises(PortInUse, match="choose one with --port"):
            choose_port(None)

    def test_a_wanted_port_is_taken_as_it_is(self, taken: int) -> None:
        with pytest.raises(PortInUse, match=f"port {taken} is in use"):
            choose_port(taken)


class TestEnding:
    def test_a_part_that_obeys(self) -> None:
        found = part(SLEEPER)
        found.end(patience_seconds=10, is_urgent=lambda: False)
        assert found.process.returncode == -signal.SIGTERM

    def test_when_it_gets_urgent_the_signal_comes_again(self, tmp_path: Path) -> None:
        draining = tmp_path / "draining"
        found = part(DRAINING.format(path=str(draining)))
        found.end(patience_seconds=600, is_urgent=draining.exists)
        assert found.process.returncode == 7

    def test_when_patience_is_over_it_is_killed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("hpo.processes.LAST_SECONDS", 0.2)
        found = part(STUBBORN)
        found.end(patience_seconds=0.2, is_urgent=lambda: False)
        assert found.process.returncode == -signal.SIGKILL

    def test_a_part_that_has_ended_already(self) -> None:
        found = part("print('ready')")
        found.process.wait()
        found.end(patience_seconds=10, is_urgent=lambda: False)
        assert found.process.returncode == 0


def test_interrupts_are_counted_and_nothing_is_cut() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    interrupts = Interrupts()
    try:
        interrupts.listen()
        for number in before:
            os.kill(os.getpid(), number)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert interrupts.count == 2


class TestKeeping:
    """A part that ends is started again; time is given, processes are real."""

    @pytest.fixture(autouse=True)
    def start_with_nothing(self) -> None:
        self.now, self.told = 0.0, list[str]()

    def kept(self, *codes: str) -> KeptPart:
        programs = iter(codes)
        return KeptPart(
            lambda: part(next(programs)),
            patience_seconds=10,
            clock=lambda: self.now,
            tell=self.told.append,
        )

    def ended(self, kept: KeptPart) -> KeptPart:
        kept.part.process.wait()
        kept.keep()
        return kept

    def test_one_that_was_killed_is_started_again_after_a_pause(self) -> None:
        kept = self.kept(SLEEPER, SLEEPER)
        first = kept.part
        first.process.kill()
        self.ended(kept)
        assert self.told == ["The worker was ended by SIGKILL; it starts again in 1 s."]
        kept.keep()
        assert kept.part is first
        self.now += 1
        kept.keep()
        assert not kept.part.has_ended
        kept.end()
        assert self.told[1:] == []

    def test_the_pauses_double_and_then_it_is_given_up(self) -> None:
        kept = self.kept(*["print('ready'); raise SystemExit(3)"] * MAX_EARLY_ENDS)
        for _ in range(MAX_EARLY_ENDS - 1):
            self.ended(kept)
            self.now += 10
            kept.keep()
        assert [line.partition("again in ")[2] for line in self.told] == [
            *("1 s.", "2 s.", "4 s.", "8 s.")
        ]
        with pytest.raises(PartEnded, match=r"exit code 3, .* 5 times within 60 s of its start"):
            self.ended(kept)
        kept.end()

    def test_an_end_after_a_long_life_is_the_first_one_again(self) -> None:
        kept = self.kept(*["print('ready')"] * (MAX_EARLY_ENDS + 1))
        for _ in range(MAX_EARLY_ENDS):
            self.now += SOON_SECONDS
            self.ended(kept)
            self.now += 1
            kept.keep()
        assert {line.partition("again in ")[2] for line in self.told} == {"1 s."}
        kept.end()


class TestWaiting:
    def service(self, tmp_path: Path, **options: Any) -> LocalService:
        made = LocalOptions(data=tmp_path, port=8080, **options)
        return LocalService(options=made, interrupts=Interrupts())

    def test_a_part_that_ends_is_noticed(self, tmp_path: Path) -> None:
        service = self.service(tmp_path)
        ended = part("print('ready'); raise SystemExit(3)")
        ended.process.wait()
        where = f"see {tmp_path / 'worker.log'}"
        service.parts.append(KeptPart(lambda: ended, patience_seconds=1, where=where))
        with pytest.raises(PartEnded, match=r"exit code 3, see .*worker\.log"):
            service.wait_until(lambda: False)
        service.stop()

    def test_a_signal_ends_the_waiting(self, tmp_path: Path) -> None:
        service = self.service(tmp_path)
        service.interrupts.count += 1
        with pytest.raises(KeyboardInterrupt):
            service.wait_until(lambda: False)

    def test_it_says_what_did_not_happen(self, tmp_path: Path) -> None:
        with pytest.raises(Unavailable, match="in vain for the moon"):
            self.service(tmp_path).wait_until(lambda: False, 0, "the moon")


class Answers:
    """A client whose readiness and workers are given."""

    def __init__(self, error: Exception | None = None, workers: Any = ()) -> None:
        self.error, self.listed = error, list(workers)

    def ready(self) -> None:
        if self.error:
            raise self.error

    def workers(self) -> list[dict[str, Any]]:
        return self.listed


def test_ready_waits_for_what_waiting_mends() -> None:
    ask: Any = is_ready
    assert ask(Answers())
    assert not ask(Answers(Unavailable("starting")))
    with pytest.raises(Unavailable, match="another release"):
        ask(Answers(Unavailable("another release", code="schema_mismatch")))


def test_a_worker_counts_when_it_lives() -> None:
    ask: Any = is_registered
    dead, alive = {"name": "a:1", "is_alive": False}, {"name": "a:1", "is_alive": True}
    assert not ask(Answers(workers=[dead]), "a:1")
    assert not ask(Answers(workers=[alive]), "b:1")
    assert ask(Answers(workers=[dead, alive]), "a:1")


@pytest.mark.parametrize("best", [None, {"value": "NaN"}, {"value": WANTED_ACCURACY - 0.01}])
def test_a_weak_demo_is_an_error(best: Any, tmp_path: Path) -> None:
    with pytest.raises(WeakResult, match=re.escape(str(tmp_path))):
        _judge({"best": best}, tmp_path)


def test_a_good_demo_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _judge({"best": {"value": 0.975}}, tmp_path)
    assert capsys.readouterr().out == "Validation accuracy: 0.9750\n"
