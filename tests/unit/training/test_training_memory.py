"""Out of memory ends a trial with its reason and leaves nothing behind."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

from hpo.objective import TrialFailed
from hpo.training.memory import failing_out_of_memory
from hpo.trial import Reason

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to"),
        MemoryError(),
    ],
)
def test_out_of_memory_has_its_reason_and_figures(kit: Any, error: Exception) -> None:
    class Objective(kit.Tiny):  # type: ignore[name-defined, misc]  # a fixture's class
        def step(self, forward: Any, batch: Any) -> torch.Tensor:
            raise error

    with pytest.raises(TrialFailed, match=r"does not fit: \d+ MB held, \d+ MB at the peak") as it:
        Objective()(kit.trial()[0])
    assert it.value.reason is Reason.OUT_OF_MEMORY
    trial, link = kit.trial()
    kit.Tiny()(trial)  # the next trial of the process is none the wiser
    assert len(link.reports) == 4


def test_a_real_allocation_that_cannot_succeed_is_told_from_other_errors() -> None:
    with pytest.raises(TrialFailed) as caught:
        failing_out_of_memory(lambda: torch.empty(2**50, dtype=torch.uint8), CPU)
    assert caught.value.reason is Reason.OUT_OF_MEMORY


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), ValueError("out of memory")])
def test_other_errors_pass(error: Exception) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        failing_out_of_memory(fail, CPU)
    assert caught.value is error


def test_the_model_is_gone_when_the_failure_arrives(kit: Any) -> None:
    models: list[Any] = []

    class Objective(kit.Tiny):  # type: ignore[name-defined, misc]  # a fixture's class
        def model(self, params: Any) -> torch.nn.Module:
            model = super().model(params)
            models.append(weakref.ref(model))
            return model

        def step(self, forward: Any, batch: Any) -> torch.Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory")

    objective = Objective()
    with pytest.raises(TrialFailed) as caught:
        objective(kit.trial()[0])
    gc.collect()
    assert caught.value.__context__ is None
    assert [reference() for reference in models] == [None]
