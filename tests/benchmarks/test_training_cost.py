"""What the training kit costs beside a loop written by hand, and what bf16 gains on this CPU.

Both sides take turns, epoch by epoch, and the thread's own seconds are counted: neighbours on the
machine then matter less. One thread, so that these are all of the work.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from hpo.objective import Trial
from hpo.training import Split, Training, TrainingObjective
from hpo.trial import Decision, Verdict
from objectives.digits import mlp

DIGITS = {"lr": 2e-3, "optimizer": "AdamW", "dropout": 0.2, "layers": 3, "hidden": 128}


class Nowhere:
    """The link of a trial that nobody watches."""

    def start(self, resumed_from_step: int | None) -> None:
        pass

    def suggest(self, name: str, parameter: Any) -> Any:
        raise KeyError(name)

    def report(self, measurement: Any) -> Decision:
        return Decision(verdict=Verdict.CONTINUE)

    def late_decision(self) -> None:
        return None

    def set_user_attr(self, key: str, value: Any) -> None:
        pass

    def set_uncounted(self, flag: bool) -> None:
        pass


class Pictures(TrainingObjective):
    """SimpleCNN on noise of 3x32x32, three batches of 256."""

    settings: Mapping[str, Any] = {"batch_size": 256}

    def model(self, params: Any) -> nn.Module:
        return nn.Sequential(
            *(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(64 * 8 * 8, 10)),
        )

    def data(self, params: Any) -> Split:
        inputs, target = torch.randn(768, 3, 32, 32), torch.randint(10, (768,))
        return Split(train=(inputs, target), valid=(inputs[:256], target[:256]))

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        return functional.cross_entropy(output, target)

    def optimizer(self, parameters: Iterator[nn.Parameter], params: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def training_of(
    objective: TrainingObjective, folder: Path, params: Mapping[str, Any], **settings: Any
) -> Training:
    trial = Trial(
        Nowhere(),
        study="bench",
        number=0,
        params=params,
        settings={"epochs": 1000, "checkpoint_seconds": 1e9, **settings},
        checkpoint_dir=folder,
    )
    return Training(objective, trial)


def by_hand(objective: TrainingObjective, params: Mapping[str, Any]) -> Callable[[], float]:
    """An epoch as one would write it for this training alone."""
    params = {**objective.descriptor.settings, "epochs": 1000, **params}
    split, model = objective.data(params), objective.model(params)
    (inputs, target), (valid_inputs, valid_target) = split.train, split.valid
    optimizer = objective.optimizer(model.parameters(), params)
    scheduler = objective.scheduler(optimizer, params)

    def epoch() -> float:
        total = 0.0
        for index in torch.randperm(len(inputs)).split(params["batch_size"]):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(inputs[index]), target[index])
            loss.backward()
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
            total += loss.item() * len(index)
        model.eval()
        hits, valid_loss = 0.0, 0.0
        with torch.no_grad():
            for x, y in zip(
                valid_inputs.split(params["batch_size"]),
                valid_target.split(params["batch_size"]),
                strict=True,
            ):
                output = model(x)
                valid_loss += functional.cross_entropy(output, y).item() * len(x)
                hits += (output.argmax(dim=1) == y).sum().item()
        model.train()
        return total / len(inputs)

    return epoch


def seconds_of(function: Callable[[], Any]) -> float:
    begin = time.thread_time()
    function()
    return time.thread_time() - begin


def ratios(left: Callable[[], Any], right: Callable[[], Any], n_rounds: int) -> list[float]:
    """How much longer the left one takes, round by round, each of them first in every other."""
    found = []
    for number in range(n_rounds + 2):
        if number % 2:
            right_seconds, left_seconds = seconds_of(right), seconds_of(left)
        else:
            left_seconds, right_seconds = seconds_of(left), seconds_of(right)
        found.append(left_seconds / right_seconds)
    return found[2:]


def say(name: str, found: list[float]) -> None:
    low, median, high = statistics.quantiles(found, n=4)
    error = 1.25 * statistics.stdev(found) / len(found) ** 0.5  # of a median
    print(  # noqa: T201 - what a benchmark is for
        f"\n{name}: ratio {median:.3f} ± {error:.3f}, half of {len(found)} rounds within "
        f"{low:.3f} to {high:.3f}"
    )


@pytest.mark.parametrize(
    ("name", "n_rounds"), [("digits MLP, batch 64", 200), ("SimpleCNN, batch 256", 12)]
)
def test_cost_of_the_kit(name: str, n_rounds: int, tmp_path: Path) -> None:
    objective, params = (mlp, DIGITS) if "MLP" in name else (Pictures(), {})
    training = training_of(objective, tmp_path, params, precision="fp32")

    def epoch() -> None:
        training.train_epoch()
        training.evaluate()

    found = ratios(epoch, by_hand(objective, params), n_rounds)
    say(f"kit / hand-written loop, {name}", found)
    assert statistics.median(found) < 1.2  # a fault, not noise


def test_gain_of_bf16_and_channels_last(tmp_path: Path) -> None:
    trainings = {
        (precision, channels_last): training_of(
            Pictures(),
            tmp_path / f"{precision}-{channels_last}",
            {},
            precision=precision,
            channels_last=channels_last,
        )
        for precision, channels_last in (("fp32", False), ("fp32", True), ("bf16", True))
    }
    plain = trainings.pop(("fp32", False))
    for (precision, channels_last), training in trainings.items():
        found = ratios(plain.train_epoch, training.train_epoch, 6)
        layout = "channels last" if channels_last else "channels first"
        say(f"steps/s of {precision}, {layout} / fp32, channels first (SimpleCNN, 256)", found)
    flags = Path("/proc/cpuinfo")
    is_fast = flags.is_file() and ("avx512_bf16" in flags.read_text())
    assert not is_fast or statistics.median(found) >= 2  # the last one is bf16, channels last
