"""What the callbacks share: reports in their order, verdicts obeyed, and curves that go on.

A checkpoint is written before its report, as in the kit's own loop, and holds the curve up to it.
So the next attempt begins with reports that may have been lost, and curve and weights agree.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpo.objective import Trial, TrialPruned, TrialReleased
from hpo.training.checkpoint import say
from hpo.training.divergence import check_metrics

ONE_PROCESS = (
    "a trial has one process and one device: its reports go through a connection of that process; "
    "set the number of devices to 1 and use no launcher"
)


class Reporter:
    """Speaks for a trial that another library trains; `step` counts validations from 0."""

    def __init__(self, trial: Trial, monitor: str) -> None:
        self.trial, self.monitor = trial, monitor
        self.history: list[dict[str, Any]] = []
        self._answered_step = -1
        self._pid = os.getpid()

    def check_alone(self, n_processes: int) -> None:
        """Raises ValueError where several processes share the training."""
        if n_processes != 1 or os.getpid() != self._pid:
            raise ValueError(ONE_PROCESS)

    def record(self, metrics: Mapping[str, Any]) -> None:
        """Takes note of a validation. Raises KeyError that lists the metrics there are."""
        if self.monitor not in metrics:
            known = ", ".join(sorted(metrics)) or "none"
            raise KeyError(f"the validation has no metric {self.monitor!r}, it has: {known}")
        numbers = {name: float(value) for name, value in metrics.items() if _is_number(value)}
        value = numbers.pop(self.monitor)
        self.history.append({"step": len(self.history), "value": value, "metrics": numbers})

    def report_last(self, *, may_release: bool) -> None:
        """Reports the last validation.

        Raises TrialPruned, TrialFailed when the value is not finite, and, if there is a
        checkpoint to go on from, TrialReleased.
        """
        last = self.history[-1]
        self._report(last)
        check_metrics(last["step"], {self.monitor: last["value"]})
        self.obey_prune()
        if may_release and self.trial.should_stop:
            raise TrialReleased(f"released after step {last['step']}")

    def obey_prune(self) -> None:
        """Ends the trial when a verdict, perhaps one that came late, says so."""
        if self.trial.should_prune():
            raise TrialPruned(f"pruned after step {len(self.history) - 1}")

    def state_dict(self) -> dict[str, Any]:
        """The curve so far, and up to where it has arrived, as plain types."""
        return {"history": self.history, "answered_step": self._answered_step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` returned."""
        self.history, self._answered_step = list(state["history"]), state["answered_step"]

    def resume(self) -> None:
        """Goes on after a checkpoint, if one was loaded: repeats reports that may be lost."""
        if not self.history:
            return
        last = self.history[-1]["step"]
        say(f"resuming after step {last}")
        self.trial.start(last)
        for entry in self.history[self._answered_step + 1 : -1]:
            self._report(entry)
        self.report_last(may_release=False)  # the next validation may

    def _report(self, entry: Mapping[str, Any]) -> None:
        names = {_keyword(name): value for name, value in entry["metrics"].items()}
        self.trial.report(entry["value"], entry["step"], **names)
        self._answered_step = max(self._answered_step, self.trial.answered_step)


def folders_of(trial: Trial) -> tuple[Path, ...]:
    """Where checkpoints of this trial may lie, the newest first."""
    return (trial.checkpoint_dir, *trial.resume_dirs)


def _is_number(value: object) -> bool:
    try:
        float(value)  # type: ignore[arg-type]  # 0-d tensors convert
    except (TypeError, ValueError, RuntimeError):
        return False
    return True


def _keyword(name: str) -> str:
    """A metric of this name beside the two arguments that a report has itself."""
    return f"{name}_" if name in ("value", "step") else name
