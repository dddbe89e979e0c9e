"""The Lightning callback with the real package: it reports, prunes, pauses, and goes on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hpo.objective import Trial, TrialFailed, TrialPruned, TrialReleased
from hpo.trial import Reason, Verdict
from tests.unit.training.conftest import RecordingLink

pl = pytest.importorskip("lightning.pytorch", reason="needs the extra: make test-integrations")
from hpo.training.integrations.lightning import HpoCallback  # noqa: E402  # after the question

N_EPOCHS = 4
# Advice about loggers, workers and processors; what is ours is an error still.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:lightning", "ignore::FutureWarning")


class Net(pl.LightningModule):  # type: ignore[misc]  # untyped where it is not installed
    """A small classifier with dropout, momentum and a schedule: all that a resume can lose."""

    def __init__(self, fail_at: int | None = None) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
        self.fail_at = fail_at

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        if self.global_step == self.fail_at:
            raise RuntimeError("cut off")
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: Any, number: int) -> None:
        output = self.net(batch[0])
        self.log("val_loss", nn.functional.cross_entropy(output, batch[1]))
        self.log("val_accuracy", (output.argmax(dim=1) == batch[1]).float().mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


def loader(n_workers: int, *, shuffle: bool) -> Any:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(90, 6, generator=generator)
    target = torch.randint(3, (90,), generator=generator)
    data = torch.utils.data.TensorDataset(inputs, target)
    return torch.utils.data.DataLoader(data, 16, shuffle=shuffle, num_workers=n_workers)


class Attempt:
    """One attempt of a trial: `fit` trains, the rest is what it left behind."""

    def __init__(
        self,
        folder: Path,
        *,
        verdicts: Mapping[int, Verdict] | None = None,
        resume: tuple[Path, ...] = (),
        monitor: str = "val_loss",
        **net: Any,
    ) -> None:
        self.link = RecordingLink(verdicts)
        self.trial = Trial(
            self.link,
            study="tiny",
            number=0,
            seed=7,
            checkpoint_dir=folder,
            resume_dirs=resume,
        )
        self.callback = HpoCallback(self.trial, monitor=monitor)
        torch.manual_seed(0)  # what a trial's process begins with
        self.model = Net(**net)

    def fit(self, n_workers: int = 0) -> Attempt:
        trainer = pl.Trainer(
            max_epochs=N_EPOCHS,
            accelerator="cpu",
            callbacks=[self.callback],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(
            self.model,
            loader(n_workers, shuffle=True),
            loader(0, shuffle=False),
            ckpt_path=self.callback.checkpoint,
        )
        return self


def assert_same_weights(left: Attempt, right: Attempt) -> None:
    pairs = zip(left.model.parameters(), right.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Attempt:
    """A training that nothing interrupts."""
    return Attempt(tmp_path_factory.mktemp("whole")).fit()


def test_it_reports_once_an_epoch_with_rising_steps(whole: Attempt) -> None:
    assert whole.link.calls == [("report", step) for step in range(N_EPOCHS)]
    assert all(report.metrics.keys() == {"val_accuracy"} for report in whole.link.reports)
    assert len({value for _, value in whole.link.values}) == N_EPOCHS
    names = sorted(path.name for path in whole.trial.checkpoint_dir.iterdir())
    assert names == ["step-00000002.ckpt", "step-00000003.ckpt"]


@pytest.mark.parametrize("n_workers", [0, 1])
@pytest.mark.parametrize("pause_after", [0, 2])
def test_a_paused_training_goes_on_to_the_bit(
    whole: Attempt, tmp_path: Path, pause_after: int, n_workers: int
) -> None:
    first = Attempt(tmp_path / "1", verdicts={pause_after: Verdict.PAUSE})
    with pytest.raises(TrialReleased, match=f"after step {pause_after}"):
        first.fit(n_workers)
    second = Attempt(tmp_path / "2", resume=(tmp_path / "1",)).fit(n_workers)
    assert second.link.calls[0] == ("start", pause_after)
    assert first.link.values + second.link.values[1:] == whole.link.values
    assert second.link.values[0] == first.link.values[-1]  # its answer may have got lost
    assert_same_weights(second, whole)


def test_a_training_that_was_cut_within_an_epoch_goes_on_from_the_last(
    whole: Attempt, tmp_path: Path
) -> None:
    first = Attempt(tmp_path / "1", fail_at=2 * 6 + 3)
    with pytest.raises(RuntimeError, match="cut off"):
        first.fit()
    second = Attempt(tmp_path / "2", resume=(tmp_path / "1",)).fit()
    assert second.link.calls[0] == ("start", 1)
    assert second.link.values == whole.link.values[1:]
    assert_same_weights(second, whole)


@pytest.mark.parametrize("damage", ["cut short", "zeros"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    whole: Attempt, tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first = Attempt(tmp_path / "1", verdicts={2: Verdict.PAUSE})
    with pytest.raises(TrialReleased):
        first.fit()
    newest = tmp_path / "1" / "step-00000002.ckpt"
    content = newest.read_bytes()
    if damage == "cut short":
        newest.write_bytes(content[: len(content) // 2])
    else:
        first_tensor = content.index(b"/data/0") + 64  # its name stands before it, and padding
        newest.write_bytes(content[:first_tensor] + bytes(64) + content[first_tensor + 64 :])
    second = Attempt(tmp_path / "2", resume=(tmp_path / "1",)).fit()
    assert "is damaged" in capsys.readouterr().out
    assert second.link.calls[0] == ("start", 1)
    assert second.link.values == whole.link.values[1:]
    assert_same_weights(second, whole)


def test_a_training_that_was_cut_before_its_last_report_makes_it(
    whole: Attempt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, last = Attempt(tmp_path / "1"), N_EPOCHS - 1
    report = first.link.report

    def cut_off(measurement: Any) -> Any:
        if measurement.step == last:
            raise RuntimeError("cut off")
        return report(measurement)

    monkeypatch.setattr(first.link, "report", cut_off)
    with pytest.raises(RuntimeError, match="cut off"):
        first.fit()
    second = Attempt(tmp_path / "2", resume=(tmp_path / "1",)).fit()
    assert second.link.calls == [("start", last), ("report", last)]
    assert second.link.values == whole.link.values[last:]
    assert_same_weights(second, whole)


def test_it_prunes_after_the_report(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, verdicts={1: Verdict.PRUNE})
    with pytest.raises(TrialPruned, match="after step 1"):
        attempt.fit()
    assert attempt.link.calls == [("report", 0), ("report", 1)]


def test_a_late_verdict_prunes_at_the_next_batch(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.link.late = Verdict.PRUNE
    with pytest.raises(TrialPruned):
        attempt.fit()
    assert attempt.link.calls == []
    assert attempt.model.global_step == 1


def test_a_pause_after_the_last_epoch_comes_too_late(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, verdicts={N_EPOCHS - 1: Verdict.PAUSE}).fit()
    assert len(attempt.link.reports) == N_EPOCHS


def test_a_loss_that_is_not_finite_ends_the_trial_as_diverged(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    nn.init.constant_(attempt.model.net[0].weight, float("nan"))
    with pytest.raises(TrialFailed) as caught:
        attempt.fit()
    assert caught.value.reason is Reason.DIVERGED
    assert attempt.link.calls == [("report", 0)]


def test_an_unknown_metric_is_named_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match=r"no metric 'loss', it has: val_accuracy, val_loss"):
        Attempt(tmp_path, monitor="loss").fit()


def test_several_processes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    callback = Attempt(tmp_path).callback
    trainer = pl.Trainer(accelerator="cpu", devices=2, strategy="ddp", logger=False)
    with pytest.raises(ValueError, match="one process and one device"):
        callback.setup(trainer, Net(), "fit")
    here = os.getpid()
    monkeypatch.setattr("os.getpid", lambda: here + 1)  # what a launcher's child sees
    alone = pl.Trainer(accelerator="cpu", devices=1, logger=False)
    with pytest.raises(ValueError, match="one process and one device"):
        callback.setup(alone, Net(), "fit")
