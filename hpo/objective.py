"""What user code sees: the `Trial` it is called with, and what an objective says of itself."""

from __future__ import annotations

import importlib
import math
import numbers
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol, TypeVar

from hpo.conditions import condition_faults
from hpo.files import written_aside
from hpo.numbers import strict
from hpo.setting_rules import SettingRule, rules_to_json
from hpo.space import (
    Categorical,
    Choice,
    FloatRange,
    IntRange,
    Parameter,
    Space,
    space_to_json,
)
from hpo.study import Direction, ValueRule, check_objective_path
from hpo.trial import Decision, Measurement, Reason, Verdict


class TrialPruned(Exception):
    """Raised by an objective to end its trial as PRUNED; Optuna's own class does as well."""


class TrialReleased(Exception):
    """Raised by an objective that gave its trial back after a checkpoint; not a failure."""


class TrialFailed(Exception):
    """Raised by an objective that knows why it failed.

    `reason` decides what becomes of the trial: `diverged` and `out_of_memory` are pruned by
    default, `device_error` is tried again.
    """

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, kw_only=True, slots=True)
class Descriptor:
    """What an objective says of itself; a study that leaves these out copies them."""

    space: Space | None = None
    direction: Direction | None = None
    metric: str | None = None
    max_steps: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    setting_rules: Mapping[str, SettingRule] = field(default_factory=dict)
    summary: str = ""

    def __post_init__(self) -> None:
        if self.direction is not None:  # users write the word
            object.__setattr__(self, "direction", Direction(self.direction))
        for place, sentence in condition_faults(self.space or {}):
            raise ValueError(f"space.{'.'.join(place)} {sentence}")


class Link(Protocol):
    """How a `Trial` reaches the service: over the worker's wire, or nowhere in a dry run."""

    def start(self, resumed_from_step: int | None) -> None:
        """Says from which step this attempt goes on; None for the beginning."""

    def suggest(self, name: str, parameter: Parameter) -> Choice:
        """The value of a parameter that the study does not declare."""

    def report(self, measurement: Measurement) -> Decision | None:
        """Delivers a measurement; None when the verdict is not known yet."""

    def late_decision(self) -> Decision | None:
        """The newest verdict or command that arrived after its report had gone on."""

    def set_user_attr(self, key: str, value: Any) -> None:
        """Stores a JSON value with the trial; it travels with the next report or the outcome."""

    def set_constraint(self, key: str, value: float) -> None:
        """Stores a constraint, which is violated above 0; it travels as attributes do."""

    def set_uncounted(self, flag: bool) -> None:
        """Says from when to when silence is no lack of progress."""


