"""The smallest objective: a bowl with its lowest point at (1, -2), found in milliseconds.

An objective is a function of a `Trial`: take the parameters, report as you go, obey the verdict,
return the value. This one needs no training library.
"""

from __future__ import annotations

import time

from hpo import FloatRange, Trial, TrialPruned, TrialReleased, objective


@objective(
    direction="minimize",
    space={"x": FloatRange(low=-5.0, high=5.0), "y": FloatRange(low=-5.0, high=5.0)},
    settings={"steps": 10, "sleep_seconds": 0.0},
)
def quadratic(trial: Trial) -> float:
    """(x - 1)² + (y + 2)², approached from above in `steps` reports."""
    x = trial.suggest_float("x", -5.0, 5.0)
    y = trial.suggest_float("y", -5.0, 5.0)
    final = (x - 1) ** 2 + (y + 2) ** 2
    for step in range(steps := int(trial.settings.get("steps", 10))):
        time.sleep(float(trial.settings.get("sleep_seconds", 0.0)))
        trial.report(final * (1 + (steps - 1 - step) / steps), step)
        if trial.should_prune():
            raise TrialPruned
        if trial.should_stop and step < steps - 1:
            raise TrialReleased  # without a checkpoint: the next attempt starts anew
    return final
