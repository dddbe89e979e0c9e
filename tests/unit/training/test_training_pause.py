"""A pause in the middle of an epoch: at the next batch, and as if it had not been."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hpo.objective import TrialPruned
from hpo.training import Checkpoints, Loader, Stream, Training
from hpo.trial import Verdict

ADAMW = {"optimizer": "AdamW", "optimizer_options": {"lr": 0.01}}
SETTINGS: dict[str, Any] = {
    "dropout": 0.4,
    "scheduler": ("CosineAnnealingLR", {"T_max": 24}),
    "ema_decay": 0.9,
    "clip_norm": 1.0,
}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("optimizer", [{}, ADAMW], ids=["sgd", "adamw"])
@pytest.mark.parametrize("n_batches", [1, 4, 6, 11, 24])
def test_property_03_a_training_cut_within_an_epoch_equals_an_uninterrupted_one_to_the_bit(
    kit: Any, precision: str, optimizer: Any, n_batches: int
) -> None:
    """Six batches an epoch, so 6 and 24 lie between the last batch and its evaluation."""
    settings = {**SETTINGS, **optimizer, "precision": precision}
    whole, whole_link = kit.trial(**settings)
    kit.Tiny()(whole)
    _, second, link = kit.train_in_two_within(kit.Tiny(), n_batches, **settings)
    kit.assert_same(kit.last_state(second), kit.last_state(whole))
    n_before = max(0, (n_batches - 1) // 6 - 1)  # the last step reported before is said again
    assert link.values == whole_link.values[n_before:]
    assert [r.metrics for r in link.reports] == [r.metrics for r in whole_link.reports[n_before:]]


@pytest.mark.parametrize(
    ("n_batches", "name", "start"),
    [
        (1, "start-batch-00000001.pt", None),
        (6, "start-batch-00000006.pt", None),
        (7, "step-00000000-batch-00000001.pt", 0),
        (23, "step-00000002-batch-00000005.pt", 2),
    ],
)
def test_a_pause_takes_effect_at_the_next_batch(
    kit: Any, n_batches: int, name: str, start: int | None, capsys: Any
) -> None:
    first, _, link = kit.train_in_two_within(kit.Tiny(), n_batches, checkpoint_seconds=1000)
    assert names(first.checkpoint_dir) == [name]
    expected = [] if start is None else [("start", start)]
    assert [call for call in link.calls if call[0] == "start"] == expected
    assert f"and {n_batches % 6 or 6} batches" in capsys.readouterr().out


def test_a_checkpoint_within_an_epoch_serves_a_worker_that_is_lost(kit: Any) -> None:
    """Nobody asked for a pause: the process is gone after its twelfth batch."""
    whole, whole_link = kit.trial(dropout=0.3)
    kit.Tiny()(whole)
    clock, (first, _) = kit.HandClock(), kit.trial(dropout=0.3, checkpoint_seconds=5)
    objective = kit.Tiny()
    training = Training(clock.ticking(objective), first, clock=clock)
    step = objective.step

    def lost(forward: Any, batch: Any) -> torch.Tensor:
        if clock.now == 11:
            raise KeyboardInterrupt
        return step(forward, batch)

    objective.step = lost
    with pytest.raises(KeyboardInterrupt):
        training.train()
    assert names(first.checkpoint_dir) == [
        "start-batch-00000005.pt",
        "step-00000000-batch-00000004.pt",
    ]
    second, link = kit.trial(dropout=0.3, resume_dirs=(first.checkpoint_dir,))
    kit.Tiny()(second)
    kit.assert_same(kit.last_state(second), kit.last_state(whole))
    assert link.values == whole_link.values


@pytest.mark.parametrize("verdict", [Verdict.PRUNE, Verdict.STOP])
def test_a_verdict_that_comes_late_ends_the_trial_within_the_epoch(
    kit: Any, verdict: Verdict
) -> None:
    objective, (trial, link) = kit.Tiny(), kit.trial()
    step, seen = objective.step, []

    def told(forward: Any, batch: Any) -> torch.Tensor:
        seen.append(batch)
        if len(seen) == 9:
            link.late = verdict
        return step(forward, batch)

    objective.step = told
    with pytest.raises(TrialPruned):
        objective(trial)
    assert len(seen) == 9
    assert [report.step for report in link.reports] == [0]


class Jittering(torch.utils.data.Dataset[Any]):
    """Samples with noise of their own at each reading."""

    def __init__(self, tensors: Any) -> None:
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: int) -> Any:
        return self.tensors[0][index] + torch.randn(6) / 10, self.tensors[1][index]


@pytest.mark.parametrize("n_workers", [0, 2])
def test_a_dataset_with_its_own_randomness_goes_on_within_an_epoch(
    kit: Any, n_workers: int
) -> None:
    class Objective(kit.Tiny):  # type: ignore[name-defined, misc]  # a fixture's class
        def data(self, params: Any) -> Any:
            split = super().data(params)
            return type(split)(
                train=Loader(Jittering(split.train), n_workers=n_workers), valid=split.valid
            )

    whole, _ = kit.trial(dropout=0.3, epochs=2)
    Objective()(whole)
    _, second, _ = kit.train_in_two_within(Objective(), 8, dropout=0.3, epochs=2)
    kit.assert_same(kit.last_state(second), kit.last_state(whole))


@pytest.mark.parametrize("n_workers", [0, 2])
def test_property_03_a_stream_with_a_shuffle_buffer_goes_on_within_an_epoch(
    kit: Any, n_workers: int
) -> None:
    class Objective(kit.Tiny):  # type: ignore[name-defined, misc]  # a fixture's class
        def data(self, params: Any) -> Any:
            split = super().data(params)
            records = list(zip(*split.train, strict=True))
            files = [records[first : first + 20] for first in range(0, len(records), 20)]
            stream = Stream(files, iter, buffer_size=13, n_workers=n_workers)
            return type(split)(train=stream, valid=split.valid)

    whole, whole_link = kit.trial(dropout=0.3, epochs=2)
    Objective()(whole)
    _, second, link = kit.train_in_two_within(Objective(), 9, dropout=0.3, epochs=2)
    kit.assert_same(kit.last_state(second), kit.last_state(whole))
    assert link.values == whole_link.values


def test_the_newest_position_comes_first(tmp_path: Path) -> None:
    writer = Checkpoints(tmp_path, fingerprint={})
    positions = [(None, 3), (None, 12), (0, 0), (0, 4), (0, 11), (1, 0)]
    for step, batch in positions:
        writer.write(step, {"at": [step, batch]}, batch=batch)
        assert writer.load() == (step, {"at": [step, batch]})
    assert len(names(tmp_path)) == 2
