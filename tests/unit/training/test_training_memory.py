"""Out of memory ends a trial with its reason and leaves nothing behind."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

from hpo.objective import TrialFailed
from hpo.training import Training
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


def test_property_15_the_model_is_gone_when_the_failure_arrives(kit: Any) -> None:
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


class Net(torch.nn.Module):
    """Batch statistics and dropout: what a batch that is tried again must find as it was."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.dropout = torch.nn.BatchNorm1d(6), torch.nn.Dropout(0.4)
        self.last = torch.nn.Linear(6, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(self.dropout(self.norm(inputs)))


def crowded(kit: Any, *, fits: int, from_call: int = 1, where: str = "backward") -> Any:
    """An objective that finds no room for more than `fits` samples, from its nth call on."""

    class Crowded(kit.Tiny):  # type: ignore[name-defined, misc]  # a fixture's class
        n_calls = 0
        trained: list[int] = []  # noqa: RUF012  # lives as long as this test

        def model(self, params: Any) -> torch.nn.Module:
            return Net()

        def step(self, forward: Any, batch: Any) -> torch.Tensor:
            self.n_calls += 1
            loss = super().step(forward, batch)
            if len(batch[0]) > fits and self.n_calls >= from_call:
                if where == "forward":
                    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
                loss.register_hook(no_room)
            else:
                self.trained.append(len(batch[0]))
            return loss

    return Crowded()


def no_room(gradient: torch.Tensor) -> torch.Tensor:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_property_14_a_batch_that_does_not_fit_equals_one_in_parts_to_the_bit(
    kit: Any, where: str, precision: str
) -> None:
    """Buffers and random streams go back to where the batch began, dropout included."""
    settings = {"precision": precision, "allow_slow": True}
    trial, link = kit.trial(**settings)
    crowded_one = crowded(kit, fits=5, where=where)
    halved = Training(crowded_one, trial, halves_batches=True)
    halved.train()
    small = Training(crowded(kit, fits=99), kit.trial(micro_batch=4, **settings)[0])
    small.train()
    kit.assert_same(dict(halved.learner.model.state_dict()), dict(small.learner.model.state_dict()))
    assert link.user_attrs["micro_batch"] == 4  # 16, 8, 4
    assert sum(crowded_one.trained) == 4 * kit.n_train  # each sample once an epoch


@pytest.mark.parametrize("from_call", [2, 9])
def test_property_14_the_same_batch_is_tried_again_and_stays_whole(
    kit: Any, from_call: int
) -> None:
    """Every optimizer step is on the mean loss of 16 samples, before and after."""
    training = Training(
        crowded(kit, fits=8, from_call=from_call), kit.trial()[0], halves_batches=True
    )
    seen: list[float] = []
    step = training.learner.train_step

    def noted(batch: Any, n_samples: int, **options: Any) -> Any:
        loss, result = step(batch, n_samples, **options)
        seen.append(len(batch[0]))
        return loss, result

    training.learner.train_step = noted  # type: ignore[method-assign]  # a spy
    training.train()
    assert seen == [16, 16, 16, 16, 16, 10] * 4
    assert training.learner.micro_batch == 8
    assert training.watch.n_steps == 24


def test_the_gradient_after_running_out_is_that_of_the_batch(kit: Any) -> None:
    whole = Training(kit.Tiny(), kit.trial()[0])
    halved = Training(kit.Tiny(), kit.trial()[0], halves_batches=True)
    step, batch = halved.recipe.step, next(whole.train_data.batches(16, CPU))

    def tight(forward: Any, part: Any) -> torch.Tensor:
        if len(part[0]) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return step(forward, part)

    halved.recipe.step = tight  # type: ignore[method-assign]  # this instance alone
    losses = [training.learner.train_step(batch)[0] for training in (whole, halved)]
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-6, atol=1e-6)
    pairs = zip(whole.learner.model.parameters(), halved.learner.model.parameters(), strict=True)
    for left, right in pairs:
        torch.testing.assert_close(left.grad, right.grad, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("net", "sizes"), [(Net, (8, 4, 2)), (None, (8, 4, 2, 1))])
