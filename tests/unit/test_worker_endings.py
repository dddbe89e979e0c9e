"""How calls of objectives end, and what the service is told of it."""

from __future__ import annotations

import math
import signal
from dataclasses import asdict
from typing import Any

import numpy as np
import optuna
import pytest
import torch

import hpo
from hpo.trial import Reason
from hpo.worker.endings import MAX_TRACEBACK, clean, ending_of, value_ending
from hpo.worker.outcome import (
    RELEASE,
    Outcome,
    exit_outcome,
    exit_text,
    failure,
    result_outcome,
    settled_text,
    with_tail,
)


def raising(error: BaseException) -> Any:
    def call() -> None:
        raise error

    return ending_of(call)


ERROR = Reason.OBJECTIVE_ERROR


class AcceleratorError(RuntimeError):
    """As torch calls it."""


class OwnPruned(optuna.TrialPruned):
    """A class of the user's, below Optuna's."""


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even that")


@pytest.mark.parametrize(
    "value", [0.5, 1, np.float32(0.5), np.int64(1), np.array(0.5), torch.tensor(0.5)]
)
def test_numbers_of_every_kind_are_values(value: object) -> None:
    ending = value_ending(value)
    assert ending.end == "value"
    assert ending.value in (0.5, 1.0)
    assert type(ending.value) is float


def test_none_leaves_the_value_to_the_reports() -> None:
    assert asdict(value_ending(None))["value"] is None


def test_a_value_may_be_nan() -> None:
    value = value_ending(math.nan).value
    assert value is not None
    assert math.isnan(value)


@pytest.mark.parametrize(
    "value",
    [
        *(True, "0.5", b"1", np.bool_(True), torch.tensor(True), [1.0], (1.0, "x"), np.ones(2)),
        *(1 + 0j, np.complex64(1), np.array(1j), torch.tensor(1 + 0j), np.array("0.5"), 10**400),
    ],
)
def test_what_is_no_number_is_an_invalid_result(value: object) -> None:
    ending = value_ending(value)
    assert ending.reason is Reason.INVALID_RESULT
    assert type(value).__name__ in ending.message


def test_an_objective_may_return_several_values() -> None:
    ending = value_ending((torch.tensor(0.5), np.float32(2)))
    assert (ending.end, ending.values) == ("value", [0.5, 2.0])
    assert result_outcome(asdict(ending)).fields == {"values": [0.5, 2.0]}


@pytest.mark.parametrize("error", [hpo.TrialPruned(), optuna.TrialPruned(), OwnPruned()])
def test_any_trial_pruned_prunes(error: Exception) -> None:
    assert raising(error).end == "pruned"


def test_a_released_trial_is_no_failure() -> None:
    assert raising(hpo.TrialReleased()).end == "released"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (hpo.TrialFailed(Reason.DIVERGED, "nan"), Reason.DIVERGED),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), Reason.OUT_OF_MEMORY),
        (MemoryError(), Reason.OUT_OF_MEMORY),
        (RuntimeError("CUDA error: out of memory"), Reason.OUT_OF_MEMORY),
        (RuntimeError("CUDA error: device-side assert triggered"), Reason.DEVICE_ERROR),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED"), Reason.DEVICE_ERROR),
        (AcceleratorError("something of the device"), Reason.DEVICE_ERROR),
        (RuntimeError("std::bad_alloc"), Reason.OUT_OF_MEMORY),
        (OSError(12, "Cannot allocate memory"), Reason.OUT_OF_MEMORY),
        (ConnectionError("reset"), Reason.LOST),
        (BrokenPipeError(), Reason.LOST),
        (RuntimeError("DataLoader worker (pid 1) is killed by signal: Bus error."), ERROR),
        (TimeoutError(), Reason.OBJECTIVE_ERROR),
        (ValueError("mine"), Reason.OBJECTIVE_ERROR),
        (KeyboardInterrupt(), Reason.OBJECTIVE_ERROR),
        (SystemExit(3), Reason.OBJECTIVE_ERROR),
        (Unprintable(), Reason.OBJECTIVE_ERROR),
    ],
)
def test_every_exception_has_its_reason(error: BaseException, reason: Reason) -> None:
    ending = raising(error)
    assert ending.end == "failed"
    assert ending.reason is reason
    assert type(error).__name__ in ending.traceback


def test_a_failure_with_an_unknown_reason_is_the_objectives_own() -> None:
    error = hpo.TrialFailed(Reason.DIVERGED, "nan")
    error.reason = "bad luck"  # type: ignore[assignment]  # user code is not typed
    assert raising(error).reason is Reason.OBJECTIVE_ERROR


