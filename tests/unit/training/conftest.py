"""A trial without a service, and a training so small that hundreds of them take seconds."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.nn import functional

from hpo.objective import Trial, TrialReleased
from hpo.study import Direction
from hpo.training import Split, TrainingObjective
from hpo.training.checkpoint import read_checkpoint
from hpo.trial import Decision, Measurement, Verdict

N_TRAIN, N_VALID, N_FEATURES, N_CLASSES = 90, 37, 6, 3


class RecordingLink:
    """Notes in `calls` what a trial says and answers each step with the verdict asked for."""

    def __init__(self, verdicts: Mapping[int, Verdict] | None = None) -> None:
        self.verdicts = dict(verdicts or {})
        self.calls: list[tuple[str, Any]] = []
        self.reports: list[Measurement] = []
        self.user_attrs: dict[str, Any] = {}
        self.late: Verdict | None = None

    @property
    def values(self) -> list[tuple[int, float]]:
        return [(report.step, report.value) for report in self.reports]

    def start(self, resumed_from_step: int | None) -> None:
        self.calls.append(("start", resumed_from_step))

    def suggest(self, name: str, parameter: Any) -> Any:
        self.calls.append(("suggest", name))
        return parameter.choices[0] if hasattr(parameter, "choices") else parameter.low

    def report(self, measurement: Measurement) -> Decision:
        self.calls.append(("report", measurement.step))
        self.reports.append(measurement)
        return Decision(verdict=self.verdicts.get(measurement.step, Verdict.CONTINUE))

    def late_decision(self) -> Decision | None:
        return None if self.late is None else Decision(verdict=self.late)

    def set_user_attr(self, key: str, value: Any) -> None:
        self.user_attrs[key] = value

    def set_uncounted(self, flag: bool) -> None:
        self.calls.append(("uncounted", flag))


class Tiny(TrainingObjective):
    """Three clusters of points and an MLP of 163 weights."""

    direction = Direction.MAXIMIZE
    metric = "accuracy"
    settings: ClassVar[Mapping[str, Any]] = {
        "epochs": 4,
        "batch_size": 16,
        "checkpoint_seconds": 0,
        "optimizer": "SGD",
        "optimizer_options": {"lr": 0.1},
        "scheduler": None,
        "dropout": 0.0,
    }

    def model(self, params: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(
            nn.Linear(N_FEATURES, 16),
            nn.ReLU(),
            nn.Dropout(params["dropout"]),
            nn.Linear(16, N_CLASSES),
        )

    def data(self, params: Mapping[str, Any]) -> Split:
        inputs, target = clusters(N_TRAIN + N_VALID)
        return Split(
            train=(inputs[:N_TRAIN], target[:N_TRAIN]), valid=(inputs[N_TRAIN:], target[N_TRAIN:])
        )

    def loss(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(output, target)

    def metrics(self, output: torch.Tensor, target: torch.Tensor) -> Mapping[str, torch.Tensor]:
        return {"accuracy": output.argmax(dim=1) == target}

    def optimizer(
        self, parameters: Iterator[nn.Parameter], params: Mapping[str, Any]
    ) -> torch.optim.Optimizer:
        kind = getattr(torch.optim, params["optimizer"])
        return kind(parameters, **params["optimizer_options"])

    def scheduler(self, optimizer: torch.optim.Optimizer, params: Mapping[str, Any]) -> Any:
        if params["scheduler"] is None:
            return None
        name, options = params["scheduler"]
        return getattr(torch.optim.lr_scheduler, name)(optimizer, **options)


class HandClock:
    """A clock that stands until it is moved; a training on it takes one second a batch."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def ticking(self, objective: TrainingObjective) -> TrainingObjective:
        """The objective, which moves the clock by a second in each of its batches."""
        step = objective.step

        def slow(forward: Any, batch: Any) -> torch.Tensor:
            self.now += 1.0
            return step(forward, batch)

        objective.step = slow  # type: ignore[method-assign]  # this instance alone
        return objective


