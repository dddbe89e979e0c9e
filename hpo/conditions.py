"""Conditional parameters: which ones a trial has, and in which order they are drawn.

A parameter with `when: {optimizer: [sgd]}` exists in trials whose optimizer is sgd, and only
there. All names must hold; a parameter whose condition names an absent one is absent as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hpo.choices import Choice
from hpo.space import Categorical, FloatRange, IntRange, Parameter, Space


def is_active(parameter: Parameter, values: Mapping[str, Any]) -> bool:
    """Whether a trial with these values has the parameter."""
    return all(
        name in values and values[name] in allowed for name, allowed in parameter.when.items()
    )


def drawing_order(space: Space) -> list[str]:
    """The names as they stand there, each after those that its condition names."""
    order: dict[str, None] = {}

    def add(name: str) -> None:
        for other in space[name].when:
            if other not in order:
                add(other)
        order.setdefault(name)

    for name in space:
        add(name)
    return list(order)


def condition_faults(space: Space) -> Iterator[tuple[tuple[str, ...], str]]:
    """(place, sentence) of each condition that can never be judged or never hold."""
    for name, parameter in space.items():
        for other, values in parameter.when.items():
            sentence = _fault(space.get(other), values)
            if sentence is None and _leads_to(space, other, name):
                sentence = f"depends on {name} itself; drop one of the conditions"
            if sentence is not None:
                yield (name, "when", other), sentence


def _fault(parameter: Parameter | None, values: tuple[Choice, ...]) -> str | None:
    if parameter is None:
        return "is not in the space; name a parameter that is"
    if isinstance(parameter, FloatRange):
        return "is a float; conditions may name categorical and int parameters"
    if not values:
        return "is empty; list at least one value"
    missing = [value for value in values if not _has_value(parameter, value)]
    return f"can never be {missing[0]!r}; list values that it may take" if missing else None


def _has_value(parameter: Categorical | IntRange, value: Choice) -> bool:
    if isinstance(parameter, Categorical):
        return value in parameter.choices
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return is_whole and value in range(parameter.low, parameter.high + 1, parameter.step)


def _leads_to(space: Space, start: str, target: str) -> bool:
    """Whether conditions lead from one parameter to another."""
    seen: set[str] = set()
    ahead = [start]
    while ahead:
        name = ahead.pop()
        if name == target:
            return True
        if name not in seen and name in space:
            seen.add(name)
            ahead.extend(space[name].when)
    return False
