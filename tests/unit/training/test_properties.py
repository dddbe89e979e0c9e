"""The properties of the kit, numbered: `test_property_NN_…` in this folder, and here the rest.

1 equal to a loop by hand    9 clipping sees unscaled     17 metrics weigh samples
2 resume after an epoch     10 one unscale, None grads    18 one report an epoch
3 resume within an epoch    11 backward has no autocast   19 evaluation changes nothing
4 resume of the scaler      12 losses are fp32            20 a seed says all
5 a skip changes nothing    13 parts add up to a batch    21 streams read once
6 nor with fused kernels    14 out of memory: parts       22 kills leave whole files
7 schedules count steps     15 out of memory: the end     23 figures are measured
8 nothing is ever half      16 divergence ends a trial    24 parts are disjoint
"""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from hpo.training import Training
from objectives.digits import mlp

KINDS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9},
    "Adam": {"lr": 0.01},
    "AdamW": {"lr": 0.01},
    "RMSprop": {"lr": 0.01, "momentum": 0.9},
}
FP16 = {"precision": "fp16", "allow_slow": True}


def test_each_property_has_its_test() -> None:
    """Those that only a GPU can show as well are parts of tests/gpu/check.py."""
    sources = [path.read_text() for path in Path(__file__).parent.glob("test_*.py")]
    numbers = re.findall(r"def test_property_(\d\d)_", "\n".join(sources))
    assert sorted(set(map(int, numbers))) == list(range(1, 25))


def overflowing(kit: Any, *, at: set[int]) -> Any:
    """An objective whose loss overflows in these of its steps, counted from 1."""

    class Overflowing(kit.Tiny):  # type: ignore[name-defined, misc]  # a fixture's class
        n_steps = 0

        def step(self, forward: Any, batch: Any) -> torch.Tensor:
            self.n_steps += 1
            return super().step(forward, batch) * (float("inf") if self.n_steps in at else 1e-2)

    return Overflowing()


def skip_one(kit: Any, kind: str, *, fused: bool, **options: Any) -> list[str]:
    """Checks that an overflow changes nothing but the scale; what was called in its step."""
    trial, _ = kit.trial(
        optimizer=kind,
        optimizer_options=KINDS[kind] | ({"fused": True} if fused else {}),
        scheduler=("StepLR", {"step_size": 1, "gamma": 0.5}),
        ema_decay=0.9,
        **FP16,
        **options,
    )
    n_parts = -(-16 // options.get("micro_batch", 16))
    training = Training(overflowing(kit, at={2 * n_parts + 1}), trial)  # the third batch
    learner, calls = training.learner, []
    batches = list(training.train_data.batches(16, training.device))
    for batch in batches[:2]:
        assert learner.train_step(batch)[1].stepped
    before = copy.deepcopy(learner.state_dict())
    hook = learner.optimizer.register_step_post_hook(lambda *_: calls.append("step"))
    result = learner.train_step(batches[2])[1]
    hook.remove()
    after = copy.deepcopy(learner.state_dict())
    scales = before["scaler"].pop("scale"), after["scaler"].pop("scale")
    assert (result.stepped, result.scale, scales) == (False, 2.0**15, (2.0**16, 2.0**15))
    assert before["scaler"].pop("_growth_tracker") == 2  # good steps begin to count anew
    assert after["scaler"].pop("_growth_tracker") == 0
    kit.assert_same(after, before)  # weights, moments, Adam's step, average, schedule
    assert learner.train_step(batches[3])[1].stepped
    assert not torch.equal(learner.model.state_dict()["0.weight"], after["model"]["0.weight"])
    return calls


@pytest.mark.parametrize("options", [{}, {"clip_norm": 0.1}, {"micro_batch": 5}])
@pytest.mark.parametrize("kind", KINDS)
def test_property_05_a_skipped_step_changes_nothing_but_the_scale(
    kit: Any, kind: str, options: dict[str, Any]
) -> None:
    assert skip_one(kit, kind, fused=False, **options) == []


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW"])  # RMSprop has no fused form
def test_property_06_nor_with_a_fused_optimizer_whose_hook_fires_all_the_same(
    kit: Any, kind: str
) -> None:
    assert skip_one(kit, kind, fused=True) == ["step"]


@pytest.mark.parametrize("n_batches", [2, 6, 9])
def test_property_04_the_scaler_goes_on_right_after_an_overflow(kit: Any, n_batches: int) -> None:
    """The pause comes in the very step that overflows, in the middle of an epoch or at its end."""
    settings = {"dropout": 0.2, "ema_decay": 0.9, "epochs": 2, **FP16}
    whole, _ = kit.trial(**settings)
    overflowing(kit, at={n_batches})(whole)
    objective = overflowing(kit, at={n_batches})
    first, second, link = kit.train_in_two_within(objective, n_batches, **settings)
    assert kit.last_state(first)["scaler"]["scale"] == 2.0**15
    assert kit.last_state(first)["scaler"]["_growth_tracker"] == 0
    kit.assert_same(kit.last_state(second), kit.last_state(whole))
    assert link.user_attrs["skipped_steps"] == 1


@pytest.mark.parametrize("n_batches", [2, 7])
def test_property_03_parts_of_batches_go_on_within_an_epoch(kit: Any, n_batches: int) -> None:
    """A checkpoint lies between two whole batches, however many parts they have."""
    settings = {"dropout": 0.4, "micro_batch": 5, "clip_norm": 1.0, "epochs": 2}
    whole, _ = kit.trial(**settings)
    kit.Tiny()(whole)
    n_parts = {2: 5, 7: 26}[n_batches]  # calls of `step`: 4 for 16 samples, 2 for the last 10
    _, second, _ = kit.train_in_two_within(kit.Tiny(), n_parts, **settings)
    kit.assert_same(kit.last_state(second), kit.last_state(whole))


def test_property_24_training_validation_and_test_parts_are_disjoint() -> None:
    split = mlp.data({})
    parts = [split.train, split.valid, split.test]
    assert sum(len(part[0]) for part in parts) == 1797  # type: ignore[index]  # tensors
    rows = torch.cat([part[0] for part in parts])  # type: ignore[index]  # as above
    assert len(rows.unique(dim=0)) == len(rows)  # no picture of the set comes twice
