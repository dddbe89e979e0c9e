"""The model that a training leaves: the weights whose value is the trial's, resumed or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hpo.objective import Trial, TrialPruned
from hpo.study import ValueRule
from hpo.training import Training
from hpo.trial import Verdict

EMA = {"ema_decay": 0.5}
# A rate at which the best accuracy is not the last one.
ROUGH = {"optimizer_options": {"lr": 1.5}, "epochs": 6}


def model_of(trial: Trial) -> dict[str, Any]:
    (path,) = trial.checkpoint_dir.glob("model.*")
    document: dict[str, Any] = torch.load(path, weights_only=True)
    assert path.name == f"model.step-{document['step']}.pt"
    return document


def accuracy_of(kit: Any, document: dict[str, Any]) -> float:
    """What a user would do with the file."""
    recipe = kit.Tiny()
    model = recipe.model(document["params"])
    model.load_state_dict(document["state_dict"])
    model.eval()
    inputs, target = recipe.data(document["params"]).valid
    with torch.no_grad():
        return float((model(inputs).argmax(dim=1) == target).float().mean())


def with_rule(trial: Trial, rule: ValueRule) -> Trial:
    trial.value_rule = rule
    return trial


@pytest.mark.parametrize("rule", list(ValueRule))
@pytest.mark.parametrize("ema", [{}, EMA, {**EMA, "evaluate_ema": False}])
def test_the_model_has_the_trials_value(kit: Any, rule: ValueRule, ema: dict[str, Any]) -> None:
    trial, link = kit.trial(**ROUGH, **ema)
    kit.Tiny()(with_rule(trial, rule))
    values = [value for _, value in link.values]
    if not ema:
        assert max(values) > values[-1], "or the rules would not differ"
    wanted = values[-1] if rule is ValueRule.LAST else max(values)
    document = model_of(trial)
    assert document["value"] == wanted == values[document["step"]]
    assert accuracy_of(kit, document) == pytest.approx(wanted)
    assert all(w.dtype == torch.float32 for w in document["state_dict"].values())


@pytest.mark.parametrize("rule", list(ValueRule))
@pytest.mark.parametrize("pause_after", [0, 2, 4])
def test_a_resumed_attempt_leaves_the_same_model(
    kit: Any, rule: ValueRule, pause_after: int
) -> None:
    whole, _ = kit.trial(**ROUGH)
    kit.Tiny()(with_rule(whole, rule))
    first, _ = kit.trial(**ROUGH, verdicts={pause_after: Verdict.PAUSE})
    with pytest.raises(Exception, match="released"):
        kit.Tiny()(with_rule(first, rule))
    second, _ = kit.trial(**ROUGH, resume_dirs=(first.checkpoint_dir,))
    kit.Tiny()(with_rule(second, rule))
    kit.assert_same(model_of(second), model_of(whole))


def test_an_attempt_that_only_had_to_complete_leaves_it_too(kit: Any) -> None:
    """The attempt before was lost between its last checkpoint and its outcome."""
    first, _ = kit.trial(**ROUGH)
    kit.Tiny()(with_rule(first, ValueRule.BEST))
    document = model_of(first)
    second, _ = kit.trial(**ROUGH, resume_dirs=(first.checkpoint_dir,))
    kit.Tiny()(with_rule(second, ValueRule.BEST))
    kit.assert_same(model_of(second), document)


def test_a_pruned_trial_leaves_none(kit: Any) -> None:
    trial, _ = kit.trial(verdicts={1: Verdict.PRUNE})
    with pytest.raises(TrialPruned):
        kit.Tiny()(trial)
    assert list(trial.checkpoint_dir.glob("model.*")) == []


def test_a_study_that_keeps_none_pays_for_none(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trial, _ = kit.trial()
    trial.keeps_model = False
    training = Training(kit.Tiny(), with_rule(trial, ValueRule.BEST))
    monkeypatch.setattr(training.learner, "evaluated_weights", pytest.fail)
    training.train()
    assert list(trial.checkpoint_dir.glob("model.*")) == []


def test_by_the_last_rule_weights_are_copied_once(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial, _ = kit.trial()
    training = Training(kit.Tiny(), trial)
    copy, copies = training.learner.evaluated_weights, []
    monkeypatch.setattr(training.learner, "evaluated_weights", lambda: copies.append(1) or copy())
    training.train()
    assert len(copies) == 1


class TestSaving:
    """`trial.save_model`, for objectives with a loop of their own."""

    def test_the_last_one_counts(self, kit: Any) -> None:
        trial, _ = kit.trial()
        trial.save_model(lambda path: path.write_text("first"), step=1)
        trial.save_model(lambda path: path.write_text("second"), suffix=".txt")
        (path,) = trial.checkpoint_dir.iterdir()
        assert (path.name, path.read_text()) == ("model.txt", "second")

    def test_one_that_fails_leaves_the_one_before(self, kit: Any) -> None:
        trial, _ = kit.trial()
        trial.save_model(lambda path: path.write_text("whole"))

        def fail(path: Path) -> None:
            path.write_text("half")
            raise OSError("disk full")

        with pytest.raises(OSError, match="disk full"):
            trial.save_model(fail)
        (path,) = trial.checkpoint_dir.iterdir()
        assert path.read_text() == "whole"