def test_sys_exit_is_named() -> None:
    assert raising(SystemExit("enough")).message == "the objective called sys.exit('enough')"


def test_a_deep_traceback_keeps_its_end() -> None:
    def fall(depth: int) -> None:
        if depth == 0:
            raise ValueError("x" * 30_000)
        fall(depth - 1)

    ending = ending_of(lambda: fall(50))
    assert len(ending.traceback) == MAX_TRACEBACK
    assert ending.message.startswith("ValueError: xxx")


def test_text_is_made_fit_for_databases() -> None:
    assert clean("a\0b\udc80") == "a\ufffdb?"


@pytest.mark.parametrize(
    ("result", "verb", "fields"),
    [
        ({"end": "value", "value": 0.5}, "complete", {"value": 0.5}),
        ({"end": "value", "value": None}, "complete", {"value": None}),
        ({"end": "pruned"}, "prune", {}),
        ({"end": "released"}, "release", {}),
        (
            {
                "end": "failed",
                "reason": "diverged",
                "message": "m",
                "traceback": "t",
                "value": None,
            },
            "fail",
            {"reason": "diverged", "message": "m", "traceback": "t"},
        ),
    ],
)
def test_a_result_becomes_a_verb(result: Any, verb: str, fields: Any) -> None:
    outcome = result_outcome(result)
    assert (outcome.verb, dict(outcome.fields)) == (verb, fields)


def test_exits_are_told_in_words() -> None:
    assert exit_text(3) == "ended with exit code 3"
    assert "SIGSEGV" in exit_text(-signal.SIGSEGV)
    assert exit_text(-signal.SIGKILL) == "was killed by SIGKILL"
    assert exit_text(-35) == "was killed by signal 35"


def test_an_exit_without_result_is_the_objectives_fault_unless_the_server_died() -> None:
    assert exit_outcome(0, "").fields["reason"] is Reason.OBJECTIVE_ERROR
    assert exit_outcome(1, "a\nb").fields["message"].endswith("its last lines:\na\nb")
    assert exit_outcome(None, "").fields["reason"] is Reason.LOST


def test_a_kill_is_blamed_on_memory_only_when_the_kernel_says_so() -> None:
    killed = exit_outcome(-signal.SIGKILL, "")
    assert killed.fields["reason"] is Reason.LOST
    assert "memory" not in killed.fields["message"]
    killed = exit_outcome(-signal.SIGKILL, "", is_host_full=True)
    assert killed.fields["reason"] is Reason.OUT_OF_MEMORY
    assert "most likely the host is full" in killed.fields["message"]
    crashed = exit_outcome(-signal.SIGSEGV, "", is_host_full=True)
    assert crashed.fields["reason"] is Reason.OBJECTIVE_ERROR


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("what(): CUDA error: device-side assert triggered", Reason.DEVICE_ERROR),
        ("terminate called after throwing an instance of 'std::bad_alloc'", Reason.OUT_OF_MEMORY),
        ("", Reason.OBJECTIVE_ERROR),
    ],
)
def test_an_abort_tells_why_in_its_last_words(words: str, reason: Reason) -> None:
    assert exit_outcome(-signal.SIGABRT, words).fields["reason"] is reason


def test_only_failures_tell_last_lines() -> None:
    assert with_tail(RELEASE, "a\nb") is RELEASE
    failed = failure(Reason.TIMED_OUT, "10 s")
    assert with_tail(failed, "") is failed
    assert with_tail(failed, "a\nb").fields["message"] == "10 s; its last lines:\na\nb"


def test_what_became_of_an_attempt_reads_as_one_line() -> None:
    complete = result_outcome({"end": "value", "value": 0.5})
    pruned = result_outcome({"end": "pruned"})
    failed = exit_outcome(3, "a\nb")
    awaiting = {"state": "RUNNING", "awaiting_attempt": True}
    assert settled_text(complete, {"state": "COMPLETE"}, 4) == "complete, value 0.5"
    assert settled_text(pruned, {"state": "PRUNED"}, 4) == "pruned at step 4"
    assert settled_text(RELEASE, awaiting, 4) == "released at step 4; another attempt will follow"
    assert settled_text(failed, {"state": "FAIL"}, None).startswith("fail: objective_error: the ")
    assert "\n" not in settled_text(failed, {"state": "FAIL"}, None)
    long = Outcome(verb="fail", fields={"reason": "objective_error", "message": "x" * 100_000})
    assert len(settled_text(long, {"state": "FAIL"}, None)) < 350
