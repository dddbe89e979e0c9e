"""What a training has done so far, over all attempts of its trial; a part of the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hpo.study import Direction


@dataclass(kw_only=True, slots=True)
class Progress:
    """Epochs done and batches of the one that has begun, their reports and what they took."""

    epochs: int = 0
    batches: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    answered_step: int = -1  # reports up to it have arrived; later ones may have got lost
    best: dict[str, Any] | None = None
    n_samples: int = 0
    train_seconds: float = 0.0
    wait_seconds: float = 0.0
    seconds: float = 0.0

    @property
    def last_step(self) -> int | None:
        """The last step that was recorded; None before the first."""
        return self.history[-1]["step"] if self.history else None

    def record(self, value: float, metrics: Mapping[str, float], direction: Direction) -> None:
        """Ends an epoch with its value; the best one is the first that no later one exceeds."""
        entry = {"step": self.epochs, "value": value, "metrics": dict(metrics)}
        self.history.append(entry)
        self.epochs += 1
        if self.best is None or _is_better(value, self.best["value"], direction):
            self.best = {"step": entry["step"], "value": value}

    @property
    def is_best_last(self) -> bool:
        """Whether the last step is the best so far."""
        return self.best is not None and self.best["step"] == self.last_step

    def user_attrs(self) -> dict[str, Any]:
        """The figures that stay with the trial."""
        attrs = {
            "epochs": self.epochs,
            "seconds": round(self.seconds, 3),
            "samples_per_second": round(_share(self.n_samples, self.train_seconds), 1),
            "data_wait_share": round(_share(self.wait_seconds, self.train_seconds), 3),
        }
        if self.best is not None:
            attrs |= {"best_step": self.best["step"], "best_value": self.best["value"]}
        return attrs


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


def _is_better(value: float, than: float, direction: Direction) -> bool:
    return value > than if direction is Direction.MAXIMIZE else value < than
