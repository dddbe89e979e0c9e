"""What the values of an objective's settings must be, as data that travel with its descriptor.

Only workers can import an objective, so the service checks a study by these rules when it is
created; the trial reads its settings by the same ones.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

NONE_TEXTS = (None, "", "none", "null")


def _whole(value: Any) -> int:
    if isinstance(value, bool) or float(value) != int(float(value)):
        raise ValueError("no whole number")
    return int(float(value))


def _number(value: Any) -> float:
    if isinstance(value, bool) or math.isnan(float(value)):
        raise ValueError("no number")
    return float(value)


def _flag(value: Any) -> bool:
    return {True: True, False: False, "true": True, "false": False, "1": True, "0": False}[value]


KINDS: Mapping[str, tuple[Callable[[Any], Any], str]] = {
    "int": (_whole, "a whole number"),
    "float": (_number, "a number"),
    "bool": (_flag, "true or false"),
    "str": (str, "a string"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingRule:
    """What one setting may be; `above` and `below` leave the limit itself out.

    Text is converted, as workers override settings by it. A setting that `excludes` others is
    refused when one of them is given as well.
    """

    type: str
    optional: bool = False
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    below: float | None = None
    excludes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.type not in KINDS:
            raise ValueError(f"type must be one of {', '.join(KINDS)}, got {self.type!r}")

    def read(self, value: Any) -> Any:
        """The value as its type. Raises ValueError with a sentence that follows the name."""
        if self.optional and (value is None or value in NONE_TEXTS):
            return None
        convert, _ = KINDS[self.type]
        try:
            read = convert(value)
        except (ArithmeticError, TypeError, ValueError, KeyError):
            read = None
        if read is None or not self._is_within(read):
            raise ValueError(f"must be {self.words}, got {value!r:.60}")
        return read

    @property
    def words(self) -> str:
        """What it may be, for a person."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        kind = KINDS[self.type][1]
        limits = {
            "of {:g} or more": self.minimum,
            "of {:g} or less": self.maximum,
            "above {:g}": self.above,
            "below {:g}": self.below,
        }
        found = [text.format(limit) for text, limit in limits.items() if limit is not None]
        return " ".join([kind, " and ".join(found)]).strip() + " or null" * self.optional

    def _is_within(self, value: Any) -> bool:
        return (
            (not self.choices or value in self.choices)
            and (self.minimum is None or value >= self.minimum)
            and (self.maximum is None or value <= self.maximum)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )


def setting_faults(
    given: Mapping[str, Any], offered: Mapping[str, Any], rules: Mapping[str, SettingRule]
) -> Iterable[tuple[str, str]]:
    """What is wrong with given settings, by name; `offered` are the objective's defaults.

    An objective that offers none takes any.
    """
    settings = {**offered, **given}
    for name, value in given.items():
        if offered and name not in offered:
            yield name, f"is no setting of this objective; {_hint(name, offered)}"
        elif name in rules:
            fault = _fault(name, value, settings, rules[name])
            if fault:
                yield name, fault


def rules_to_json(rules: Mapping[str, SettingRule]) -> dict[str, Any]:
    """Rules without what they leave open."""
    return {
        name: {
            key: value
            for key, value in asdict(rule).items()
            if value is not None and value is not False and value != ()
        }
        for name, rule in rules.items()
    }


def rules_from_json(document: Mapping[str, Any]) -> dict[str, SettingRule]:
    return {
        name: SettingRule(**{key: _frozen(value) for key, value in rule.items()})
        for name, rule in document.items()
    }


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _fault(name: str, value: Any, settings: Mapping[str, Any], rule: SettingRule) -> str | None:
    try:
        read = rule.read(value)
    except ValueError as error:
        return str(error)
    others = [other for other in rule.excludes if settings.get(other) is not None]
    if read is not None and others:
        return f"excludes {others[0]}; set one of the two to null"
    return None


def _hint(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
