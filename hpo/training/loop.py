"""The training loop of a trial: epochs, evaluation, checkpoints, reports, in this order.

A checkpoint is written before its report, so the attempt that follows a lost worker can repeat
the report and get the same verdict. On a CPU a resumed training equals an uninterrupted one to
the bit, wherever in an epoch it was cut off.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import torch

from hpo.objective import Trial, TrialPruned, TrialReleased
from hpo.study import ValueRule
from hpo.training.batches import Batch, count_samples
from hpo.training.checkpoint import Checkpoints, say
from hpo.training.data import source_of
from hpo.training.divergence import DivergenceWatch, check_metrics
from hpo.training.forward import noting_compilation
from hpo.training.learner import Learner
from hpo.training.memory import failing_out_of_memory, memory_attrs
from hpo.training.metrics import SampleMeans
from hpo.training.model_file import model_document
from hpo.training.options import TrainingOptions
from hpo.training.progress import Progress
from hpo.training.recipe import Recipe
from hpo.training.seeds import (
    make_deterministic,
    preserved_rng,
    rng_state,
    seed_stream,
    set_rng_state,
)
from hpo.training.source import Shuffle


class TrainingObjective(Recipe):
    """An objective made of pieces: write the abstract methods and call it with a trial."""

    def __call__(self, trial: Trial) -> None:
        """Trains and reports once per epoch; the study's value rule picks the trial's value."""
        failing_out_of_memory(lambda: Training(self, trial).train(), torch.device(trial.device))


class Training:
    """One attempt of a trial: what it holds and what it does."""

    def __init__(
        self,
        recipe: Recipe,
        trial: Trial,
        *,
        clock: Callable[[], float] = time.perf_counter,
        halves_batches: bool | None = None,
    ) -> None:
        self.recipe, self.trial, self._clock = recipe, trial, clock
        self._params = params = recipe.params_of(trial)
        self.options = TrainingOptions.of(params)
        self.device = torch.device(trial.device)
        if self.options.deterministic:
            make_deterministic()
        # The same seed in every trial: a split of its own would leak into the comparison.
        seed_stream("every trial", "data")
        split = recipe.data(params)
        self.train_data = source_of(split.train, self.options)
        self.valid_data = source_of(split.valid, self.options)
        seed_stream(trial.seed, "init")
        self.learner = Learner(
            recipe, params, self.options, self.device, halves_batches=halves_batches
        )
        seed_stream(trial.seed, "dropout")
        self.watch = DivergenceWatch(self.learner.precision)
        self.progress, self._means = Progress(), SampleMeans()
        self._best_weights: dict[str, Any] | None = None
        self.checkpoints = Checkpoints(
            trial.checkpoint_dir, trial.resume_dirs, fingerprint=self._fingerprint()
        )
        self._checkpointed_at = self._lap_at = clock()

    def train(self) -> None:
        """Trains to the last epoch, from the newest checkpoint where there is one.

        Raises TrialPruned, TrialReleased after a checkpoint, and TrialFailed when it diverged.
        """
        with ExitStack() as stack:
            stack.callback(self._set_user_attrs)
            if self.options.compile:  # it may take minutes, in which nothing can be reported
                stack.enter_context(noting_compilation(self.trial.set_uncounted))
            if self._resume() and self.progress.history:
                self._report_last()
            while self.progress.epochs < self.options.epochs:
                self._one_epoch()
                self._report_last()
            self._save_model()

    def train_epoch(self) -> float:
        """The rest of a pass over the training data; the mean loss over all of its samples."""
        progress, means, watch, learner = self.progress, self._means, self.watch, self.learner
        total: torch.Tensor | float = 0.0
        clock = self._clock
        asked_at = clock()
        for batch in self._epoch_batches():
            progress.wait_seconds += clock() - asked_at
            n_samples = count_samples(batch)
            loss, result = learner.train_step(batch, n_samples, measure=watch.looks)
            total = means.add_mean("loss", loss, n_samples)
            watch.after_step(total, result)
            progress.batches += 1
            progress.n_samples += n_samples
            asked_at = self._between_batches()
        progress.wait_seconds += clock() - asked_at
        watch.after_epoch(total)
        progress.batches, self._means = 0, SampleMeans()
        return means.result()["loss"]

    def evaluate(self) -> dict[str, float]:
        """The metrics on the validation data; changes nothing."""
        with preserved_rng():
            return self.learner.evaluate(self.valid_data)

    def _one_epoch(self) -> None:
        self._lap_at = self._clock()
        train_loss = self.train_epoch()
        self._lap(training=True)
        metrics = self.evaluate()
        self._lap(training=False)
        value = self._value(metrics)
        self.progress.record(value, {**metrics, "train_loss": train_loss}, self.trial.direction)
        if self._keeps_best and self.progress.is_best_last:
            self._best_weights = self.learner.evaluated_weights()
        if self._clock() - self._checkpointed_at >= self.options.checkpoint_seconds:
            self._write_checkpoint()

    def _epoch_batches(self) -> Iterator[Batch]:
        shuffle = Shuffle(seed=self.trial.seed, epoch=self.progress.epochs)
        return self.train_data.batches(
            self.options.batch_size, self.device, shuffle, start=self.progress.batches
        )

    def _between_batches(self) -> float:
        """What may have to be done there, in few calls: on a small net each one shows."""
        now, every = self._clock(), self.options.checkpoint_seconds
        if every > 0 and now - self._checkpointed_at >= every:
            self._lap(training=True)
            self._write_checkpoint()
            now = self._clock()
        if self.trial.is_interrupted:  # by a verdict that came late
            if self.trial.should_prune():
                raise TrialPruned(f"pruned in epoch {self.progress.epochs}")
            self._lap(training=True)
            self._release()
        return now

    def _lap(self, *, training: bool) -> None:
        elapsed = self._clock() - self._lap_at
        self._lap_at += elapsed
        self.progress.seconds += elapsed
        if training:
            self.progress.train_seconds += elapsed

    def _value(self, metrics: dict[str, float]) -> float:
        if self.recipe.metric not in metrics:
            raise ValueError(
                f"the metric {self.recipe.metric!r} is none of those that evaluate() gives: "
                f"{', '.join(metrics)}; return it from the method metrics()"
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
            self._release()

    def _release(self) -> None:
        self._write_checkpoint()
        raise TrialReleased(f"released {self._position()}")

    def _write_checkpoint(self) -> None:
        state = {
            **self.learner.state_dict(),
            "rng": rng_state(),
            "watch": self.watch.state_dict(),
            "progress": asdict(self.progress),
            "means": self._means.state_dict(),
            "best_weights": self._best_weights,
        }
        self.checkpoints.write(self.progress.last_step, state, batch=self.progress.batches)
        self._checkpointed_at = self._lap_at = self._clock()

    @property
    def _keeps_best(self) -> bool:
        """Whether the weights of the best step are held until the end, and in checkpoints."""
        return self.trial.keeps_model and self.trial.value_rule is ValueRule.BEST

    def _save_model(self) -> None:
        """Writes the weights whose value is the trial's: of the best step or of the last."""
        progress = self.progress
        if not self.trial.keeps_model:
            return
        if self._keeps_best:
            assert progress.best is not None, "there was an epoch"
            step, weights = progress.best["step"], self._best_weights
        else:
            step, weights = progress.last_step, self.learner.evaluated_weights()
        if weights is None or step is None:
            return  # the checkpoint is of a time when nobody asked for models
        document = model_document(self.trial, self._params, progress.history[step], weights)
        self.trial.save_model(lambda path: torch.save(document, path), step=step)

    def _resume(self) -> bool:
        found = self.checkpoints.load()
        if found is None:
            return False
        step, state = found
        self.learner.load_state_dict(state)
        self.watch.load_state_dict(state["watch"])
        self.progress = Progress(**state["progress"])
        self._means.load_state_dict(state["means"])
        self._best_weights = state["best_weights"]
        set_rng_state(state["rng"])
        say(f"resuming {self._position()}")
        if step is not None:
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

    def _position(self) -> str:
        step, batches = self.progress.last_step, self.progress.batches
        after = "from the beginning" if step is None else f"after step {step}"
        return f"{after} and {batches} batches" if batches else after

    def _fingerprint(self) -> dict[str, str]:
        kind = type(self.recipe)
        return {
            "objective": f"{kind.__module__}:{kind.__qualname__}",
            "params": json.dumps(self.trial.params, sort_keys=True),
            "precision": self.learner.precision.name,
            "batch_size": str(self.options.batch_size),
            "ema": str(self.options.ema_decay is not None),
            "torch": torch.__version__.partition(".")[0],
        }

    def _set_user_attrs(self) -> None:
        attrs: dict[str, Any] = {
            **self.progress.user_attrs(),
            **self.watch.user_attrs(),
            **memory_attrs(self.device),
            **self.learner.user_attrs(),
        }
        for name, value in attrs.items():
            self.trial.set_user_attr(name, value)
