"""What the loop does to weights, reports and random streams."""

from __future__ import annotations

import math
import os
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from hpo.errors import InvalidField
from hpo.objective import TrialFailed, TrialPruned, TrialReleased, descriptor_of, load_objective
from hpo.seeds import derive_seed
from hpo.training import Precision, StepResult, Training
from hpo.training.divergence import LOOK_STEPS, MAX_SKIPPED_IN_ROW, DivergenceWatch
from hpo.trial import Reason, Verdict

ADAMW = {"optimizer": "AdamW", "optimizer_options": {"lr": 0.01}}
RMSPROP = {"optimizer": "RMSprop", "optimizer_options": {"lr": 0.01, "momentum": 0.9}}
NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize("clip_norm", [None, 0.3])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("settings", [{}, ADAMW, RMSPROP], ids=["sgd", "adamw", "rmsprop"])
def test_property_01_fp32_equals_a_hand_written_loop_to_the_bit(
    kit: Any, settings: dict[str, Any], dropout: float, clip_norm: float | None
) -> None:
    trial, link = kit.trial(clip_norm=clip_norm, dropout=dropout, seed=3, **settings)
    training = Training(kit.Tiny(), trial)
    training.train()

    params = {**kit.Tiny.descriptor.settings, **trial.settings}
    data = kit.Tiny().data(params)
    torch.manual_seed(derive_seed(3, "init"))
    model = kit.Tiny().model(params)
    optimizer = kit.Tiny().optimizer(model.parameters(), params)
    torch.manual_seed(derive_seed(3, "dropout"))
    losses, values = [], []
    for epoch in range(4):
        generator = torch.Generator().manual_seed(derive_seed(3, "order", epoch))
        total = 0.0
        for index in torch.randperm(kit.n_train, generator=generator).split(16):
            inputs, target = data.train[0][index], data.train[1][index]
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(inputs), target)
            loss.backward()
            if clip_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
            optimizer.step()
            total += loss.item() * len(index)
        losses.append(total / kit.n_train)
        model.eval()
        with torch.no_grad():
            hits = (model(data.valid[0]).argmax(dim=1) == data.valid[1]).double()
        values.append((epoch, hits.mean().item()))
        model.train()
    assert link.values == values
    assert [report.metrics["train_loss"] for report in link.reports] == losses
    kit.assert_same(dict(training.learner.model.state_dict()), dict(model.state_dict()))


