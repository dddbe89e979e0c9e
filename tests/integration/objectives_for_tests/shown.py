"""What pages show: curves that grow step by step, of which some are hopeless and some break."""

from __future__ import annotations

import math
import sys
import time

from hpo import Categorical, FloatRange, Trial, TrialPruned, TrialReleased, objective


@objective(
    direction="minimize",
    metric="loss",
    max_steps=12,
    space={
        "level": FloatRange(low=0.0, high=1.0),
        "lr": FloatRange(low=1e-4, high=0.1, log=True),
        "optimizer": Categorical(choices=("Adam", "SGD")),
    },
    settings={"steps": 12, "seconds": 0.1, "breaks": False},
)
def curve(trial: Trial) -> float:
    """A loss that falls to the level that the parameter says."""
    loss = 0.0
    for step in range(trial.settings["steps"]):
        time.sleep(trial.settings["seconds"])
        if trial.settings["breaks"] and step == 2:
            raise ValueError(f"level {trial.params['level']:.3f} is <not> for me")
        loss = loss_at(trial, step)
        sys.stdout.write(f"step {step}: loss {loss:.4f}\n")
        trial.report(loss, step, accuracy=1 / (1 + loss))
        if trial.should_prune():
            raise TrialPruned
        if trial.should_stop and step < trial.settings["steps"] - 1:
            raise TrialReleased
    trial.set_user_attr("precision", "bf16")
    trial.set_user_attr("samples_per_second", 51234.5)
    return loss


def loss_at(trial: Trial, step: int) -> float:
    """Falls towards a floor, the faster the better `lr` fits the optimizer, and not evenly."""
    best = {"Adam": -2.7, "SGD": -1.5}[trial.params["optimizer"]]
    miss = abs(math.log10(trial.params["lr"]) - best)
    floor = 0.1 + 0.6 * trial.params["level"] + 0.25 * miss
    wiggle = 0.03 * math.sin(1.7 * step + 5 * trial.number)
    return floor + (2.3 - floor) * math.exp(-step / (1.5 + miss)) + wiggle


@objective(space={"width": FloatRange(low=1.0, high=64.0)})
def two_values(trial: Trial) -> list[float]:
    """An error, and what it costs."""
    return [1 / trial.params["width"], trial.params["width"]]
