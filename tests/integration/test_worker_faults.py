"""Real faults of children: each is the reason of its trial, and the worker goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpo.worker.children import Child, Children
from tests.fake_service import Document, FakeService, serving
from tests.worker_kit import await_end, working

Break = Callable[[str], tuple[str, Document]]


@pytest.fixture(scope="module")
def faulty_service() -> Iterator[FakeService]:
    with serving(FakeService()) as service:
        yield service


@pytest.fixture(scope="module")
def breaks(
    faulty_service: FakeService, children: Children, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Break]:
    """One worker for all faults: runs a trial with one, then a good one, and says how it ended."""
    service = faulty_service

    def breaks(fault: str) -> tuple[str, Document]:
        claim = service.offer("faulty:breaks", settings={"fault": fault})
        after = service.offer("faulty:breaks", settings={"fault": "clean device"})
        assert service.outcome_of(after["token"])[0] == "complete"
        return service.outcome_of(claim["token"])

    with working(service, children, tmp_path_factory.mktemp("checkpoints")):
        yield breaks


@pytest.mark.parametrize(
    ("fault", "reason", "message"),
    [
        ("SIGSEGV", "objective_error", "killed by SIGSEGV"),
        ("SIGABRT", "objective_error", "killed by SIGABRT"),
        ("SIGBUS", "objective_error", "killed by SIGBUS"),
        ("SIGKILL", "lost", "killed by SIGKILL"),
        ("SIGKILL", "lost", "its last lines:\nabout to break"),
        ("host memory", "out_of_memory", "MemoryError"),
        ("host memory in torch", "out_of_memory", "can't allocate memory"),
        ("device memory", "out_of_memory", "CUDA out of memory"),
        ("device", "device_error", "device-side assert"),
        ("abort of CUDA", "device_error", "SIGABRT"),
        ("connection", "lost", "OwnRefusal: database"),
        ("sys.exit", "objective_error", "sys.exit(None)"),
        ("os._exit", "objective_error", "exit code 0 before the objective had returned"),
        ("exec", "objective_error", "exit code 0 before the objective had returned"),
        ("complex", "invalid_result", "complex"),
        ("numpy complex", "invalid_result", "complex128"),
        ("list", "invalid_result", "list"),
        ("huge", "invalid_result", "int"),
        ("stdin", "objective_error", "EOFError"),
        ("unprintable", "objective_error", "Unprintable"),
        ("unstorable", "objective_error", "ValueError: a\ufffdb"),
        ("recursion", "objective_error", "RecursionError"),
        ("interrupt", "objective_error", "KeyboardInterrupt"),
        ("note", "objective_error", "ValueError: the fault itself"),
        ("all descriptors", "objective_error", "the child"),
    ],
)
def test_a_fault_is_the_reason_of_its_trial_and_the_next_is_clean(
    breaks: Break, fault: str, reason: str, message: str
) -> None:
    verb, failed = breaks(fault)
    assert (verb, failed["reason"]) == ("fail", reason)
    assert message in failed["message"]


@pytest.mark.parametrize("number", ["SIGBUS", "SIGKILL"])
def test_a_dead_loader_is_named_with_its_cure(breaks: Break, number: str) -> None:
    began = time.monotonic()
    verb, failed = breaks(f"loader {number}")
    assert time.monotonic() - began < 30
    assert (verb, failed["reason"]) == ("fail", "objective_error")
    for words in ("DataLoader worker", "/dev/shm", "--shm-size", "num_workers=0"):
        assert words in failed["message"]


@pytest.mark.parametrize("habit", ["numpy", "torch", "output", "fork", "moves", "long line"])
def test_what_harms_nobody_is_no_fault(breaks: Break, habit: str) -> None:
    assert breaks(habit)[0] == "complete"


def test_a_daemon_ends_with_its_trial(breaks: Break, faulty_service: FakeService) -> None:
    began = time.monotonic()
    assert breaks("daemon")[0] == "complete"
    assert time.monotonic() - began < 10
    faulty_service.wait_until(lambda: "daemon " in faulty_service.log_text)
    await_end(int(faulty_service.log_text.partition("daemon ")[2].split()[0]))


def hang(service: FakeService, children: Children, folder: Path, **claim: Any) -> Document:
    """The failure of a trial that hangs with all its processes, of which none is left."""
    pids = folder / "pids"
    settings = {"pid_file": str(pids), "reports": 2, "pause": 0.1}
    service.offer("faulty:hangs", settings=settings, **claim)
    service.offer("samples:described", params={"x": 0.5})
    with working(service, children, folder):
        failed = service.wait_for("fail")
        service.wait_for("complete")  # the slot serves the next trial
    for pid in pids.read_text().split():
        await_end(int(pid))
    return failed


def test_a_trial_that_hangs_is_ended_when_its_time_is_up(
    service: FakeService, children: Children, tmp_path: Path
) -> None:
    failed = hang(service, children, tmp_path, seconds_left=1.5)
    assert failed["reason"] == "timed_out"
    assert "1.5 s were left" in failed["message"]
    assert failed["message"].endswith("its last lines:\nhangs now")


def test_a_trial_that_is_silent_is_ended(
    service: FakeService, children: Children, tmp_path: Path
) -> None:
    failed = hang(service, children, tmp_path, no_progress_seconds=0.7, seconds_left=60)
    assert failed["reason"] == "no_progress"
    assert "no_progress_seconds allows 0.7" in failed["message"]
    assert failed["message"].endswith("its last lines:\nhangs now")
    assert len(service.all("report")) == 5  # two, then three of the next trial


def test_a_trial_whose_time_is_up_is_not_given_back(
    service: FakeService, children: Children, tmp_path: Path
) -> None:
    service.offer("faulty:obliging", seconds_left=0.2)
    with working(service, children, tmp_path):
        assert service.wait_for("fail")["reason"] == "timed_out"
    assert not service.all("release")


def test_a_process_that_cannot_be_killed_does_not_hold_its_trial(
    service: FakeService, children: Children, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when it hangs within the kernel: here nobody signals it until its trial has ended."""
    asked: list[Child] = []
    end = Child.end
    monkeypatch.setattr(Child, "end", lambda child, **_: asked.append(child))
    monkeypatch.setattr("hpo.worker.attempt.UNKILLABLE_SECONDS", 0.2)
    service.offer("faulty:obliging", seconds_left=0.3)
    with working(service, children, tmp_path):
        assert service.wait_for("fail")["reason"] == "timed_out"
        assert not asked[0].ended.is_set()
        monkeypatch.setattr(Child, "end", end)
        asked[0].end(is_asked_first=False, grace_seconds=0)
    assert service.trial_verbs == ["start", "report", "fail"]


