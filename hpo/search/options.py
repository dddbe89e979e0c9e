"""Options of samplers and pruners: Optuna's own names, each with the values it may have.

The tables are written out, so that a misspelt option is a clear answer when the study is made and
not a TypeError when its first trial is claimed.
"""

from __future__ import annotations

import difflib
import importlib.util
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hpo.errors import InvalidField


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_integer(value) or (isinstance(value, float) and math.isfinite(value))


KINDS: dict[str, Callable[[Any], bool]] = {
    "a whole number": _is_integer,
    "a finite number": _is_number,
    "true or false": lambda value: isinstance(value, bool),
    "one of these": lambda value: False,
    "a pruner": lambda value: isinstance(value, str | Mapping),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """What one option may be: a kind of value in a range, or one of `literals`."""

    kind: str
    low: float = -math.inf
    high: float = math.inf
    literals: tuple[str | None, ...] = ()
    is_required: bool = False

    def allows(self, value: Any) -> bool:
        if value is None or isinstance(value, str):
            return value in self.literals or KINDS[self.kind](value)
        if not KINDS[self.kind](value):
            return False
        return not _is_number(value) or self.low <= value <= self.high

    def __str__(self) -> str:
        literals = ", ".join(json.dumps(literal) for literal in self.literals)
        if self.kind == "one of these":
            return f"one of {literals}"
        low = "" if self.low == -math.inf else f" of {self.low:g} or more"
        bounds = low if self.high == math.inf else f" from {self.low:g} to {self.high:g}"
        return f"{self.kind}{bounds}" + (f", or {literals}" if literals else "")


def integer(low: float, high: float = math.inf, *literals: str | None) -> Option:
    """A whole number in a range."""
    return Option(kind="a whole number", low=low, high=high, literals=literals)


def number(low: float = -math.inf, high: float = math.inf, *literals: str | None) -> Option:
    """A finite number in a range."""
    return Option(kind="a finite number", low=low, high=high, literals=literals)


def boolean(*literals: str | None) -> Option:
    """True or false."""
    return Option(kind="true or false", literals=literals)


def choice(*literals: str | None) -> Option:
    """One of a few strings."""
    return Option(kind="one of these", literals=literals)


def known(name: str, names: Iterable[str]) -> str:
    """Lists the known names, and the one that was probably meant."""
    listed = list(names)
    near = difflib.get_close_matches(name, listed, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"known: {', '.join(listed) or 'none'}{hint}"


def option_faults(
    field: str, given: Mapping[str, Any], table: Mapping[str, Option]
) -> Iterator[InvalidField]:
    """Every fault in the options of one sampler or pruner, each under its own field."""
    for name, value in given.items():
        if name == "seed":
            yield InvalidField(f"{field}.seed", "is no option; the study's own seed is used")
        elif name not in table:
            yield InvalidField(f"{field}.{name}", f"unknown option; {known(name, table)}")
        elif not table[name].allows(value):
            yield InvalidField(f"{field}.{name}", f"must be {table[name]}, got {value!r}")
    for name, option in table.items():
        if option.is_required and name not in given:
            yield InvalidField(f"{field}.{name}", f"is required: {option}")


def package_faults(field: str, name: str, packages: Iterable[str]) -> Iterator[InvalidField]:
    """One fault for each package that the server lacks."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            yield InvalidField(
                field,
                f"{name} needs the package {package}, which this server does not have; "
                f"install it there (pip install {package}) or choose another",
            )
