"""The Pareto front: the trials that no other one beats in every value."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from optuna.study._multi_objective import _is_pareto_front

from hpo.study import Direction


def front_of(values: Sequence[Sequence[float]], directions: Sequence[Direction]) -> list[int]:
    """The places of the trials on the front; equal trials are all on it, or none is."""
    if not values:
        return []
    signs = [1.0 if direction is Direction.MINIMIZE else -1.0 for direction in directions]
    losses = np.asarray(values, dtype=float) * signs
    return [int(place) for place in np.flatnonzero(_is_pareto_front(losses, False))]
