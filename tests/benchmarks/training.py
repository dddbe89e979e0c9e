"""What the training kit costs beside a loop written by hand, and what bf16 gains on this CPU.

    python -m tests.benchmarks.training

Both sides take turns, epoch by epoch, and the seconds of the process's own work are counted. One
thread, so that these are all of it.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from hpo.objective import Trial
from hpo.training import Split, Training, TrainingObjective
from hpo.trial import Decision, Verdict
from objectives.digits import mlp
from tests.benchmarks.figures import Figure, Report

PART = "training"
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
    """SimpleCNN on noise of 3x32x32, two batches of 256."""

    settings: Mapping[str, Any] = {"batch_size": 256}

    def model(self, params: Any) -> nn.Module:
        return nn.Sequential(
            *(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(64 * 8 * 8, 10)),
        )

    def data(self, params: Any) -> Split:
        inputs, target = torch.randn(512, 3, 32, 32), torch.randint(10, (512,))
        return Split(train=(inputs, target), valid=(inputs[:256], target[:256]))

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        return functional.cross_entropy(output, target)

    def optimizer(self, parameters: Iterator[nn.Parameter], params: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


class Flat(Pictures):
    """The same pictures and batches before a net that costs next to nothing."""

    def model(self, params: Any) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
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
        keeps_model=False,
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
    begin = time.process_time()
    function()
    return time.process_time() - begin


def ratios(
    left: Callable[[], Any], right: Callable[[], Any], *, n_groups: int, n_turns: int
) -> list[float]:
    """How much longer the left one takes, a figure for each group of turns."""
    groups = interleaved(left, right, n_groups=n_groups, n_turns=n_turns)
    return [left_seconds / right_seconds for left_seconds, right_seconds in groups]


def interleaved(
    *functions: Callable[[], Any], n_groups: int, n_turns: int
) -> Iterator[list[float]]:
    """Seconds of each, for each group of turns.

    Each turn is one call of all, in random order. A group is judged by the shortest call of
    each side: neighbours on the machine only ever add.
    """
    order = random.Random(1)
    for function in functions:
        function()
    for _ in range(n_groups):
        seconds: dict[Callable[[], Any], list[float]] = {function: [] for function in functions}
        for _ in range(n_turns):
            for function in order.sample(functions, k=len(functions)):
                seconds[function].append(seconds_of(function))
        yield [min(found) for found in seconds.values()]


def epoch_of(training: Training) -> Callable[[], None]:
    def epoch() -> None:
        training.train_epoch()
        training.evaluate()

    return epoch


def judged(name: str, found: Sequence[float], limit: float) -> Figure:
    """A ratio that misses its bound only when it is beyond it for certain."""
    error = 1.25 * statistics.stdev(found) / len(found) ** 0.5  # of a median
    return Figure(part=PART, name=name, values=found, unit="x", at_most=limit, slack=2 * error)


def cost_on_a_small_net(folder: Path) -> Iterator[Figure]:
    kit = epoch_of(training_of(mlp, folder, DIGITS, precision="fp32"))
    found = ratios(kit, by_hand(mlp, DIGITS), n_groups=20, n_turns=25)
    yield judged("kit / loop by hand, digits MLP, batch 64", found, 1.03)


def cost_on_simple_cnn(folder: Path) -> Iterator[Figure]:
    """What the kit adds does not depend on the net, so it is measured where nothing hides it.

    A ratio of two epochs of the CNN, of 0.5 s each, drowns in what neighbours do to either.
    """
    flat_kit = epoch_of(training_of(Flat(), folder / "flat", {}, precision="fp32"))
    groups = list(interleaved(flat_kit, by_hand(Flat(), {}), n_groups=20, n_turns=10))
    kit = epoch_of(training_of(Pictures(), folder / "cnn", {}, precision="fp32"))
    whole = list(interleaved(kit, by_hand(Pictures(), {}), n_groups=6, n_turns=3))
    name = "kit / loop by hand, SimpleCNN, batch 256"
    yield Figure(part=PART, name=name, values=[a / b for a, b in whole], unit="x")
    cnn_seconds = min(by_hand_seconds for _, by_hand_seconds in whole)
    added = [1 + (a - b) / cnn_seconds for a, b in groups]
    yield judged("1 + what the kit adds to an epoch / SimpleCNN's, batch 256", added, 1.01)


def gain_of_bf16_and_channels_last(folder: Path) -> Iterator[Figure]:
    kinds = {"plain": ("fp32", False), "last": ("fp32", True), "bf16": ("bf16", True)}
    epochs = {
        name: training_of(
            Pictures(), folder / name, {}, precision=precision, channels_last=channels_last
        ).train_epoch
        for name, (precision, channels_last) in kinds.items()
    }
    flags = Path("/proc/cpuinfo")
    text = flags.read_text() if flags.is_file() else ""
    is_fast = "amx_bf16" in text or "avx512_bf16" in text
    for name, bound in (("last", None), ("bf16", 2.0 if is_fast else None)):
        found = ratios(epochs["plain"], epochs[name], n_groups=5, n_turns=2)
        label = f"steps/s of {kinds[name][0]}, channels last / fp32 (SimpleCNN, 256)"
        yield Figure(part=PART, name=label, values=found, unit="x", at_least=bound)


def measure(report: Report) -> None:
    """Adds the cost of the kit on two nets, and the gain of bf16."""
    parts = (cost_on_a_small_net, cost_on_simple_cnn, gain_of_bf16_and_channels_last)
    with tempfile.TemporaryDirectory() as folder, one_thread():
        for part in parts:
            report.add(*part(Path(folder) / part.__name__))


if __name__ == "__main__":
    measure(Report())
