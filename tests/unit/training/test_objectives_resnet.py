"""Fine-tuning: what is taken from a file, what stays as it is, what learns how fast."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hpo.training import Training
from objectives.resnet import FineTuned, ResNet18, as_photos, finetune

PARAMS = {"lr": 5e-3, "body_share": 0.5, "weight_decay": 1e-3}
SMALL = {"width": 8, "epochs": 3, "train_size": 600, "precision": "fp32"}


def params(**settings: Any) -> dict[str, Any]:
    return {**finetune.descriptor.settings, **PARAMS, **SMALL, **settings}


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    torch.manual_seed(3)
    torch.save(ResNet18(8).state_dict(), tmp_path / "resnet.pt")
    return tmp_path / "resnet.pt"


def test_digits_are_learnt_in_parts_of_a_batch(kit: Any) -> None:
    trial, link = kit.trial(params=PARAMS, **SMALL)
    FineTuned()(trial)
    assert link.reports[-1].value >= 0.5  # of ten classes


def test_all_but_the_head_comes_from_the_file(weights: Path) -> None:
    given = torch.load(weights, weights_only=True)
    found = finetune.model(params(weights=str(weights))).state_dict()
    assert found["fc.weight"].shape == (10, 64)
    for name in given.keys() - {"fc.weight", "fc.bias"}:
        assert torch.equal(found[name], given[name]), name


@pytest.mark.parametrize("width", [4, 8])
def test_a_file_of_another_net_is_refused(weights: Path, width: int) -> None:
    if width == 8:
        torch.save({"other.weight": torch.zeros(2)}, weights)
    with pytest.raises(ValueError, match=r"resnet.pt (does not fit|holds no ResNet-18)"):
        finetune.model(params(weights=str(weights), width=width))


@pytest.mark.parametrize("is_frozen", [True, False])
def test_a_frozen_body_stays_with_its_statistics(kit: Any, weights: Path, is_frozen: bool) -> None:
    settings = {**SMALL, "weights": str(weights), "freeze_body": is_frozen, "train_size": 64}
    trial, _ = kit.trial(params=PARAMS, **settings)
    training = Training(FineTuned(), trial)
    training.train()
    given = torch.load(weights, weights_only=True)
    found = training.learner.model.state_dict()
    kept = {name for name in given if not name.startswith("fc.") and "running" in name}
    changed = {name for name in kept if not torch.equal(found[name], given[name])}
    assert changed == (set() if is_frozen else kept)
    assert torch.equal(found["layer1.0.conv1.weight"], given["layer1.0.conv1.weight"]) is is_frozen


def test_the_body_learns_slower_than_the_head() -> None:
    model = finetune.model(params())
    head, body = finetune.optimizer(model.parameters(), params()).param_groups
    assert [tuple(each.shape) for each in head["params"]] == [(10, 64), (10,)]
    assert (head["lr"], body["lr"]) == (5e-3, 2.5e-3)
    assert len(body["params"]) + 2 == len(list(model.parameters()))


def test_digits_become_photos_in_three_colours() -> None:
    photos = as_photos(torch.rand(2, 64), 32)
    assert photos.shape == (2, 3, 32, 32)
    assert torch.equal(photos[:, 0], photos[:, 2])