class Kit:
    """Makes trials and reads what they left behind."""

    Tiny, HandClock = Tiny, HandClock
    n_train, n_valid = N_TRAIN, N_VALID

    def __init__(self, folder: Path) -> None:
        self._folders = (folder / f"attempt-{number}" for number in itertools.count())

    def trial(
        self,
        *,
        verdicts: Mapping[int, Verdict] | None = None,
        resume_dirs: tuple[Path, ...] = (),
        params: Mapping[str, Any] | None = None,
        seed: int = 7,
        direction: Direction = Direction.MAXIMIZE,
        **settings: Any,
    ) -> tuple[Trial, RecordingLink]:
        link = RecordingLink(verdicts)
        trial = Trial(
            link,
            study="tiny",
            number=0,
            params=params,
            settings=settings,
            seed=seed,
            direction=direction,
            checkpoint_dir=next(self._folders),
            resume_dirs=resume_dirs,
        )
        return trial, link

    def train_in_two(
        self, objective: TrainingObjective, pause_after: int, **settings: Any
    ) -> tuple[Trial, RecordingLink, RecordingLink]:
        """An attempt that is paused after a step, and the attempt that goes on."""
        first, first_link = self.trial(verdicts={pause_after: Verdict.PAUSE}, **settings)
        with pytest.raises(TrialReleased):
            objective(first)
        second, second_link = self.trial(resume_dirs=(first.checkpoint_dir,), **settings)
        objective(second)
        return second, first_link, second_link

    def train_in_two_within(
        self, objective: TrainingObjective, n_batches: int, **settings: Any
    ) -> tuple[Trial, Trial, RecordingLink]:
        """An attempt that is asked to pause in its nth batch, and the attempt that goes on."""
        first, link = self.trial(**settings)
        numbers = itertools.count(1)
        step = objective.step

        def asked_to_pause(forward: Any, batch: Any) -> torch.Tensor:
            if next(numbers) == n_batches:
                link.late = Verdict.PAUSE
            return step(forward, batch)

        objective.step = asked_to_pause  # type: ignore[method-assign]  # for one attempt
        with pytest.raises(TrialReleased):
            objective(first)
        del objective.step
        second, second_link = self.trial(resume_dirs=(first.checkpoint_dir,), **settings)
        objective(second)
        return first, second, second_link

    @staticmethod
    def last_state(trial: Trial) -> dict[str, Any]:
        """The newest checkpoint's state, without the figures that the clock writes."""
        newest = max(trial.checkpoint_dir.glob("*.pt"), key=lambda path: path.stem)
        state = read_checkpoint(newest)["state"]
        for name in ("seconds", "train_seconds", "wait_seconds"):
            del state["progress"][name]
        return state

    @staticmethod
    def assert_same(left: Any, right: Any, where: str = "state") -> None:
        """Equal to the last bit, nested to any depth."""
        assert type(left) is type(right), where
        if isinstance(left, torch.Tensor):
            assert left.dtype == right.dtype, where
            assert torch.equal(left, right), where
        elif isinstance(left, dict):
            assert left.keys() == right.keys(), where
            for key in left:
                Kit.assert_same(left[key], right[key], f"{where}.{key}")
        elif isinstance(left, list | tuple):
            assert len(left) == len(right), where
            for index, pair in enumerate(zip(left, right, strict=True)):
                Kit.assert_same(*pair, f"{where}[{index}]")
        else:
            assert left == right, where


def clusters(n_samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points around three centres and the number of their centre."""
    generator = torch.Generator().manual_seed(1)
    target = torch.randint(N_CLASSES, (n_samples,), generator=generator)
    centres = torch.randn(N_CLASSES, N_FEATURES, generator=generator)
    return centres[target] + torch.randn(n_samples, N_FEATURES, generator=generator), target


@pytest.fixture(autouse=True, scope="session")
def _frozen_imports() -> Iterator[None]:
    """Out of memory collects garbage: what torch has imported need not be looked at each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return Kit(tmp_path)


@pytest.fixture(autouse=True)
def _torch_settings() -> Iterator[None]:
    """Puts back what a training sets for its whole process."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic
    yield
    matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic = before
    torch.use_deterministic_algorithms(False)
