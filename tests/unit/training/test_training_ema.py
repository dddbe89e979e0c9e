"""Averaged weights: only of real steps, a part of the checkpoint, evaluated when asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hpo.objective import TrialFailed
from hpo.training import Ema, Training


def averages(training: Training) -> dict[str, Any]:
    assert training.learner.ema is not None
    state = training.learner.ema.state_dict()
    return {name: tensor.clone() for name, tensor in state["averages"].items()}


@pytest.mark.parametrize("decay", [0.5, 0.99])
def test_the_average_is_that_of_the_formula(decay: float) -> None:
    model = nn.Linear(3, 2)
    ema, expected = Ema(model, decay), model.weight.detach().clone()
    for update in range(1, 30):
        with torch.no_grad():
            model.weight.copy_(torch.randn(2, 3))
        ema.update()
        kept = min(decay, update / (9 + update))  # the first ones count for more
        expected = kept * expected + (1 - kept) * model.weight.detach()
    torch.testing.assert_close(ema.state_dict()["averages"]["weight"], expected)


@pytest.mark.parametrize("fused", [False, True])
def test_a_skipped_step_leaves_the_average_alone(kit: Any, fused: bool) -> None:
    class Overflowing(kit.Tiny):  # type: ignore[name-defined, misc]  # a fixture's class
        def step(self, forward: Any, batch: Any) -> torch.Tensor:
            return super().step(forward, batch) * float("inf")

    settings = {"precision": "fp16", "allow_slow": True, "ema_decay": 0.9}
    options = {"lr": 0.1, "fused": fused}
    training = Training(Overflowing(), kit.trial(optimizer_options=options, **settings)[0])
    before = averages(training)
    with pytest.raises(TrialFailed):
        training.train()
    kit.assert_same(averages(training), before)
    assert training.learner.ema.n_updates == 0


def test_each_real_step_is_one_update(kit: Any) -> None:
    training = Training(kit.Tiny(), kit.trial(ema_decay=0.9, epochs=2)[0])
    training.train()
    assert training.learner.ema.n_updates == 12


def test_an_average_changes_nothing_about_the_training(kit: Any) -> None:
    plain, _ = kit.trial(dropout=0.3)
    kit.Tiny()(plain)
    averaged, _ = kit.trial(dropout=0.3, ema_decay=0.9)
    kit.Tiny()(averaged)
    states = [kit.last_state(trial) for trial in (plain, averaged)]
    kit.assert_same(dict(states[0]["model"]), dict(states[1]["model"]))
    kit.assert_same(states[0]["optimizer"], states[1]["optimizer"])


@pytest.mark.parametrize("evaluate_ema", [True, False])
def test_the_declared_weights_are_evaluated(kit: Any, evaluate_ema: bool) -> None:
    settings = {"ema_decay": 0.999, "evaluate_ema": evaluate_ema, "epochs": 1}
    training = Training(kit.Tiny(), kit.trial(**settings)[0])
    training.train_epoch()
    found = training.evaluate()
    model = training.learner.model
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    if evaluate_ema:
        model.load_state_dict(averages(training))
    inputs, target = kit.Tiny().data({}).valid
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model.eval()(inputs), target).item()
    assert found["loss"] == pytest.approx(loss, abs=1e-6)
    model.load_state_dict(before)


def test_evaluation_gives_the_weights_back_to_the_bit(kit: Any) -> None:
    class Failing(kit.Tiny):  # type: ignore[name-defined, misc]  # a fixture's class
        def evaluate(self, forward: Any, batches: Any) -> Any:
            raise OSError("data gone")

    training = Training(Failing(), kit.trial(ema_decay=0.9)[0])
    training.train_epoch()
    before = {name: tensor.clone() for name, tensor in training.learner.model.state_dict().items()}
    ema = averages(training)
    with pytest.raises(OSError, match="data gone"):
        training.evaluate()
    kit.assert_same(dict(training.learner.model.state_dict()), before)
    kit.assert_same(averages(training), ema)
    training.train_epoch()  # the optimizer still has the parameters it began with
    assert not torch.equal(training.learner.model.state_dict()["0.weight"], before["0.weight"])


@pytest.mark.parametrize("pause_after", [0, 2])
def test_the_average_goes_on_where_it_was(kit: Any, pause_after: int) -> None:
    whole, whole_link = kit.trial(ema_decay=0.9, dropout=0.2)
    kit.Tiny()(whole)
    resumed, _, link = kit.train_in_two(kit.Tiny(), pause_after, ema_decay=0.9, dropout=0.2)
    state = kit.last_state(resumed)
    kit.assert_same(state, kit.last_state(whole))
    assert state["ema"]["n_updates"] == 24
    assert link.values == whole_link.values[pause_after:]


def test_batch_statistics_are_those_of_the_model(kit: Any) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    ema = Ema(model, 0.9)
    model(torch.randn(8, 3))
    statistics = model[1].running_mean.clone()
    with ema.in_place():
        assert torch.equal(model[1].running_mean, statistics)
    assert not any("running" in name for name in ema.state_dict()["averages"])