def test_property_15_the_smallest_part_that_does_not_fit_ends_the_trial_and_the_next_one_trains(
    kit: Any, net: Any, sizes: tuple[int, ...], capsys: Any
) -> None:
    """Batch statistics need two samples."""
    objective = crowded(kit, fits=0)
    if net is None:
        objective.model = lambda params: torch.nn.Linear(6, 3)

    def attempt() -> None:
        training = Training(objective, kit.trial()[0], halves_batches=True)
        failing_out_of_memory(training.train, CPU)

    with pytest.raises(TrialFailed, match=r"does not fit: \d+ MB held") as caught:
        attempt()
    assert caught.value.reason is Reason.OUT_OF_MEMORY
    assert caught.value.__context__ is None
    said = capsys.readouterr().out
    assert [size for size in (8, 4, 2, 1) if f"with {size} samples" in said] == list(sizes)
    assert said.count("BatchNorm sees") == (3 if net else 0)
    trial, link = kit.trial()
    kit.Tiny()(trial)
    assert len(link.reports) == 4


def test_nothing_of_the_failed_batch_is_kept(kit: Any) -> None:
    outputs: list[Any] = []

    class Objective(kit.Tiny):  # type: ignore[name-defined, misc]  # a fixture's class
        def step(self, forward: Any, batch: Any) -> torch.Tensor:
            loss = super().step(forward, batch)
            if len(batch[0]) > 8:
                outputs.append(weakref.ref(loss))
                raise torch.OutOfMemoryError("CUDA out of memory")
            assert [reference() for reference in outputs] == [None]  # gone before it is retried
            return loss

    training = Training(Objective(), kit.trial(epochs=1)[0], halves_batches=True)
    training.train()
    assert len(outputs) == 1


def test_the_size_that_fitted_is_kept_in_the_checkpoint(kit: Any) -> None:
    first, _ = kit.trial(epochs=2)
    Training(crowded(kit, fits=4), first, halves_batches=True).train()
    second, link = kit.trial(resume_dirs=(first.checkpoint_dir,))
    objective = crowded(kit, fits=4)
    objective.trained.clear()
    Training(objective, second, halves_batches=True).train()
    assert objective.n_calls == len(objective.trained) == 2 * 23  # none that did not fit
    assert link.user_attrs["micro_batch"] == 4


def test_a_cpu_does_not_try_smaller_parts(kit: Any) -> None:
    objective = crowded(kit, fits=8)
    with pytest.raises(TrialFailed):
        objective(kit.trial()[0])
    assert objective.n_calls == 1


def test_an_error_of_the_optimizer_is_not_tried_again(kit: Any) -> None:
    """A step that failed half way has changed some of the weights."""
    training = Training(kit.Tiny(), kit.trial()[0], halves_batches=True)
    calls = []

    def failing() -> None:
        calls.append(1)
        raise torch.OutOfMemoryError("CUDA out of memory")

    training.learner.optimizer.step = failing  # type: ignore[method-assign]  # a fault
    with pytest.raises(torch.OutOfMemoryError):
        training.train()
    assert len(calls) == 1


def test_an_evaluation_that_does_not_fit_is_tried_in_smaller_batches(kit: Any) -> None:
    class Objective(kit.Tiny):  # type: ignore[name-defined, misc]  # a fixture's class
        def evaluate(self, forward: Any, batches: Any) -> Any:
            def checked() -> Any:
                for batch in batches:
                    if len(batch[0]) > 5:
                        raise torch.OutOfMemoryError("CUDA out of memory")
                    yield batch

            return super().evaluate(forward, checked())

    settings = {"eval_batch_size": 37, "dropout": 0.3}
    trial, link = kit.trial(**settings)
    Training(Objective(), trial, halves_batches=True).train()
    plain, plain_link = kit.trial(**settings)
    kit.Tiny()(plain)
    for report, plain_report in zip(link.reports, plain_link.reports, strict=True):
        assert report.value == plain_report.value
        assert report.metrics == pytest.approx(plain_report.metrics)
    assert "micro_batch" not in link.user_attrs
