"""`hpo objective check`: the first steps of an objective, in this process and without a service."""

from __future__ import annotations

import logging
import math
import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from hpo.conditions import drawing_order, is_active
from hpo.errors import InvalidField
from hpo.objective import (
    Descriptor,
    Objective,
    Trial,
    TrialPruned,
    descriptor_of,
    load_objective,
)
from hpo.setting_rules import setting_faults
from hpo.space import Categorical, Choice, FloatRange, IntRange, Parameter, Space
from hpo.study import Direction
from hpo.trial import Decision, Measurement, Verdict
from hpo.worker.child import put_code_first
from hpo.worker.endings import Ending, ending_of

# An objective that does not hear the verdict is cut off after this many further reports.
PATIENCE = 3
# A signal may hit code that swallows the exception, such as a destructor.
AGAIN_SECONDS = 1.0
REPORTS_NOTHING = "reported nothing: curves and pruning need trial.report(value, step)"
NEVER_ASKS = "never asked trial.should_prune(): a pruner cannot save anything"
GOES_ON = "went on after the verdict prune: raise hpo.TrialPruned when should_prune() says so"
NOT_FINITE = "a value was not finite: such a trial cannot become the best"

logger = logging.getLogger(__name__)


class CheckTimedOut(BaseException):
    """The objective did not end in time; no Exception, which the objective might catch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckReport:
    """What happened when an objective was called with drawn parameters."""

    objective: str
    descriptor: Descriptor | None
    params: Mapping[str, Choice]
    settings: Mapping[str, Any]
    reports: tuple[Measurement, ...]
    ending: Ending
    seconds: float
    warnings: tuple[str, ...] = ()

    @property
    def is_fine(self) -> bool:
        """Whether a trial of this objective would end well."""
        nothing = self.ending.end == "value" and self.ending.value is None and not self.reports
        return self.ending.end != "failed" and not nothing

    def to_json(self) -> dict[str, Any]:
        """The report for other programs."""
        ending = self.ending
        return {
            "objective": self.objective,
            "works": self.is_fine,
            "params": dict(self.params),
            "settings": dict(self.settings),
            "reports": [{"step": made.step, "value": made.value} for made in self.reports],
            "end": ending.end,
            "value": ending.value,
            "reason": ending.reason,
            "message": ending.message,
            "traceback": ending.traceback,
            "warnings": list(self.warnings),
            "seconds": self.seconds,
        }

    def __str__(self) -> str:
        params = ", ".join(f"{name}={value}" for name, value in self.params.items())
        lines = [f"{self.objective}: {params or 'no parameters'}"]
        lines += [f"step {made.step}: {made.value:g}" for made in self.reports]
        lines += [f"warning: {warning}" for warning in self.warnings]
        # The last line says the message.
        trace = self.ending.traceback.rstrip().removesuffix(self.ending.message).rstrip()
        lines += [trace] if trace else []
        return "\n".join([*lines, f"{self._end_text()}, {self.seconds:.1f} s"])

    def _end_text(self) -> str:
        ending = self.ending
        texts = {
            "value": self._value_text(),
            "pruned": f"works: ended as it should after {len(self.reports)} reports",
            "released": "gave its trial back",
            "failed": f"failed: {ending.reason}: {ending.message}",
        }
        return texts[ending.end]

    def _value_text(self) -> str:
        if self.ending.value is not None:
            values = self.ending.values or (self.ending.value,)
            return f"works: returned {', '.join(f'{value:g}' for value in values)}"
        if self.reports:
            return "works: returned nothing, so a report becomes the value"
        return "failed: invalid_result: it returned no value and reported none"


def check_objective(
    path: str,
    *,
    code: Path | None = None,
    settings: Mapping[str, Any] | None = None,
    params: Mapping[str, Choice] | None = None,
    seed: int = 0,
    steps: int = 2,
    device: str = "cpu",
    timeout_seconds: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> CheckReport:
    """Calls an objective and prunes it after `steps` reports; faults stand in the report.

    One that is still going after `timeout_seconds` is ended by a signal, which only the main
    thread gets. Raises InvalidField for a setting or a parameter that a study could not have.
    """
    put_code_first(None if code is None else str(code.resolve()))
    link = DryLink(generator=random.Random(seed), given=params or {}, steps=steps)
    loaded: list[Objective] = []
    trial = described = None
    started_at = clock()
    with (
        tempfile.TemporaryDirectory(prefix="hpo-check-") as folder,
        _time_limit(timeout_seconds, link),
    ):
        ending = ending_of(lambda: loaded.append(load_objective(path)))
        if loaded:
            described = descriptor_of(loaded[0])
            trial = _trial_for(link, described, path, settings or {}, seed, device, Path(folder))
            ending = ending_of(partial(loaded[0], trial))
    return CheckReport(
        objective=path,
        descriptor=described,
        params=trial.params if trial else {},
        settings=trial.settings if trial else {},
        reports=tuple(link.reports),
        ending=ending,
        seconds=clock() - started_at,
        warnings=tuple(_warnings(link, trial, ending)) if trial else (),
    )


@contextmanager
def _time_limit(seconds: float | None, link: DryLink) -> Iterator[None]:
    if seconds is None:
        yield
        return

    def end(number: int, frame: object) -> None:
        raise CheckTimedOut(link.late_words(seconds))

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def draw(parameter: Parameter, generator: random.Random) -> Choice:
    """A value of a parameter, uniform, or log-uniform where the parameter says so."""
    return DRAWS[type(parameter)](parameter, generator)


def _draw_float(parameter: FloatRange, generator: random.Random) -> float:
    low, high = parameter.low, parameter.effective_high
    if parameter.step is not None:
        n_steps = round((high - low) / parameter.step)
        return min(high, low + parameter.step * generator.randint(0, n_steps))
    if parameter.log:
        drawn = math.exp(generator.uniform(math.log(low), math.log(high)))
        return min(high, max(low, drawn))  # exp(log(x)) may miss x by a bit
    return generator.uniform(low, high)


def _draw_int(parameter: IntRange, generator: random.Random) -> int:
    low, high = parameter.low, parameter.effective_high
    if parameter.log:
        drawn = round(math.exp(generator.uniform(math.log(low - 0.5), math.log(high + 0.5))))
        return min(high, max(low, drawn))
    return generator.randrange(low, high + 1, parameter.step)


def _draw_categorical(parameter: Categorical, generator: random.Random) -> Choice:
    return generator.choice(parameter.choices)


DRAWS: dict[type[Parameter], Callable[[Any, random.Random], Choice]] = {
    FloatRange: _draw_float,
    IntRange: _draw_int,
    Categorical: _draw_categorical,
}


@dataclass(kw_only=True)
class DryLink:
    """Answers a trial as a service with a very strict pruner would."""

    generator: random.Random
    given: Mapping[str, Choice]
    steps: int
    reports: list[Measurement] = field(default_factory=list)

    def late_words(self, seconds: float) -> str:
        """Why an objective has not ended after so many seconds, and what to do."""
        if len(self.reports) >= self.steps:
            return (
                f"still going after {seconds:g} s, though it was told to end at report "
                f"{self.steps}; after each report ask trial.should_prune(), and raise "
                "hpo.TrialPruned when it says so"
            )
        return (
            f"still going after {seconds:g} s, with {len(self.reports)} of {self.steps} reports; "
            "give it more time with --timeout-seconds, or smaller settings with --set"
        )

    def start(self, resumed_from_step: int | None) -> None:
        logger.info("starts after step %s", resumed_from_step)

    def suggest(self, name: str, parameter: Parameter) -> Choice:
        return self.given[name] if name in self.given else draw(parameter, self.generator)

    def report(self, measurement: Measurement) -> Decision:
        """Raises TrialPruned when the objective did not hear the verdict."""
        self.reports.append(measurement)
        if len(self.reports) >= self.steps + PATIENCE:
            raise TrialPruned(GOES_ON)
        verdict = Verdict.PRUNE if len(self.reports) >= self.steps else Verdict.CONTINUE
        return Decision(verdict=verdict)

    def late_decision(self) -> None:
        return None

    def set_user_attr(self, key: str, value: Any) -> None:
        logger.info("user attribute %s: %r", key, value)

    def set_constraint(self, key: str, value: float) -> None:
        logger.info("constraint %s: %g, %s", key, value, "violated" if value > 0 else "kept")

    def set_uncounted(self, flag: bool) -> None:
        logger.info("silence %s", "does not count" if flag else "counts again")


class _WatchedTrial(Trial):
    """Notes whether the objective ever asks."""

    asks = False

    def should_prune(self) -> bool:
        self.asks = True
        return super().should_prune()


def _trial_for(
    link: DryLink,
    descriptor: Descriptor | None,
    path: str,
    settings: Mapping[str, Any],
    seed: int,
    device: str,
    folder: Path,
) -> _WatchedTrial:
    described = descriptor or Descriptor()
    space = described.space
    for name, sentence in setting_faults(settings, described.settings, described.setting_rules):
        raise InvalidField(f"settings.{name}", sentence)
    for name, value in link.given.items() if space is not None else ():
        _check_param(name, value, space or {})
    return _WatchedTrial(
        link,
        study=path,
        number=0,
        params={**link.given, **_draw_all(link, space or {})},
        settings={**described.settings, **settings},
        seed=seed,
        device=device,
        direction=described.direction or Direction.MINIMIZE,
        checkpoint_dir=folder,
    )


def _check_param(name: str, value: Choice, space: Space) -> None:
    if name not in space:
        raise InvalidField(f"params.{name}", f"is not in the space; it has {', '.join(space)}")
    parameter = space[name]
    if isinstance(parameter, Categorical):
        is_held, words = value in parameter.choices, f"one of {list(parameter.choices)}"
    else:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        is_held = is_number and parameter.low <= value <= parameter.high  # type: ignore[operator]  # a number
        words = f"from {parameter.low:g} to {parameter.high:g}"
    if not is_held:
        raise InvalidField(f"params.{name}", f"must be {words}, as its space says, got {value!r}")


def _draw_all(link: DryLink, space: Space) -> dict[str, Choice]:
    params: dict[str, Choice] = {}
    for name in drawing_order(space):
        if is_active(space[name], params):
            params[name] = link.suggest(name, space[name])
    return params


def _warnings(link: DryLink, trial: _WatchedTrial, ending: Ending) -> list[str]:
    values = [made.value for made in link.reports]
    values += ending.values or ([ending.value] if ending.value is not None else [])
    facts = {
        REPORTS_NOTHING: not link.reports,
        NEVER_ASKS: bool(link.reports) and not trial.asks,
        GOES_ON: len(link.reports) > link.steps,
        NOT_FINITE: not all(map(math.isfinite, values)),
    }
    return [warning for warning, is_so in facts.items() if is_so]
