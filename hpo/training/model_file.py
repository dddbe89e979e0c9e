"""The model that a training leaves behind: weights as a plain state dict, and their origin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpo.objective import Trial

FORMAT = 1


def model_document(
    trial: Trial, params: Mapping[str, Any], report: Mapping[str, Any], weights: dict[str, Any]
) -> dict[str, Any]:
    """What stands in the file: tensors and plain values, which `weights_only` loading takes.

    `params` are those that the recipe's `model` was made with, settings and parameters together.
    """
    return {
        "format": FORMAT,
        "state_dict": weights,
        "params": dict(params),
        "step": report["step"],
        "value": report["value"],
        "metrics": dict(report["metrics"]),
        "study": trial.study,
        "number": trial.number,
        "seed": trial.seed,
    }
