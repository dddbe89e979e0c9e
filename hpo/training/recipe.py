"""What the user of the kit writes: the pieces of a training, as methods of the parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from hpo.conditions import drawing_order, is_active
from hpo.objective import Descriptor, Trial
from hpo.space import Categorical, FloatRange, Parameter, Space
from hpo.study import Direction
from hpo.training.batches import Batch, count_samples
from hpo.training.data import Split
from hpo.training.metrics import SampleMeans
from hpo.training.options import DEFAULTS, RULES

Params = Mapping[str, Any]
Forward = Callable[..., Any]


class Recipe(ABC):
    """The pieces of a training; `params` holds the trial's parameters and the settings.

    A parameter hides a setting of the same name, so a study may search what others fix.

    Attributes:
        space: the default search space; None when a study must give one.
        direction: whether a smaller or a larger value of `metric` is better.
        metric: the validation mean that is reported: "loss" or a name that `metrics` gives.
        settings: defaults of the settings it takes, beside those of the training loop.
    """

    space: ClassVar[Space | None] = None
    direction: ClassVar[Direction | str] = Direction.MINIMIZE
    metric: ClassVar[str] = "loss"
    settings: ClassVar[Mapping[str, Any]] = {}
    descriptor: ClassVar[Descriptor]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        settings = {**DEFAULTS, **cls.settings}
        cls.descriptor = Descriptor(
            space=cls.space,
            direction=Direction(cls.direction),
            metric=cls.metric,
            max_steps=settings["epochs"],
            settings=settings,
            setting_rules=RULES,
            summary=(cls.__doc__ or "").strip().partition("\n")[0],
        )

    @abstractmethod
    def model(self, params: Params) -> nn.Module:
        """A model with fp32 weights on the CPU; its random initialisation is seeded."""

    @abstractmethod
    def data(self, params: Params) -> Split:
        """The data, split the same way in every trial; generators are seeded alike."""

    @abstractmethod
    def loss(self, output: Any, target: Any) -> torch.Tensor:
        """The mean loss of the batch; `output` is fp32 whatever the precision."""

    @abstractmethod
    def optimizer(
        self, parameters: Iterator[nn.Parameter], params: Params
    ) -> torch.optim.Optimizer:
        """The optimizer over the parameters."""

    def metrics(self, output: Any, target: Any) -> Mapping[str, torch.Tensor]:
        """Further values by name, one for each sample of the batch."""
        return {}

    def scheduler(self, optimizer: torch.optim.Optimizer, params: Params) -> LRScheduler | None:
        """A schedule of the learning rate; it advances with each real optimizer step."""
        return None

    def step(self, forward: Forward, batch: Batch) -> torch.Tensor:
        """The mean loss of a batch; override it where batches are no (inputs, target) pairs.

        `forward` is the model under autocast, its outputs are fp32.
        """
        inputs, target = batch
        return self.loss(forward(inputs), target)

    def evaluate(self, forward: Forward, batches: Iterable[Batch]) -> Mapping[str, float]:
        """Means over the samples; override it for metrics of the whole set, such as AUROC."""
        means = SampleMeans()
        for inputs, target in batches:
            output = forward(inputs)
            means.add_mean("loss", self.loss(output, target), count_samples(target))
            means.add(self.metrics(output, target))
        return means.result()

    def params_of(self, trial: Trial) -> dict[str, Any]:
        """All the values that the methods get; parameters of `space` that are missing are asked."""
        space = self.space or {}
        for name in drawing_order(space):
            parameter = space[name]
            known = {**self.descriptor.settings, **trial.settings, **trial.params}
            if name not in trial.settings and is_active(parameter, known):
                suggest(trial, name, parameter)
        return {**self.descriptor.settings, **trial.settings, **trial.params}


def suggest(trial: Trial, name: str, parameter: Parameter) -> Any:
    """Asks for a parameter in the trial's own words."""
    if isinstance(parameter, Categorical):
        return trial.suggest_categorical(name, parameter.choices)
    if isinstance(parameter, FloatRange):
        return trial.suggest_float(
            name, parameter.low, parameter.high, log=parameter.log, step=parameter.step
        )
    return trial.suggest_int(
        name, parameter.low, parameter.high, log=parameter.log, step=parameter.step
    )