class Trial:
    """One trial as its objective sees it.

    Attributes:
        number: counts from 0 in the study.
        attempt: counts from 1; a retry or a resume is a new attempt of the same trial.
        params: values sampled so far, by name.
        settings: fixed values of the study, node-local ones put in by the worker.
        seed: the same for every attempt of this trial.
        device: "cpu" or "cuda"; the worker has already made the right device the visible one.
        value_rule: which report is the trial's value when the objective returns none.
        keeps_model: whether the study keeps the models of its best trials.
        checkpoint_dir: where this attempt may write.
        resume_dirs: folders of earlier attempts, newest first; read only.
        answered_step: the last step whose report has arrived for certain, and with it all before;
            -1 when none has.
    """

    def __init__(
        self,
        link: Link,
        *,
        study: str,
        number: int,
        attempt: int = 1,
        params: Mapping[str, Choice] | None = None,
        settings: Mapping[str, Any] | None = None,
        seed: int = 0,
        device: str = "cpu",
        direction: Direction = Direction.MINIMIZE,
        value_rule: ValueRule = ValueRule.LAST,
        keeps_model: bool = True,
        checkpoint_dir: Path,
        resume_dirs: tuple[Path, ...] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._link = link
        self._clock, self._started_at = clock, clock()
        self._decision = Decision(verdict=Verdict.CONTINUE)
        self._is_told_to_end = self._is_interrupted = False
        self._has_started = False
        self.study, self.number, self.attempt = study, number, attempt
        self.params: dict[str, Any] = dict(params or {})
        self.settings = dict(settings or {})
        self.seed, self.device, self.direction = seed, device, direction
        self.value_rule, self.keeps_model = value_rule, keeps_model
        self.checkpoint_dir, self.resume_dirs = checkpoint_dir, resume_dirs
        self.user_attrs: dict[str, Any] = {}
        self.answered_step = -1

    def suggest_float(
        self,
        name: str,
        low: float,
        high: float,
        *,
        step: float | None = None,
        log: bool = False,
    ) -> float:
        """A float from `low` to `high`, both included, as in Optuna."""
        return float(self._suggest(name, FloatRange(low=low, high=high, log=log, step=step)))

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int:
        """An int from `low` to `high`, both included, as in Optuna."""
        return int(self._suggest(name, IntRange(low=low, high=high, log=log, step=step)))

    def suggest_categorical(self, name: str, choices: Any) -> Any:
        """One of `choices`, as in Optuna."""
        return self._suggest(name, Categorical(choices=tuple(choices)))

    def _suggest(self, name: str, parameter: Parameter) -> Any:
        if name not in self.params:
            self.params[name] = self._link.suggest(name, parameter)
        return self.params[name]

    def start(self, resumed_from_step: int | None) -> None:
        """Says, before the first report, that this attempt goes on after `resumed_from_step`.

        Measurements of earlier attempts beyond that step are set aside; None, which is also meant
        when this is never called, sets all of them aside.
        """
        if self._has_started:
            raise RuntimeError("start is called once, before the first report")
        self._has_started = True
        self._link.start(resumed_from_step)

    def report(self, value: float, step: int, **metrics: float) -> None:
        """Stores the objective's value after `step` (counted from 0) and asks for a verdict.

        Waits a moment for the answer and goes on without it when the service is away; the
        verdict is then obeyed as soon as it arrives.
        """
        measurement = Measurement(
            step=int(step),
            value=_number("value", value),
            elapsed_seconds=self._clock() - self._started_at,
            metrics={name: _number(name, metric) for name, metric in metrics.items()},
        )
        self._has_started = True
        decision = self._link.report(measurement)
        if decision is not None:  # reports arrive in order
            self.answered_step = measurement.step
        self._decide(decision)

    def should_prune(self) -> bool:
        """Whether the newest verdict ends this trial; raise `TrialPruned` then."""
        self._decide(self._link.late_decision())
        return self._is_told_to_end

    @property
    def should_stop(self) -> bool:
        """Whether to write a checkpoint and raise `TrialReleased` at the next step boundary."""
        self._decide(self._link.late_decision())
        return self._decision.verdict is Verdict.PAUSE

    @property
    def is_interrupted(self) -> bool:
        """Whether `should_prune` or `should_stop` is true: one cheap look after each small step."""
        late = self._link.late_decision()
        if late is not None:
            self._decide(late)
        return self._is_interrupted

    @property
    def decision(self) -> Decision:
        """The newest verdict with the numbers behind it."""
        return self._decision

    def set_user_attr(self, key: str, value: Any) -> None:
        """Stores a JSON value with the trial, as in Optuna."""
        self.user_attrs[key] = value
        self._link.set_user_attr(key, value)

    def set_constraint(self, key: str, value: float) -> None:
        """Says how far the trial is from what it must keep to: above 0 it is violated.

        As in Optuna: such a trial is not the best, and tpe, gp and nsgaii keep away from it.
        Raises ValueError for a value that is not finite.
        """
        number = _number(key, value)
        if not math.isfinite(number):
            raise ValueError(f"constraint {key!r} must be finite, got {number}")
        self._link.set_constraint(key, number)

    def save_model(
        self,
        write: Callable[[Path], object],
        *,
        step: int | None = None,
        suffix: str = ".pt",
    ) -> None:
        """Keeps what `write` puts into the file it is given as the trial's model.

        The file appears whole or not at all, and the last one saved counts; `step` says of which
        report it is. The service stores it when the trial completes among the study's best
        `keep_models`. Does nothing in a study that keeps none.
        """
        if not self.keeps_model:
            return
        name = f"model{suffix}" if step is None else f"model.step-{step}{suffix}"
        path = self.checkpoint_dir / name
        self.checkpoint_dir.mkdir(parents=True, exist_ok=True)
        with written_aside(path) as aside:
            write(aside)
        for other in self.checkpoint_dir.glob("model.*"):
            if other != path:
                other.unlink()

    def set_uncounted(self, flag: bool) -> None:
        """While it is set, silence does not count towards the study's `no_progress_seconds`.

        For what takes long and cannot report: compiling a model, a download.
        """
        self._link.set_uncounted(flag)

    def _decide(self, decision: Decision | None) -> None:
        if decision is None or decision.verdict is Verdict.CONTINUE:
            return
        # A worker that drains asks for a pause; a trial that is told to end ends all the same.
        if not self._is_told_to_end:
            self._decision, self._is_interrupted = decision, True
            self._is_told_to_end = decision.verdict is not Verdict.PAUSE


Objective = Callable[[Any], float | Sequence[float] | None]
F = TypeVar("F", bound=Objective)


def objective(
    *,
    direction: Direction | str | None = None,
    space: Space | None = None,
    metric: str | None = None,
    max_steps: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Callable[[F], F]:
    """Attaches a descriptor to a function, so that studies can leave out space and direction."""

    def attach(function: F) -> F:
        function.descriptor = Descriptor(  # type: ignore[attr-defined]  # a function attribute
            space=space,
            direction=None if direction is None else Direction(direction),
            metric=metric,
            max_steps=max_steps,
            settings=dict(settings or {}),
            summary=(function.__doc__ or "").strip().partition("\n")[0],
        )
        return function

    return attach


def load_objective(path: str) -> Objective:
    """Imports "module:name". Raises ImportError or AttributeError as Python does."""
    check_objective_path(path)
    module_name, _, attribute = path.partition(":")
    found: Any = importlib.import_module(module_name)
    for part in attribute.split("."):
        found = getattr(found, part)
    if isinstance(found, type):  # a TrainingObjective may be named by its class
        found = found()
    if not callable(found):
        raise TypeError(f"{path} is not callable")
    return found  # type: ignore[no-any-return]  # user code is not typed here


def descriptor_to_json(descriptor: Descriptor) -> dict[str, Any]:
    """A descriptor as workers register it and the database keeps it."""
    direction, space = descriptor.direction, descriptor.space
    return {
        "summary": descriptor.summary,
        "direction": None if direction is None else direction.value,
        "metric": descriptor.metric,
        "max_steps": descriptor.max_steps,
        "space": None if space is None else space_to_json(space),
        "settings": strict(dict(descriptor.settings)),
        "setting_rules": rules_to_json(descriptor.setting_rules),
    }


def is_allowed(module: str, patterns: Iterable[str]) -> bool:
    """Whether a worker with these `--allow` patterns runs objectives of a module."""
    return any(fnmatchcase(module, pattern) for pattern in patterns)


def descriptor_of(candidate: object) -> Descriptor | None:
    """The descriptor of an objective, its summary taken from the docstring when it has none."""
    descriptor = getattr(candidate, "descriptor", None)
    if not isinstance(descriptor, Descriptor):
        return None
    if descriptor.summary:
        return descriptor
    return replace(descriptor, summary=(candidate.__doc__ or "").strip().partition("\n")[0])


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        try:
            return float(value)  # type: ignore[arg-type]  # 0-d tensors and arrays convert
        except (TypeError, ValueError):
            raise TypeError(f"{name} must be a number, got {type(value).__name__}") from None
    return float(value) if not math.isnan(value) else math.nan