@pytest.mark.parametrize("n_skips", [0, 1, 5])
@pytest.mark.parametrize("fused", [False, True])
def test_property_07_the_schedule_counts_real_steps(kit: Any, n_skips: int, fused: bool) -> None:
    class Overflowing(kit.Tiny):  # type: ignore[name-defined, misc]  # a fixture's class
        n_calls = 0

        def step(self, forward: Any, batch: Any) -> torch.Tensor:
            self.n_calls += 1
            return super().step(forward, batch) * (INFINITY if self.n_calls <= n_skips else 1e-3)

    trial, link = kit.trial(
        precision="fp16",
        allow_slow=True,
        scheduler=("StepLR", {"step_size": 100}),
        optimizer_options={"lr": 0.01, "fused": fused},
    )
    training = Training(Overflowing(), trial)
    training.train()
    n_batches = 4 * -(-kit.n_train // 16)
    assert training.learner.scheduler.last_epoch == n_batches - n_skips
    assert link.user_attrs["skipped_steps"] == n_skips


@pytest.mark.parametrize("micro_batch", [1, 3, 5, 7, 15, 16, 100])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_property_13_micro_batches_give_the_gradient_of_the_whole_batch(
    kit: Any, micro_batch: int, precision: str
) -> None:
    """16 samples, so that most sizes leave a shorter tail."""
    gradients, losses = [], []
    for size in (None, micro_batch):
        settings = {"precision": precision, "allow_slow": True, "micro_batch": size}
        training = Training(kit.Tiny(), kit.trial(**settings)[0])
        batch = next(training.train_data.batches(16, training.device))
        loss, _ = training.learner.train_step(batch)
        losses.append(loss)
        gradients.append(
            [parameter.grad.clone() for parameter in training.learner.model.parameters()]
        )
    tolerance = {"fp32": 1e-6, "fp16": 2e-3}[precision]
    torch.testing.assert_close(losses[0], losses[1], rtol=tolerance, atol=tolerance)
    for whole, summed in zip(*gradients, strict=True):
        torch.testing.assert_close(summed, whole, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("bad", [NAN, INFINITY])
@pytest.mark.parametrize("bad_call", [1, 9])
def test_a_loss_that_is_not_finite_ends_the_trial_at_once(
    kit: Any, precision: str, bad: float, bad_call: int
) -> None:
    class Diverging(kit.Tiny):  # type: ignore[name-defined, misc]  # a fixture's class
        n_calls = 0

        def step(self, forward: Any, batch: Any) -> torch.Tensor:
            self.n_calls += 1
            return super().step(forward, batch) * (bad if self.n_calls == bad_call else 1.0)

    objective = Diverging()
    trial, link = kit.trial(precision=precision)
    with pytest.raises(TrialFailed) as caught:
        objective(trial)
    assert caught.value.reason is Reason.DIVERGED
    assert objective.n_calls == bad_call
    assert all(math.isfinite(value) for _, value in link.values)


class Poison(torch.autograd.Function):
    """A finite value with a gradient that is not."""

    @staticmethod
    def forward(context: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * NAN


@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_a_gradient_that_is_not_finite_ends_the_trial(kit: Any, clip_norm: Any) -> None:
    class Diverging(kit.Tiny):  # type: ignore[name-defined, misc]  # a fixture's class
        def step(self, forward: Any, batch: Any) -> torch.Tensor:
            return Poison.apply(super().step(forward, batch))

    with pytest.raises(TrialFailed, match="training step 1") as caught:
        Diverging()(kit.trial(clip_norm=clip_norm)[0])
    assert caught.value.reason is Reason.DIVERGED


def test_property_16_many_skipped_steps_in_a_row_end_the_trial(kit: Any) -> None:
    class Overflowing(kit.Tiny):  # type: ignore[name-defined, misc]  # a fixture's class
        n_calls = 0

        def step(self, forward: Any, batch: Any) -> torch.Tensor:
            self.n_calls += 1
            return super().step(forward, batch) * INFINITY

    objective = Overflowing()
    trial, link = kit.trial(precision="fp16", allow_slow=True, epochs=100)
    with pytest.raises(TrialFailed, match="scale 1") as caught:
        objective(trial)
    assert caught.value.reason is Reason.DIVERGED
    assert objective.n_calls == MAX_SKIPPED_IN_ROW == link.user_attrs["skipped_steps"]


@pytest.mark.parametrize("bad", [NAN, INFINITY, -INFINITY])
@pytest.mark.parametrize("name", ["accuracy", "loss"])
def test_property_16_a_metric_that_is_not_finite_is_reported_and_never_returned(
    kit: Any, bad: float, name: str
) -> None:
    class Diverging(kit.Tiny):  # type: ignore[name-defined, misc]  # a fixture's class
        metric = name

        def evaluate(self, forward: Any, batches: Any) -> dict[str, float]:
            return {"accuracy": 0.5, "loss": 0.7, name: bad}

    trial, link = kit.trial()
    with pytest.raises(TrialFailed, match=name) as caught:
        Diverging()(trial)
    assert caught.value.reason is Reason.DIVERGED
    assert [report.step for report in link.reports] == [0]
    assert repr(link.reports[0].value) == repr(bad)


def test_outputs_of_nan_do_not_hide_behind_an_accuracy(kit: Any) -> None:
    class Diverging(kit.Tiny):  # type: ignore[name-defined, misc]  # a fixture's class
        def evaluate(self, forward: Any, batches: Any) -> Any:
            return super().evaluate(lambda inputs: forward(inputs) * NAN, batches)

    trial, link = kit.trial()
    with pytest.raises(TrialFailed, match="loss is nan"):
        Diverging()(trial)
    assert math.isfinite(link.reports[0].value)


@pytest.mark.parametrize("size", [1, 5, 16, 37, 64, 1000])
def test_property_17_metrics_do_not_depend_on_the_batch_size(kit: Any, size: int) -> None:
    training = Training(kit.Tiny(), kit.trial()[0])
    training.train_epoch()
    whole = training.evaluate()
    other = Training(kit.Tiny(), kit.trial(eval_batch_size=size)[0])
    other.learner.load_state_dict(training.learner.state_dict())
    sizes: list[int] = []
    loss = other.recipe.loss
    other.recipe.loss = lambda o, t: (sizes.append(len(t)), loss(o, t))[1]
    split = other.evaluate()
    assert sizes[0] == min(size, kit.n_valid)
    inputs, target = kit.Tiny().data({}).valid
    with torch.no_grad():
        output = training.learner.model.eval()(inputs)
    by_hand = {
        "loss": functional.cross_entropy(output.double(), target).item(),
        "accuracy": (output.argmax(dim=1) == target).double().mean().item(),
    }
    assert split == pytest.approx(whole, abs=1e-6)
    assert split == pytest.approx(by_hand, abs=1e-6)


@pytest.mark.parametrize("shape", [(), (2,)])
def test_a_metric_must_have_one_value_a_sample(kit: Any, shape: tuple[int, ...]) -> None:
    class Objective(kit.Tiny):  # type: ignore[name-defined, misc]  # a fixture's class
        def metrics(self, output: Any, target: Any) -> Any:
            return {"accuracy": torch.ones(len(target), *shape) if shape else torch.ones(())}

    with pytest.raises(ValueError, match="one value a sample"):
        Objective()(kit.trial()[0])


def test_tf32_on_a_cpu_says_what_it_is(kit: Any, capsys: pytest.CaptureFixture[str]) -> None:
    trial, _ = kit.trial(precision="tf32", epochs=1)
    kit.Tiny()(trial)
    assert "tf32 is plain fp32 on a CPU" in capsys.readouterr().out


def test_a_metric_that_nobody_computes_is_named(kit: Any) -> None:
    class Objective(kit.Tiny):  # type: ignore[name-defined, misc]  # a fixture's class
        metric = "f1"

    with pytest.raises(ValueError, match=r"'f1' is none of .* loss, accuracy; .* metrics\(\)"):
        Objective()(kit.trial()[0])


@pytest.mark.parametrize("epochs", [1, 2, 5])
def test_property_18_there_is_one_report_per_epoch(kit: Any, epochs: int) -> None:
    trial, link = kit.trial(epochs=epochs)
    assert kit.Tiny()(trial) is None  # the study's value rule picks among the reports
    assert [report.step for report in link.reports] == list(range(epochs))
    assert {"loss", "train_loss"} == set(link.reports[0].metrics)
    assert not [call for call in link.calls if call[0] == "start"]


@pytest.mark.parametrize("verdict", [Verdict.PRUNE, Verdict.STOP])
@pytest.mark.parametrize("step", [0, 2, 3])
def test_property_18_nothing_is_reported_after_a_verdict_to_end(
    kit: Any, verdict: Verdict, step: int
) -> None:
    trial, link = kit.trial(verdicts={step: verdict})
    with pytest.raises(TrialPruned):
        kit.Tiny()(trial)
    assert [report.step for report in link.reports] == list(range(step + 1))
    assert link.user_attrs["epochs"] == step + 1


def test_a_pause_after_the_last_epoch_has_nothing_to_give_back(kit: Any) -> None:
    trial, link = kit.trial(verdicts={3: Verdict.PAUSE})
    kit.Tiny()(trial)
    assert len(link.reports) == 4


class Noisy(nn.Module):
    """Dropout, batch statistics and a part that stays in evaluation mode."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.norm, self.dropout = nn.BatchNorm1d(n_in), nn.Dropout(0.5)
        self.frozen = nn.BatchNorm1d(n_in).eval()
        self.last = nn.Linear(n_in, n_out)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(self.dropout(self.norm(self.frozen(inputs))))


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_property_19_evaluation_changes_nothing(kit: Any, precision: str) -> None:
    class Objective(kit.Tiny):  # type: ignore[name-defined, misc]  # a fixture's class
        def model(self, params: Any) -> nn.Module:
            return Noisy(6, 3)

        def evaluate(self, forward: Any, batches: Any) -> Any:
            random.random(), np.random.rand(), torch.rand(1)
            return super().evaluate(forward, batches)

    training = Training(Objective(), kit.trial(precision=precision, allow_slow=True)[0])
    training.train_epoch()

    def everything() -> list[Any]:
        return [
            {name: tensor.clone() for name, tensor in training.learner.model.state_dict().items()},
            [module.training for module in training.learner.model.modules()],
            [
                parameter.grad.clone()
                for parameter in training.learner.model.parameters()
                if parameter.requires_grad and parameter.grad is not None
            ],
            training.learner.precision.state_dict(),
            random.getstate(),
            list(np.random.get_state(legacy=False)["state"]["key"]),
            torch.get_rng_state(),
            torch.is_grad_enabled(),
        ]

    before = everything()
    training.evaluate()
    kit.assert_same(everything(), before)
    assert [m.training for m in (training.learner.model.norm, training.learner.model.frozen)] == [
        True,
        False,
    ]


def test_a_failed_evaluation_puts_the_modes_back_too(kit: Any) -> None:
    class Objective(kit.Tiny):  # type: ignore[name-defined, misc]  # a fixture's class
        def evaluate(self, forward: Any, batches: Any) -> Any:
            raise OSError("data gone")

    training = Training(Objective(), kit.trial()[0])
    with pytest.raises(OSError, match="data gone"):
        training.evaluate()
    assert training.learner.model.training
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_property_20_a_seed_says_all(kit: Any, precision: str) -> None:
    """Neither what ran before in the process nor the order of the trials changes a result."""

    def result(seed: int) -> Any:
        trial, link = kit.trial(seed=seed, precision=precision, dropout=0.3)
        kit.Tiny()(trial)
        return link.values, [report.metrics for report in link.reports], kit.last_state(trial)

    first = {seed: result(seed) for seed in (1, 2)}
    torch.rand(17), random.random(), np.random.rand(3)
    second = {seed: result(seed) for seed in (2, 1)}
    kit.assert_same(first[1], second[1])
    kit.assert_same(first[2], second[2])
    assert first[1][1] != first[2][1]


def test_init_order_and_dropout_are_streams_of_their_own(kit: Any) -> None:
    """A model that draws more when it is made meets its data in the same order."""

    class Greedy(kit.Tiny):  # type: ignore[name-defined, misc]  # a fixture's class
        def model(self, params: Any) -> nn.Module:
            torch.rand(1000)
            return super().model(params)

    def order_and_mask(objective: Any) -> tuple[torch.Tensor, torch.Tensor]:
        seen: list[torch.Tensor] = []
        training = Training(objective, kit.trial(seed=5)[0])
        mask = torch.rand(4)
        objective.step = lambda forward, batch: (
            seen.append(batch[0]),
            kit.Tiny.step(objective, forward, batch),
        )[1]
        training.train_epoch()
        return torch.cat(seen), mask

    (order, mask), (greedy_order, greedy_mask) = map(order_and_mask, (kit.Tiny(), Greedy()))
    assert torch.equal(order, greedy_order)
    assert torch.equal(mask, greedy_mask)


def test_data_is_split_alike_in_every_trial(kit: Any) -> None:
    class Drawing(kit.Tiny):  # type: ignore[name-defined, misc]  # a fixture's class
        drawn: list[Any] = []  # noqa: RUF012  # lives as long as this test

        def data(self, params: Any) -> Any:
            self.drawn.append((torch.rand(3).tolist(), random.random(), np.random.rand()))
            return super().data(params)

    for seed in (1, 2):
        Drawing()(kit.trial(seed=seed, epochs=1)[0])
    assert Drawing.drawn[0] == Drawing.drawn[1]


class Reading(torch.utils.data.Dataset[Any]):
    """Counts how often it is read."""

    def __init__(self, tensors: tuple[torch.Tensor, ...]) -> None:
        self.tensors, self.reads = tensors, [0] * len(tensors[0])

    def __len__(self) -> int:
        return len(self.reads)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        self.reads[index] += 1
        return tuple(tensor[index] for tensor in self.tensors)


def test_property_24_each_sample_is_read_once_an_epoch_and_the_test_part_never(kit: Any) -> None:
    split = kit.Tiny().data({})
    proxies = {
        "train": Reading(split.train),
        "valid": Reading(split.valid),
        "test": Reading(split.valid),
    }

    class Objective(kit.Tiny):  # type: ignore[name-defined, misc]  # a fixture's class
        def data(self, params: Any) -> Any:
            return type(split)(**proxies)

    Objective()(kit.trial(epochs=3)[0])
    assert {name: set(proxy.reads) for name, proxy in proxies.items()} == {
        "train": {3},
        "valid": {3},
        "test": {0},
    }


def test_a_dataset_trains_like_tensors(kit: Any) -> None:
    class Behind(kit.Tiny):  # type: ignore[name-defined, misc]  # a fixture's class
        def data(self, params: Any) -> Any:
            split = super().data(params)
            return type(split)(train=Reading(split.train), valid=Reading(split.valid))

    links = []
    for objective in (kit.Tiny(), Behind()):
        trial, link = kit.trial(dropout=0.3)
        objective(trial)
        links.append(link)
    assert links[0].values == links[1].values
    assert links[0].reports[-1].metrics == links[1].reports[-1].metrics


def test_models_that_take_dicts_and_return_their_loss(kit: Any) -> None:
    class Returning(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(6, 3)

        def forward(self, *, inputs: torch.Tensor, target: torch.Tensor) -> Any:
            logits = self.last(inputs)
            return {"loss": functional.cross_entropy(logits, target), "logits": logits}

    class AsDict(Reading):
        def __getitem__(self, index: int) -> Any:
            return dict(zip(("inputs", "target"), super().__getitem__(index), strict=True))

    class Objective(kit.Tiny):  # type: ignore[name-defined, misc]  # a fixture's class
        metric = "worst_class_accuracy"  # of the whole set, no mean over samples

        def model(self, params: Any) -> nn.Module:
            return Returning()

        def data(self, params: Any) -> Any:
            split = super().data(params)
            return type(split)(train=AsDict(split.train), valid=AsDict(split.valid))

        def step(self, forward: Any, batch: Any) -> torch.Tensor:
            return forward(**batch)["loss"]

        def evaluate(self, forward: Any, batches: Any) -> dict[str, float]:
            pairs = [(forward(**batch)["logits"].argmax(1), batch["target"]) for batch in batches]
            guess, target = (torch.cat(part) for part in zip(*pairs, strict=True))
            hits = [(guess[target == k] == k).double().mean().item() for k in range(3)]
            return {"worst_class_accuracy": min(hits)}

    trial, link = kit.trial(epochs=8, micro_batch=5)
    Objective()(trial)
    losses = [report.metrics["train_loss"] for report in link.reports]
    assert losses == sorted(losses, reverse=True)
    assert 0 < link.reports[-1].value < 1


def test_what_a_training_leaves_behind(kit: Any) -> None:
    clock, (trial, link) = kit.HandClock(), kit.trial(epochs=3)
    Training(clock.ticking(kit.Tiny()), trial, clock=clock).train()
    norms = [link.user_attrs.pop(f"grad_norm_p{quantile}") for quantile in ("05", "50", "95")]
    assert 0 < norms[0] <= norms[1] <= norms[2]
    assert link.user_attrs == {
        "epochs": 3,
        "seconds": 18.0,  # 6 batches an epoch, a second each
        "samples_per_second": kit.n_train / 6,
        "data_wait_share": 0.0,
        "best_step": link.user_attrs["best_step"],
        "best_value": max(value for _, value in link.values),
        "precision": "fp32",
        "skipped_steps": 0,
    }


def test_the_norms_of_the_gradients_are_told_as_quantiles() -> None:
    watch = DivergenceWatch(Precision("fp32", torch.device("cpu")))
    for number in range(101 * LOOK_STEPS):
        norm = torch.tensor(float(number)) if watch.looks else None
        watch.after_step(0.0, StepResult(stepped=True, grad_norm=norm, scale=1.0))
    assert watch.user_attrs() == {
        "skipped_steps": 0,
        "grad_norm_p05": 5.0 * LOOK_STEPS,
        "grad_norm_p50": 50.0 * LOOK_STEPS,
        "grad_norm_p95": 95.0 * LOOK_STEPS,
    }


def test_the_time_that_a_training_waits_for_its_data_is_told(kit: Any) -> None:
    clock, (trial, link) = kit.HandClock(), kit.trial(epochs=2)

    class Slow(torch.utils.data.Dataset[Any]):
        def __init__(self, tensors: Any) -> None:
            self.tensors = tensors

        def __len__(self) -> int:
            return len(self.tensors[0])

        def __getitems__(self, indices: list[int]) -> Any:
            clock.now += 3.0
            return [tuple(tensor[index] for tensor in self.tensors) for index in indices]

    class Objective(kit.Tiny):  # type: ignore[name-defined, misc]  # a fixture's class
        def data(self, params: Any) -> Any:
            split = super().data(params)
            return type(split)(train=Slow(split.train), valid=split.valid)

    Training(clock.ticking(Objective()), trial, clock=clock).train()
    assert link.user_attrs["data_wait_share"] == 0.75
    assert link.user_attrs["seconds"] == 48.0


def test_property_23_more_work_takes_more_seconds(kit: Any) -> None:
    def seconds(epochs: int) -> float:
        trial, link = kit.trial(epochs=epochs, batch_size=4, checkpoint_seconds=100)
        kit.Tiny()(trial)
        return link.user_attrs["seconds"]

    seconds(1)
    assert 0 < seconds(2) < seconds(20)


def test_the_class_describes_itself(kit: Any) -> None:
    for candidate in (kit.Tiny, kit.Tiny()):
        descriptor = descriptor_of(candidate)
        assert descriptor is not None
        assert descriptor.max_steps == descriptor.settings["epochs"] == 4
        assert (descriptor.metric, descriptor.direction) == ("accuracy", "maximize")
        assert descriptor.summary == "Three clusters of points and an MLP of 163 weights."
        assert {"precision", "clip_norm", "optimizer"} <= set(descriptor.settings)


def test_parameters_that_the_study_leaves_out_are_asked_for(kit: Any) -> None:
    mlp = load_objective("objectives.digits:mlp")
    trial, link = kit.trial(params={"lr": 0.01, "optimizer": "AdamW"}, epochs=1, dropout=0.2)
    mlp(trial)
    assert [name for call, name in link.calls if call == "suggest"] == ["layers", "hidden"]
    assert trial.params == {"lr": 0.01, "optimizer": "AdamW", "layers": 2, "hidden": 32}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epochs", 0),
        ("epochs", 2.5),
        ("epochs", True),
        ("epochs", None),
        ("batch_size", "many"),
        ("micro_batch", -1),
        ("clip_norm", 0),
        ("clip_norm", NAN),
        ("clip_value", -1),
        ("ema_decay", 1),
        ("loader_workers", -1),
        ("prefetch_factor", 0),
        ("resident_share", 1.5),
        ("compile", 3),
        ("checkpoint_seconds", -1),
        ("deterministic", "perhaps"),
        ("precision", "half"),
    ],
)
def test_a_wrong_option_is_refused_by_name(kit: Any, name: str, value: Any) -> None:
    with pytest.raises(InvalidField) as caught:
        kit.Tiny()(kit.trial(**{name: value})[0])
    assert caught.value.field == name


@pytest.mark.parametrize(
    ("name", "together"),
    [
        ("clip_value", {"clip_norm": 1.0, "clip_value": 1.0}),
        ("precision", {"deterministic": True, "precision": "tf32"}),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    kit: Any, name: str, together: dict[str, Any]
) -> None:
    with pytest.raises(InvalidField) as caught:
        kit.Tiny()(kit.trial(**together)[0])
    assert caught.value.field == name


def test_options_may_come_as_text_from_the_worker(kit: Any) -> None:
    options = Training(
        kit.Tiny(),
        kit.trial(epochs="3", checkpoint_seconds="0.5", clip_norm="none", allow_slow="false")[0],
    ).options
    assert (options.epochs, options.checkpoint_seconds) == (3, 0.5)
    assert (options.clip_norm, options.allow_slow) == (None, False)


def test_deterministic_mode_sets_every_flag(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")  # so that it is put back afterwards
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    kit.Tiny()(kit.trial(deterministic=True, epochs=1)[0])
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.deterministic
    assert not torch.backends.cudnn.benchmark
    assert not torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cudnn.allow_tf32


def test_a_pause_is_a_checkpoint_and_a_release(kit: Any) -> None:
    trial, link = kit.trial(verdicts={1: Verdict.PAUSE}, checkpoint_seconds=1000)
    with pytest.raises(TrialReleased):
        kit.Tiny()(trial)
    assert [path.name for path in trial.checkpoint_dir.iterdir()] == ["step-00000001.pt"]
    assert [report.step for report in link.reports] == [0, 1]
