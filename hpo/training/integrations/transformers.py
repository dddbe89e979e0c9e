"""A callback for the Hugging Face Trainer: reports each evaluation, prunes, and resumes.

The Trainer writes a checkpoint file by file, so one that was cut off looks like a whole one. The
last thing that this callback adds is a file with the curve and the sizes of all others: a folder
without it, or with other sizes, is no checkpoint.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from hpo.objective import Trial
from hpo.training.checkpoint import say
from hpo.training.integrations.reporter import Reporter, folders_of

CURVE = "hpo.json"


class HpoTrainerCallback(TrainerCallback):
    """Connects a `Trainer` with a trial; one process and one device a trial.

    `monitor` names the metric of the evaluation that is the trial's value. Let the Trainer write
    to `output_dir=trial.checkpoint_dir` and save whenever it evaluates, hand
    `callback.checkpoint` to `trainer.train(resume_from_checkpoint=…)`, and take the trial's seed.
    The trial pauses after an evaluation that was saved.
    """

    def __init__(self, trial: Trial, monitor: str = "eval_loss") -> None:
        self._reporter = Reporter(trial, monitor)
        self._trial = trial
        self._is_training, self._is_due = False, False

    @property
    def checkpoint(self) -> str | None:
        """The newest sound checkpoint of this trial; None when there is none."""
        return next((str(folder) for folder in _newest_first(self._trial) if _read(folder)), None)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self._reporter.check_alone(args.world_size * max(1, args.n_gpu))
        self._is_training = True
        if state.global_step:
            folders = (
                found for found in _newest_first(self._trial) if _step(found) == state.global_step
            )
            curve = next(filter(None, map(_read, folders)), None)
            if curve is not None:
                self._reporter.load_state_dict(curve)
                self._reporter.resume()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self._is_training = False

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self._reporter.obey_prune()

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, Any],
        **_: Any,
    ) -> None:
        if not self._is_training:  # the user's own call of trainer.evaluate()
            return
        self._reporter.record(metrics)
        self._is_due = control.should_save
        if not self._is_due:  # no checkpoint comes before this report
            self._reporter.report_last(may_release=False)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        folder = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        _seal(folder, self._reporter.state_dict())
        if self._is_due:
            self._is_due = False
            self._reporter.report_last(may_release=state.global_step < state.max_steps)


def _seal(folder: Path, curve: Mapping[str, Any]) -> None:
    sizes = {}
    for path in _files(folder):
        with path.open("rb") as file:
            os.fsync(file.fileno())
        sizes[path.relative_to(folder).as_posix()] = path.stat().st_size
    part = folder / f"{CURVE}.part"
    with part.open("w", encoding="utf-8") as file:
        json.dump({"curve": curve, "sizes": sizes}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, folder / CURVE)


def _read(folder: Path) -> Mapping[str, Any] | None:
    """The curve of a whole checkpoint; None of any other."""
    try:
        document = json.loads((folder / CURVE).read_text(encoding="utf-8"))
        damaged = [
            name
            for name, size in document["sizes"].items()
            if (folder / name).stat().st_size != size
        ]
    except (OSError, ValueError, KeyError) as error:
        damaged = [str(error)]
    if damaged:
        say(f"checkpoint {folder} is damaged ({damaged[0]}); looking for an older one")
        return None
    curve: Mapping[str, Any] = document["curve"]
    return curve


def _newest_first(trial: Trial) -> Iterator[Path]:
    for parent in folders_of(trial):
        yield from sorted(parent.glob(f"{PREFIX_CHECKPOINT_DIR}-*/"), key=_step, reverse=True)


def _step(folder: Path) -> int:
    digits = folder.name.rpartition("-")[2]
    return int(digits) if digits.isdecimal() else -1


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != CURVE)
