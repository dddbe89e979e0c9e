"""The search space: which values each parameter of a trial may take.

A space is a mapping from parameter name to `FloatRange`, `IntRange` or `Categorical`. The
values check themselves, so a range that cannot be searched never reaches a worker. What holds
between parameters (`when`) stands in `hpo.conditions`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from typing import Any, TypeAlias

from hpo.choices import Choice as Choice
from hpo.choices import plain_choice

# A parameter is drawn only in trials whose named parameters have one of these values.
When: TypeAlias = Mapping[str, tuple[Choice, ...]]
Space: TypeAlias = Mapping[str, "Parameter"]

MAX_CHOICES = 1000
# Beyond it, neighbouring steps are the same float.
MAX_STEPS = 1e15


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatRange:
    """A real number from `low` to `high`, both included."""

    low: float
    high: float
    log: bool = False
    step: float | None = None
    when: When = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_range(self.low, self.high, log=self.log)
        if self.step is not None:
            if not (math.isfinite(self.step) and self.step > 0):
                raise ValueError(f"step must be a finite number above 0, got {self.step}")
            if self.log:
                raise ValueError("log and step exclude each other; drop one of them")
            if (self.high - self.low) / self.step > MAX_STEPS:
                raise ValueError(f"step must fit at most {MAX_STEPS:.0e} times, got {self.step}")

    @property
    def effective_high(self) -> float:
        """The largest value that `step` reaches, counted from `low`; `high` without a step."""
        if self.step is None:
            return self.high
        low, step, high = Decimal(str(self.low)), Decimal(str(self.step)), self.high
        # Rounding to a float may miss the step again: take what Optuna, too, no longer moves.
        while (reached := float((Decimal(str(high)) - low) // step * step + low)) != high:
            high = reached
        return high


@dataclass(frozen=True, kw_only=True, slots=True)
class IntRange:
    """A whole number from `low` to `high`, both included."""

    low: int
    high: int
    log: bool = False
    step: int = 1
    when: When = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_range(self.low, self.high, log=self.log)
        if self.step < 1:
            raise ValueError(f"step must be 1 or more, got {self.step}")
        if self.log and self.step != 1:
            raise ValueError("log and step exclude each other; drop one of them")

    @property
    def effective_high(self) -> int:
        """The largest value that `step` reaches, counted from `low`."""
        return (self.high - self.low) // self.step * self.step + self.low


@dataclass(frozen=True, kw_only=True, slots=True)
class Categorical:
    """One of `choices`, which have no order."""

    choices: tuple[Choice, ...]
    when: When = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.choices:
            raise ValueError("choices must not be empty; give at least one value")
        if len(self.choices) > MAX_CHOICES:
            raise ValueError(f"choices must be {MAX_CHOICES} at most, got {len(self.choices)}")
        object.__setattr__(self, "choices", tuple(map(plain_choice, self.choices)))
        for index, choice in enumerate(self.choices):
            # == on purpose: Optuna takes 1, 1.0 and True for the same choice.
            if choice in self.choices[:index]:
                raise ValueError(f"choices must differ, {choice!r} stands there twice")


Parameter: TypeAlias = FloatRange | IntRange | Categorical
# As scripts may write it: a parameter, or its document.
GivenSpace: TypeAlias = Mapping[str, Parameter | Mapping[str, Any]]

PARAMETER_TYPES: dict[str, type[Parameter]] = {
    "float": FloatRange,
    "int": IntRange,
    "categorical": Categorical,
}
TYPE_NAMES: dict[type[Parameter], str] = {kind: name for name, kind in PARAMETER_TYPES.items()}


def parameter_to_json(parameter: Parameter) -> dict[str, Any]:
    """The parameter as it stands in a study document."""
    fields = asdict(parameter)
    when = {name: list(values) for name, values in fields.pop("when").items()}
    if isinstance(parameter, Categorical):
        fields["choices"] = list(parameter.choices)
    document = {"type": TYPE_NAMES[type(parameter)], **fields}
    return {**document, "when": when} if when else document


def parameter_from_json(document: Mapping[str, Any]) -> Parameter:
    """Reads one parameter. Raises ValueError for an unknown type or a range that is not one."""
    fields = dict(document)
    type_name = fields.pop("type", None)
    if type_name not in PARAMETER_TYPES:
        raise ValueError(f"type must be one of {', '.join(PARAMETER_TYPES)}, got {type_name!r}")
    if type_name == "categorical":
        fields["choices"] = tuple(fields.get("choices", ()))
    if "when" in fields:
        fields["when"] = {name: tuple(values) for name, values in fields["when"].items()}
    try:
        return PARAMETER_TYPES[type_name](**fields)
    except TypeError as error:
        raise ValueError(f"{type_name} parameter: {error}") from None


def space_to_json(space: Space) -> dict[str, dict[str, Any]]:
    """The space as it stands in a study document."""
    return {name: parameter_to_json(parameter) for name, parameter in space.items()}


def given_to_json(space: GivenSpace) -> dict[str, dict[str, Any]]:
    """The same of a space as a script gives it. Raises TypeError that names the parameter."""
    return {name: _given_to_json(name, found) for name, found in space.items()}


def _given_to_json(name: str, given: Parameter | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(given, Mapping):
        return dict(given)
    if isinstance(given, Parameter):
        return parameter_to_json(given)
    raise TypeError(
        f"space.{name}: must be a FloatRange, an IntRange, a Categorical or a mapping such as "
        f'{{"type": "float", "low": 0, "high": 1}}, got {type(given).__name__}'
    )


def space_from_json(document: Mapping[str, Mapping[str, Any]]) -> dict[str, Parameter]:
    """Reads a space. Raises ValueError that names the parameter at fault."""
    space = {}
    for name, fields in document.items():
        try:
            space[name] = parameter_from_json(fields)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return space


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # a whole number beyond every float
        return False


def _check_range(low: float, high: float, *, log: bool) -> None:
    if not (_is_finite(low) and _is_finite(high)):
        raise ValueError(f"low and high must be finite, got {low} and {high}")
    if low > high:
        raise ValueError(f"low must not be above high, got {low} and {high}")
    if log and low <= 0:
        raise ValueError(f"low must be above 0 when log is true, got {low}")