@pytest.mark.parametrize(
    ("says_so", "seconds", "verb"), [(True, 1.2, "complete"), (False, 60, "fail")]
)
def test_compiling_does_not_count_as_silence(
    service: FakeService,
    children: Children,
    tmp_path: Path,
    says_so: bool,
    seconds: float,
    verb: str,
) -> None:
    settings = {"seconds": seconds, "says_so": says_so}
    service.offer("trainings:compiles", settings=settings, no_progress_seconds=0.6)
    with working(service, children, tmp_path):
        assert service.wait_for(verb).get("reason") == (None if says_so else "no_progress")


def test_memory_does_not_grow_from_trial_to_trial(
    service: FakeService, children: Children, tmp_path: Path
) -> None:
    for _ in range(6):
        service.offer("trainings:fills_memory")
    with working(service, children, tmp_path):
        service.wait_until(lambda: len(service.all("complete")) == 6)
    attrs = [outcome["user_attrs"] for outcome in service.all("complete")]
    assert all(found["mb_after"] >= found["mb_before"] + 180 for found in attrs)
    before = [found["mb_before"] for found in attrs]
    assert max(before) <= 1.05 * min(before)


def test_a_training_whose_steps_all_overflow_ends_as_diverged(
    service: FakeService, children: Children, tmp_path: Path
) -> None:
    service.offer("trainings:Line", settings={"n_good_steps": 4})
    with working(service, children, tmp_path):
        failed = service.wait_for("fail")
    assert failed["reason"] == "diverged"
    assert "20 steps in a row overflowed at scale 1" in failed["message"]
    assert failed["user_attrs"]["skipped_steps"] == 20
    assert failed["user_attrs"]["epochs"] == len(service.all("report")) == 5  # 23 steps


def test_reports_keep_a_trial_going(
    service: FakeService, children: Children, tmp_path: Path
) -> None:
    settings = {"reports": 10, "pause": 0.1}
    service.offer("faulty:steady", settings=settings, no_progress_seconds=0.8)
    with working(service, children, tmp_path):
        service.wait_for("complete")


def test_each_slot_has_a_device_of_its_own_and_a_fifth_trial_waits(
    service: FakeService, children: Children, tmp_path: Path
) -> None:
    gpus = [f"GPU-{letter}" for letter in "abcd"]
    settings = {"folder": str(tmp_path / "met"), "together": 4}
    (tmp_path / "met").mkdir()
    for _ in range(4):
        service.offer("faulty:meets", settings=settings)
    fifth = service.offer("faulty:meets", settings=settings)
    with working(service, children, tmp_path, devices=gpus):
        service.wait_for("complete", 5)
    complete = service.all("complete")
    assert sorted(ended["user_attrs"]["visible"] for ended in complete[:4]) == gpus
    assert {claim["device"] for claim in service.all("claims")} == set(gpus)
    words = [
        verb if verb == "complete" else document.get("claim_key")
        for verb, document in service.said
        if verb in ("claims", "complete")
    ]
    handed_over = words.index(service.key_of(fifth["token"]))
    assert "complete" in words[:handed_over]
