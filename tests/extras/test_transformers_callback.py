"""The Trainer callback with the real packages: it reports, prunes, pauses, and goes on."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from hpo.objective import Trial, TrialFailed, TrialPruned, TrialReleased
from hpo.trial import Reason, Verdict
from tests.unit.training.conftest import RecordingLink

EXTRA = "needs the extra: make test-integrations"
transformers = pytest.importorskip("transformers", reason=EXTRA)
pytest.importorskip("accelerate", reason=EXTRA)
from hpo.training.integrations.transformers import HpoTrainerCallback  # noqa: E402  # after the question

N_EPOCHS, N_BATCHES = 4, 6
pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning:transformers", "ignore::UserWarning:torch", "ignore::FutureWarning"
)


def sentences(n_samples: int, seed: int) -> list[dict[str, Any]]:
    """Numbers for words; the first decides the label."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(5, 50, (n_samples, 8), generator=generator)
    return [{"input_ids": row, "labels": int(row[0] > 25)} for row in words]


def tiny_bert() -> Any:
    """From scratch: nothing is downloaded."""
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
    )
    return transformers.BertForSequenceClassification(config)


class Attempt:
    """One attempt of a trial: `fit` trains, the rest is what it left behind."""

    def __init__(
        self,
        folder: Path,
        *,
        verdicts: Mapping[int, Verdict] | None = None,
        resume: tuple[Path, ...] = (),
        monitor: str = "eval_loss",
        **arguments: Any,
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
        self.callback = HpoTrainerCallback(self.trial, monitor=monitor)
        torch.manual_seed(0)  # what a trial's process begins with
        self.model = tiny_bert()
        self.arguments = {"save_strategy": "epoch", "learning_rate": 1e-2, **arguments}

    def fit(self, *callbacks: Any) -> Attempt:
        arguments = transformers.TrainingArguments(
            output_dir=str(self.trial.checkpoint_dir),
            num_train_epochs=N_EPOCHS,
            per_device_train_batch_size=16,
            eval_strategy="epoch",
            logging_strategy="no",
            save_total_limit=2,
            seed=self.trial.seed,
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
            **self.arguments,
        )
        self.trainer = transformers.Trainer(
            model=self.model,
            args=arguments,
            train_dataset=sentences(90, 1),
            eval_dataset=sentences(40, 2),
            callbacks=[self.callback, *callbacks],
        )
        self.trainer.train(resume_from_checkpoint=self.callback.checkpoint)
        return self


class CutOff(transformers.TrainerCallback):  # type: ignore[misc]  # untyped where it is not installed
    """Ends the training as a crash does."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            raise RuntimeError("cut off")


def assert_same_weights(left: Attempt, right: Attempt) -> None:
    pairs = zip(left.model.parameters(), right.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Attempt:
    """A training that nothing interrupts."""
    return Attempt(tmp_path_factory.mktemp("whole")).fit()


def test_it_reports_once_an_epoch_with_rising_steps(whole: Attempt) -> None:
    assert whole.link.calls == [("report", step) for step in range(N_EPOCHS)]
    assert all("eval_runtime" in report.metrics for report in whole.link.reports)
    assert len({value for _, value in whole.link.values}) == N_EPOCHS


def test_an_evaluation_of_the_user_s_own_is_no_report(whole: Attempt) -> None:
    whole.trainer.evaluate()
    assert len(whole.link.reports) == N_EPOCHS


@pytest.mark.parametrize("pause_after", [0, 2])
def test_a_paused_training_goes_on_to_the_bit(
    whole: Attempt, tmp_path: Path, pause_after: int
) -> None:
    first = Attempt(tmp_path / "1", verdicts={pause_after: Verdict.PAUSE})
    with pytest.raises(TrialReleased, match=f"after step {pause_after}"):
        first.fit()
    second = Attempt(tmp_path / "2", resume=(tmp_path / "1",)).fit()
    assert second.link.calls[0] == ("start", pause_after)
    assert first.link.values + second.link.values[1:] == whole.link.values
    assert second.link.values[0] == first.link.values[-1]  # its answer may have got lost
    assert_same_weights(second, whole)


@pytest.mark.parametrize("damage", ["nothing", "no curve", "cut short"])
def test_a_training_that_was_cut_off_goes_on_from_the_newest_sound_checkpoint(
    whole: Attempt, tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first = Attempt(tmp_path / "1")
    with pytest.raises(RuntimeError, match="cut off"):
        first.fit(CutOff(3 * N_BATCHES + 2))
    newest = tmp_path / "1" / f"checkpoint-{3 * N_BATCHES}"
    if damage == "no curve":
        (newest / "hpo.json").unlink()
    elif damage == "cut short":
        with (newest / "optimizer.pt").open("r+b") as file:
            file.truncate(100)
    second = Attempt(tmp_path / "2", resume=(tmp_path / "1",)).fit()
    resumed_from = 2 if damage == "nothing" else 1
    assert ("is damaged" in capsys.readouterr().out) is (damage != "nothing")
    assert second.link.calls[0] == ("start", resumed_from)
    assert second.link.values == whole.link.values[resumed_from:]
    assert_same_weights(second, whole)


def test_without_a_checkpoint_it_starts_anew(tmp_path: Path, whole: Attempt) -> None:
    with pytest.raises(RuntimeError, match="cut off"):
        Attempt(tmp_path / "1").fit(CutOff(2))
    shutil.rmtree(tmp_path / "1", ignore_errors=True)
    second = Attempt(tmp_path / "2", resume=(tmp_path / "1",)).fit()
    assert second.link.values == whole.link.values
    assert ("start", 0) not in second.link.calls


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


def test_it_reports_and_prunes_where_nothing_is_saved(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, verdicts={0: Verdict.PAUSE, 2: Verdict.PRUNE}, save_strategy="no")
    with pytest.raises(TrialPruned, match="after step 2"):
        attempt.fit()  # the pause has no checkpoint to go on from, so it goes on
    assert attempt.link.calls == [("report", 0), ("report", 1), ("report", 2)]


def test_a_late_verdict_prunes_at_the_next_batch(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    attempt.link.late = Verdict.PRUNE
    with pytest.raises(TrialPruned):
        attempt.fit()
    assert attempt.link.calls == []


def test_a_loss_that_is_not_finite_ends_the_trial_as_diverged(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    torch.nn.init.constant_(attempt.model.classifier.weight, float("nan"))
    with pytest.raises(TrialFailed) as caught:
        attempt.fit()
    assert caught.value.reason is Reason.DIVERGED
    assert attempt.link.calls == [("report", 0)]


def test_an_unknown_metric_is_named_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match=r"no metric 'eval_f1', it has: .*eval_loss"):
        Attempt(tmp_path, monitor="eval_f1").fit()
