"""Points that somebody wants to have tried: whether the space has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from optuna.distributions import BaseDistribution

from hpo.choices import to_label
from hpo.conditions import drawing_order, is_active
from hpo.search.options import known
from hpo.search.spaces import distribution_of
from hpo.space import Categorical, FloatRange, IntRange, Parameter, Space

# Optuna stores a number as a double, which holds whole numbers exactly up to here.
MAX_EXACT = 2**53


def point_faults(space: Space | None, params: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(parameter, what is wrong with it) for each parameter of a point that is not possible.

    A point may leave parameters out, which are sampled then. Without a declared space any name
    may come, as the objective suggests by running.
    """
    for name, value in params.items():
        if space is not None and name not in space:
            yield name, f"is no parameter of this study; {known(name, space)}"
        elif space is not None and not _holds(space[name], value):
            yield name, f"must be {_wanted(space[name])}, got {value!r}"
        elif space is not None and not is_active(space[name], params):
            yield name, _out_of_place(space[name], params)
        elif not _is_plain(value):
            yield name, f"must be a number of at most {MAX_EXACT}, got {value!r:.60}"


def misfits(space: Space | None, params: Mapping[str, Any]) -> list[str]:
    """The parameters that keep the values of a finished trial out of a space; none: it fits.

    Such a trial has each parameter that the space draws with its values, and no other one.
    """
    if space is None:
        return []
    held: dict[str, Any] = {}
    found: dict[str, None] = {}
    for name in drawing_order(space):
        if not is_active(space[name], held):
            continue
        if name in params and _holds(space[name], params[name]):
            held[name] = params[name]
        else:
            found[name] = None
    # Behind a value that does not fit, conditions are not judged.
    others = (name for name in params if name not in held and not (found and name in space))
    return list(found | dict.fromkeys(others))


def _out_of_place(parameter: Parameter, params: Mapping[str, Any]) -> str:
    missing = [name for name in parameter.when if name not in params]
    if missing:  # drawn by the sampler, they might leave no room for it
        return f"is conditional (when); give {', '.join(missing)} as well"
    return "is not part of a trial with these values; see its condition (when)"


def _holds(parameter: Parameter, value: Any) -> bool:
    is_range = isinstance(parameter, FloatRange | IntRange)
    if is_range and (isinstance(value, bool) or not isinstance(value, int | float)):
        return False
    return _contains(distribution_of(parameter), value)


def _contains(distribution: BaseDistribution, value: Any) -> bool:
    """As the sampling decides whether an enqueued value can be taken."""
    try:
        return distribution._contains(distribution.to_internal_repr(to_label(value)))
    except (ValueError, TypeError, OverflowError):
        return False


def _wanted(parameter: Parameter) -> str:
    if isinstance(parameter, Categorical):
        return f"one of {', '.join(map(repr, parameter.choices))}"
    kind = "a whole number" if isinstance(parameter, IntRange) else "a number"
    step = f" in steps of {parameter.step} from {parameter.low}" if parameter.step else ""
    return f"{kind} from {parameter.low} to {parameter.effective_high}{step}"


def _is_plain(value: Any) -> bool:
    return not isinstance(value, int) or abs(value) <= MAX_EXACT
