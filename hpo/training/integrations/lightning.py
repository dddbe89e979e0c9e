"""A Lightning callback: reports each validation epoch, prunes, and resumes from checkpoints.

Lightning saves no random states, and a resumed epoch draws one number fewer than an uninterrupted
one. So every epoch begins with a seed of its own, made from the trial's seed and its number: order
of the data, dropout and augmentation in this process are then the same in every attempt.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl

from hpo.objective import Trial
from hpo.training.checkpoint import say
from hpo.training.integrations.reporter import Reporter, folders_of
from hpo.training.seeds import seed_stream

KEPT = 2


class HpoCallback(pl.Callback):
    """Connects a `Trainer` with a trial; one process and one device a trial.

    `monitor` names the metric of the validation that is the trial's value. Checkpoints are
    written to the trial's folder after each epoch with a validation; hand `callback.checkpoint`
    to `trainer.fit(…, ckpt_path=…)`, and set `enable_checkpointing=False` unless you want others.
    The trial pauses at the end of an epoch.
    """

    def __init__(self, trial: Trial, monitor: str = "val_loss") -> None:
        self._reporter = Reporter(trial, monitor)
        self._trial = trial
        self._has_validated = False
        self._is_first_epoch = True
        self._is_to_resume = False

    @property
    def checkpoint(self) -> Path | None:
        """The newest sound checkpoint of this trial; None when there is none."""
        return next(filter(_is_sound, _newest_first(self._trial)), None)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._reporter.check_alone(trainer.world_size)

    def state_dict(self) -> dict[str, Any]:
        """The curve so far, for Lightning's checkpoint."""
        return self._reporter.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the curve out of a checkpoint; it goes on when the training begins."""
        self._reporter.load_state_dict(state_dict)
        self._is_to_resume = True

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._has_validated = False
        self._resume()

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._resume()  # a training that had come to its end: Lightning does not start it

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        seed_stream(self._trial.seed, f"lightning epoch {trainer.current_epoch}")
        if self._is_first_epoch and trainer.fit_loop._data_fetcher is not None:
            # Lightning made this attempt's first iterator before any hook, and so before the seed.
            iter(trainer.fit_loop._data_fetcher)
        self._is_first_epoch = False

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: object
    ) -> None:
        self._reporter.obey_prune()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._has_validated = not trainer.sanity_checking

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not self._has_validated:
            return
        self._has_validated = False
        self._reporter.record(trainer.callback_metrics)
        self._write(trainer)
        self._reporter.report_last(may_release=not _is_done(trainer))

    def _resume(self) -> None:
        if self._is_to_resume:
            self._is_to_resume = False
            self._reporter.resume()

    def _write(self, trainer: pl.Trainer) -> None:
        folder = self._trial.checkpoint_dir
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"step-{len(self._reporter.history) - 1:08d}.ckpt"
        part = path.with_suffix(".part")
        trainer.save_checkpoint(part, weights_only=False)  # the whole state
        with part.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
        for old in sorted(folder.glob("step-*.ckpt"))[:-KEPT]:
            old.unlink()


def _is_done(trainer: pl.Trainer) -> bool:
    """Whether the epoch that ends is the last."""
    return trainer.max_epochs is not None and 0 <= trainer.max_epochs <= trainer.current_epoch + 1


def _newest_first(trial: Trial) -> Iterator[Path]:
    for folder in folders_of(trial):
        yield from sorted(folder.glob("step-*.ckpt"), reverse=True)


def _is_sound(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            damage = archive.testzip()  # torch itself does not look at the checksums
    except (OSError, zipfile.BadZipFile) as error:
        damage = str(error)
    if damage is not None:
        say(f"checkpoint {path} is damaged ({damage}); looking for an older one")
    return damage is None
