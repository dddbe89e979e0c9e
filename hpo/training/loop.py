"""The training loop of a trial: epochs, evaluation, checkpoints, reports, in this order.

A checkpoint is written before its report, so the attempt that follows a lost worker can repeat
the report and get the same verdict. On a CPU a resumed training equals an uninterrupted one to
the bit.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from hpo.objective import Trial, TrialPruned, TrialReleased
from hpo.training.batches import Batch, count_samples, split_batch
from hpo.training.checkpoint import Checkpoints, say
from hpo.training.data import Shuffle, source_of
from hpo.training.divergence import DivergenceWatch, check_metrics
from hpo.training.memory import failing_out_of_memory
from hpo.training.metrics import SampleMeans
from hpo.training.options import TrainingOptions
from hpo.training.precision import Precision, StepResult, check_weights
from hpo.training.progress import Progress
from hpo.training.recipe import Recipe
from hpo.training.seeds import (
    make_deterministic,
    preserved_rng,
    rng_state,
    seed_stream,
    set_rng_state,
)


class TrainingObjective(Recipe):
    """An objective made of pieces: write the abstract methods and call it with a trial."""

    def __call__(self, trial: Trial) -> None:
        """Trains and reports once per epoch; the study's value rule picks the trial's value."""
        failing_out_of_memory(lambda: Training(self, trial).train(), torch.device(trial.device))


class Training:
    """One attempt of a trial: what it holds and what it does."""

    def __init__(
        self, recipe: Recipe, trial: Trial, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.recipe, self.trial, self._clock = recipe, trial, clock
        params = recipe.params_of(trial)
        self.options = TrainingOptions.of(params)
        self.device = torch.device(trial.device)
        if self.options.deterministic:
            make_deterministic()
        self.precision = Precision(
            self.options.precision, self.device, allow_slow=self.options.allow_slow
        )
        # The same seed in every trial: a split of its own would leak into the comparison.
        seed_stream("every trial", "data")
        split = recipe.data(params)
        self._train_data, self._valid_data = source_of(split.train), source_of(split.valid)
        seed_stream(trial.seed, "init")
        self.model = recipe.model(params).to(self.device)
        check_weights(self.model)
        self.forward = self.precision.forward(self.model)
        self.optimizer = recipe.optimizer(self.model.parameters(), params)
        self.scheduler = recipe.scheduler(self.optimizer, params)
        seed_stream(trial.seed, "dropout")
        self.watch = DivergenceWatch(self.precision)
        self.progress = Progress()
        self.checkpoints = Checkpoints(
            trial.checkpoint_dir, trial.resume_dirs, fingerprint=self._fingerprint()
        )
        self._checkpointed_at = clock()

    def train(self) -> None:
        """Trains to the last epoch, from the newest checkpoint where there is one.

        Raises TrialPruned, TrialReleased after a checkpoint, and TrialFailed when it diverged.
        """
        try:
            if self._resume():
                self._report_last()
            while self.progress.epochs < self.options.epochs:
                self._one_epoch()
                self._report_last()
        finally:
            self._set_user_attrs()

    def train_epoch(self) -> float:
        """One pass over the training data; the mean loss over its samples."""
        means = SampleMeans()
        shuffle = Shuffle(seed=self.trial.seed, epoch=self.progress.epochs)
        for batch in self._train_data.batches(self.options.batch_size, self.device, shuffle):
            loss, result = self.train_step(batch)
            self.watch.after_step(loss, result)
            if result.stepped and self.scheduler is not None:
                self.scheduler.step()
            means.add_mean("loss", loss, count_samples(batch))
        self.watch.after_epoch()
        return means.result()["loss"]

    def train_step(self, batch: Batch) -> tuple[torch.Tensor, StepResult]:
        """One optimizer step; micro-batches weigh by their samples, so the last may be short."""
        self.optimizer.zero_grad(set_to_none=True)
        n_samples = count_samples(batch)
        mean_loss = torch.zeros((), device=self.device)
        for part in split_batch(batch, self.options.micro_batch):
            weighted = self.recipe.step(self.forward, part) * (count_samples(part) / n_samples)
            self.precision.backward(weighted)
            mean_loss += weighted.detach()
        result = self.precision.step(
            self.optimizer,
            clip_norm=self.options.clip_norm,
            measure=self.watch.needs_grad_norm,
        )
        return mean_loss, result

    def evaluate(self) -> dict[str, float]:
        """The metrics on the validation data; changes nothing."""
        size = self.options.eval_batch_size or self.options.micro_batch or self.options.batch_size
        with evaluating(self.model), preserved_rng():
            batches = self._valid_data.batches(size, self.device)
            return dict(self.recipe.evaluate(self.forward, batches))

    def _one_epoch(self) -> None:
        started_at = self._clock()
        train_loss = self.train_epoch()
        trained_at = self._clock()
        metrics = self.evaluate()
        self.progress.n_samples += len(self._train_data)
        self.progress.train_seconds += trained_at - started_at
        self.progress.seconds += self._clock() - started_at
        value = self._value(metrics)
        self.progress.record(value, {**metrics, "train_loss": train_loss}, self.trial.direction)
        if self._clock() - self._checkpointed_at >= self.options.checkpoint_seconds:
            self._write_checkpoint()

    def _value(self, metrics: dict[str, float]) -> float:
        if self.recipe.metric not in metrics:
            raise ValueError(
                f"the metric {self.recipe.metric!r} is none of those that evaluate() gives: "
                f"{', '.join(metrics)}"
            )
        return metrics.pop(self.recipe.metric)

    def _report_last(self) -> None:
        last = self.progress.history[-1]
        step, value, metrics = last["step"], last["value"], last["metrics"]
        self.trial.report(value, step, **metrics)
        self._note_answers()
        # The loss as well: an accuracy stays finite when every output is nan.
        check_metrics(step, {"loss": metrics.get("loss", 0.0), self.recipe.metric: value})
        if self.trial.should_prune():
            raise TrialPruned(f"pruned after step {step}")
        if self.trial.should_stop and self.progress.epochs < self.options.epochs:
            self._write_checkpoint()
            raise TrialReleased(f"released after step {step}")

    def _write_checkpoint(self) -> None:
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "scaler": self.precision.state_dict(),
            "rng": rng_state(),
            "skipped": [self.watch.skipped, self.watch.skipped_in_row],
            "progress": asdict(self.progress),
        }
        self.checkpoints.write(self.progress.history[-1]["step"], state)
        self._checkpointed_at = self._clock()

    def _resume(self) -> bool:
        found = self.checkpoints.load()
        if found is None:
            return False
        step, state = found
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        self.precision.load_state_dict(state["scaler"])
        self.watch.skipped, self.watch.skipped_in_row = state["skipped"]
        self.progress = Progress(**state["progress"])
        set_rng_state(state["rng"])
        say(f"resuming after step {step}")
        self.trial.start(step)
        self._repeat_reports()
        return True

    def _repeat_reports(self) -> None:
        """Makes those before the last again that may have died with the attempt before."""
        for entry in self.progress.history[self.progress.answered_step + 1 : -1]:
            self.trial.report(entry["value"], entry["step"], **entry["metrics"])
        self._note_answers()

    def _note_answers(self) -> None:
        self.progress.answered_step = max(self.progress.answered_step, self.trial.answered_step)

    def _fingerprint(self) -> dict[str, str]:
        kind = type(self.recipe)
        return {
            "objective": f"{kind.__module__}:{kind.__qualname__}",
            "params": json.dumps(self.trial.params, sort_keys=True),
            "precision": self.precision.name,
            "torch": torch.__version__.partition(".")[0],
        }

    def _set_user_attrs(self) -> None:
        attrs: dict[str, Any] = {
            **self.progress.user_attrs(),
            "precision": self.precision.name,
            "skipped_steps": self.watch.skipped,
        }
        for name, value in attrs.items():
            self.trial.set_user_attr(name, value)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; each module gets back the mode that it had."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, is_training in modes:
            module.training = is_training
