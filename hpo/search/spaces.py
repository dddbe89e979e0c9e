"""Our parameters as Optuna's distributions, and the cells of a grid over them."""

from __future__ import annotations

import math
from decimal import Decimal

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from hpo.choices import Label, to_label
from hpo.space import Categorical, FloatRange, IntRange, Parameter, Space


def distribution_of(parameter: Parameter) -> BaseDistribution:
    """The distribution that Optuna stores for a parameter."""
    # effective_high, because Optuna moves a high that the step misses, and warns each time.
    match parameter:
        case FloatRange(low=low, log=log, step=step):
            return FloatDistribution(low, parameter.effective_high, log=log, step=step)
        case IntRange(low=low, log=log, step=step):
            return IntDistribution(low, parameter.effective_high, log=log, step=step)
        case Categorical(choices=choices):
            return CategoricalDistribution([to_label(choice) for choice in choices])


def is_finite(parameter: Parameter) -> bool:
    """Whether a grid can list every value of the parameter."""
    return not isinstance(parameter, FloatRange) or (
        parameter.step is not None or parameter.low == parameter.high
    )


def n_values(parameter: Parameter) -> int:
    """How many values a finite parameter has."""
    if isinstance(parameter, Categorical):
        return len(parameter.choices)
    if isinstance(parameter, IntRange):
        return (parameter.high - parameter.low) // parameter.step + 1
    if parameter.step is None:
        return 1
    low, high, step = map(_decimal, (parameter.low, parameter.effective_high, parameter.step))
    return int((high - low) // step) + 1


def values_of(parameter: Parameter) -> list[Label]:
    """Every value of a finite parameter, in order, as Optuna stores it."""
    if isinstance(parameter, Categorical):
        return [to_label(choice) for choice in parameter.choices]
    if isinstance(parameter, IntRange):
        return list(range(parameter.low, parameter.high + 1, parameter.step))
    low, step = _decimal(parameter.low), _decimal(parameter.step or 0)
    return [float(low + index * step) for index in range(n_values(parameter))]


def n_cells(space: Space) -> int:
    """How many points a grid over finite parameters has."""
    return math.prod(n_values(parameter) for parameter in space.values())


def _decimal(number: float) -> Decimal:
    # As written, so that a step of 0.1 counts 0.1, 0.2, 0.3 and not 0.30000000000000004.
    return Decimal(str(number))
