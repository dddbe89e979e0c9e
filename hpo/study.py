"""A study: one named search, immutable but for its budget, priority, labels and state."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from hpo.conditions import condition_faults
from hpo.errors import InvalidField
from hpo.names import is_printable
from hpo.seeds import MAX_SEED
from hpo.space import Space

# One rule for SQLite and PostgreSQL, and safe in a URL without escaping.
STUDY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
TRIAL_NAME = re.compile(rf"{STUDY_NAME.pattern}/[0-9]{{1,10}}")
OBJECTIVE_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class Direction(enum.StrEnum):
    MINIMIZE = "minimize"
    MAXIMIZE = "maximize"

    def best(self, values: Iterable[float]) -> float:
        """The best of some finite values, at least one."""
        return min(values) if self is Direction.MINIMIZE else max(values)


class StudyState(enum.StrEnum):
    """`stopping`: no trial is started; it ends when the running ones have ended.

    `deleting`: what is stored of it is being removed, and then it is not there any more.
    """

    RUNNING = "running"
    PAUSED = "paused"
    STOPPING = "stopping"
    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"
    DELETING = "deleting"

    @property
    def is_ended(self) -> bool:
        return self in (StudyState.COMPLETED, StudyState.STOPPED, StudyState.FAILED)


class ValueRule(enum.StrEnum):
    """Which report becomes the trial's value when the objective returns none."""

    LAST = "last"
    BEST = "best"


class OnFault(enum.StrEnum):
    """How a trial ends whose parameters are at fault: samplers learn from PRUNED, not from FAIL."""

    PRUNE = "prune"
    FAIL = "fail"


@dataclass(frozen=True, kw_only=True, slots=True)
class Algorithm:
    """A sampler or a pruner by name, with Optuna's own options."""

    name: str
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


# Beyond a handful nearly every trial is on the front.
MAX_DIRECTIONS = 10
MAX_MODELS = 1000
MAX_TAGS, MAX_TAG, MAX_NOTES = 32, 64, 10_000
# About 30 years: what every clock and timer takes.
MAX_LIMIT_SECONDS = 1e9


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """What a study may spend. `n_trials` counts the trials that the study itself starts.

    `timeout_seconds` is for the study from its first claim, `trial_timeout_seconds` for a trial
    over all its attempts; both leave pauses out. `no_progress_seconds` is the longest time that
    an attempt may go without a report.
    """

    n_trials: int
    max_parallel_trials: int | None = None
    max_failed_trials: int | None = None
    timeout_seconds: float | None = None
    trial_timeout_seconds: float | None = None
    no_progress_seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("n_trials", "max_parallel_trials", "max_failed_trials"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise InvalidField(name, f"must be 1 or more, got {count}")
        for name in ("timeout_seconds", "trial_timeout_seconds", "no_progress_seconds"):
            seconds = getattr(self, name)
            if seconds is not None and not 0 < seconds <= MAX_LIMIT_SECONDS:
                raise InvalidField(
                    name, f"must be above 0 and {MAX_LIMIT_SECONDS:g} at most, got {seconds}"
                )


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyDefinition:
    """All that says what a study searches and how; `space` is None when the objective suggests.

    Workers run the `objective`; a study without one is for ask and tell, by any program.
    `directions` has one entry for each value of the objective, of which `direction` is the
    first; left out, there is one value. The same holds for `metrics` and `metric`, their names.
    `keep_models` of its best trials leave their models behind. `replicates` names the trial, as
    STUDY/NUMBER, whose parameters it tries under other seeds. `tags` and `notes` are for people.
    """

    name: str
    direction: Direction
    budget: Budget
    seed: int
    objective: str | None = None
    space: Space | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    sampler: Algorithm = field(default_factory=lambda: Algorithm(name="tpe"))
    pruner: Algorithm = field(default_factory=lambda: Algorithm(name="median"))
    metric: str | None = None
    directions: tuple[Direction, ...] = ()
    metrics: tuple[str, ...] = ()
    max_steps: int | None = None
    value_rule: ValueRule = ValueRule.LAST
    max_attempts: int = 3
    retry_backoff_seconds: float = 5.0
    on_diverged: OnFault = OnFault.PRUNE
    on_out_of_memory: OnFault = OnFault.PRUNE
    keep_models: int = 1
    replicates: str | None = None
    priority: int = 0
    tags: tuple[str, ...] = ()
    notes: str = ""

    def __post_init__(self) -> None:
        if not STUDY_NAME.fullmatch(self.name):
            raise InvalidField(
                "name",
                "must be 1 to 200 letters, digits, dots, dashes or underscores, "
                "beginning with a letter or digit",
            )
        if self.objective is not None:
            check_objective_path(self.objective)
        self._complete_the_lists()
        _check_replicates(self.replicates)
        _check_labels(self.tags, self.notes)
        if not 0 <= self.seed <= MAX_SEED:
            raise InvalidField("seed", f"must be from 0 to {MAX_SEED}, got {self.seed}")
        if self.space is not None and not self.space:
            raise InvalidField("space", "is empty; leave it out when the objective suggests")
        for place, sentence in condition_faults(self.space or {}):
            raise InvalidField(".".join(("space", *place)), sentence)
        if self.max_steps is not None and self.max_steps < 1:
            raise InvalidField("max_steps", f"must be 1 or more, got {self.max_steps}")
        if self.max_attempts < 1:
            raise InvalidField("max_attempts", f"must be 1 or more, got {self.max_attempts}")
        if not 0 <= self.keep_models <= MAX_MODELS:
            raise InvalidField("keep_models", f"must be 0 to {MAX_MODELS}, got {self.keep_models}")
        if not 0 <= self.retry_backoff_seconds <= 3600:
            raise InvalidField(
                "retry_backoff_seconds", f"must be 0 to 3600, got {self.retry_backoff_seconds}"
            )

    @property
    def is_multi_objective(self) -> bool:
        return len(self.directions) > 1

    def _complete_the_lists(self) -> None:
        """Makes one value the shortest list of values."""
        metrics = self.metrics or (() if self.metric is None else (self.metric,))
        object.__setattr__(self, "directions", self.directions or (self.direction,))
        object.__setattr__(self, "metrics", metrics)
        if self.directions[0] is not self.direction:
            raise InvalidField("directions", f"must begin with the direction {self.direction}")
        if metrics and len(metrics) != len(self.directions):
            raise InvalidField(
                "metrics", f"must be {len(self.directions)} names, one for each direction"
            )


def check_objective_path(path: str) -> None:
    """Raises InvalidField unless `path` reads "module:name"."""
    if not OBJECTIVE_PATH.fullmatch(path):
        raise InvalidField("objective", f'must read "module:name", got {path!r}')


def _check_labels(tags: Sequence[str], notes: str) -> None:
    if len(notes) > MAX_NOTES:
        raise InvalidField("notes", f"must have {MAX_NOTES} characters or fewer")
    if len(tags) > MAX_TAGS:
        raise InvalidField("tags", f"must be {MAX_TAGS} or fewer, got {len(tags)}")
    for tag in tags:
        if not (len(tag) <= MAX_TAG and is_printable(tag)):
            raise InvalidField(
                "tags", f"must have 1 to {MAX_TAG} printable characters each, got {tag[:80]!r}"
            )
    twice = [tag for tag in tags if tags.count(tag) > 1]
    if twice:
        raise InvalidField("tags", f"must be different ones, got {twice[0]!r} twice")


def _check_replicates(trial: str | None) -> None:
    if trial is not None and not TRIAL_NAME.fullmatch(trial):
        raise InvalidField("replicates", f"must read STUDY/NUMBER, got {trial!r}")
