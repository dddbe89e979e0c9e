"""The built-in objectives: what they say of themselves, what they read, how well they learn."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from hpo.objective import TrialPruned, TrialReleased, descriptor_of, load_objective
from hpo.space import space_from_json, space_to_json
from hpo.trial import Verdict
from hpo.worker.check import check_objective
from objectives.digits import N_TRAIN, N_VALID, read_digits
from objectives.images import DEBIAN_DIR, SimpleCNN, mlp, read_idx
from objectives.resnet import ResNet18

PATHS = (
    "objectives.digits:mlp",
    "objectives.images:cnn",
    "objectives.images:mlp",
    "objectives.resnet:finetune",
    "objectives.synthetic:quadratic",
    "objectives.text:stdlib",
)
DIGITS = {"lr": 2e-3, "optimizer": "AdamW", "dropout": 0.2, "layers": 3, "hidden": 128}
IMAGES = {"lr": 2e-3, "dropout": 0.1, "channels": 8}
needs_fashion = pytest.mark.skipif(
    not DEBIAN_DIR.is_dir(), reason="needs the Debian package dataset-fashion-mnist"
)


@pytest.mark.parametrize("path", PATHS)
def test_each_objective_describes_itself_in_json(path: str) -> None:
    descriptor = descriptor_of(load_objective(path))
    assert descriptor is not None
    assert descriptor.space
    assert descriptor.summary
    assert descriptor.direction is not None
    assert json.loads(json.dumps(dict(descriptor.settings))) == dict(descriptor.settings)
    assert space_from_json(space_to_json(descriptor.space)) == dict(descriptor.space)


@pytest.mark.parametrize(
    ("path", "settings"),
    [
        ("objectives.synthetic:quadratic", {}),
        ("objectives.digits:mlp", {}),
        pytest.param("objectives.images:mlp", {"train_size": 500}, marks=needs_fashion),
        pytest.param("objectives.images:cnn", {"train_size": 500}, marks=needs_fashion),
        ("objectives.resnet:finetune", {"width": 8, "train_size": 128}),
    ],
)
def test_each_objective_passes_the_check(path: str, settings: Mapping[str, Any]) -> None:
    report = check_objective(path, settings=settings)
    assert report.is_fine, report
    assert (report.ending.end, report.warnings) == ("pruned", ())


def test_the_digits_have_the_space_of_the_article() -> None:
    descriptor = descriptor_of(load_objective("objectives.digits:mlp"))
    assert descriptor is not None
    assert space_to_json(descriptor.space or {}) == {
        "lr": {"type": "float", "low": 1e-5, "high": 1e-1, "log": True, "step": None},
        "optimizer": {"type": "categorical", "choices": ["Adam", "AdamW", "RMSprop"]},
        "dropout": {"type": "float", "low": 0.1, "high": 0.5, "log": False, "step": None},
        "layers": {"type": "int", "low": 2, "high": 5, "log": False, "step": 1},
        "hidden": {"type": "int", "low": 32, "high": 256, "log": True, "step": 1},
    }
    assert (descriptor.max_steps, descriptor.metric) == (20, "accuracy")


@pytest.mark.parametrize("module", ["synthetic", "command"])
def test_some_need_no_torch(module: str) -> None:
    code = f"import sys, objectives.{module}; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


@pytest.mark.parametrize("steps", [1, 3, 10, "4"])
@pytest.mark.parametrize(("x", "y"), [(1.0, -2.0), (0.0, 0.0), (-5.0, 5.0)])
def test_the_quadratic_approaches_its_value(kit: Any, steps: Any, x: float, y: float) -> None:
    trial, link = kit.trial(params={"x": x, "y": y}, steps=steps)
    value = load_objective("objectives.synthetic:quadratic")(trial)
    assert value == (x - 1) ** 2 + (y + 2) ** 2
    curve = [reported for _, reported in link.values]
    assert len(curve) == int(steps)
    assert curve == sorted(curve, reverse=True)
    assert curve[-1] == value


@pytest.mark.parametrize(
    ("verdict", "raised"), [(Verdict.PRUNE, TrialPruned), (Verdict.PAUSE, TrialReleased)]
)
def test_the_quadratic_obeys(kit: Any, verdict: Verdict, raised: type[Exception]) -> None:
    trial, link = kit.trial(params={"x": 1.0, "y": 1.0}, verdicts={2: verdict})
    with pytest.raises(raised):
        load_objective("objectives.synthetic:quadratic")(trial)
    assert [report.step for report in link.reports] == [0, 1, 2]


def test_the_digits_are_those_of_scikit_learn() -> None:
    images, labels = read_digits()
    expected = load_digits()
    np.testing.assert_array_equal(images.numpy() * 16, expected.data)
    np.testing.assert_array_equal(labels.numpy(), expected.target)


def test_no_digit_stands_in_two_parts() -> None:
    split = load_objective("objectives.digits:mlp").data({})  # type: ignore[attr-defined]  # an instance
    parts = [split.train, split.valid, split.test]
    assert [len(part[0]) for part in parts] == [N_TRAIN, N_VALID, 270]
    pictures = [{image.numpy().tobytes() for image in part[0]} for part in parts]
    assert sum(map(len, pictures)) == len(set.union(*pictures)) == 1797
    for part in parts:
        assert torch.bincount(part[1], minlength=10).min() >= len(part[1]) * 0.04


def test_the_digits_are_split_alike_whatever_the_trial() -> None:
    mlp: Any = load_objective("objectives.digits:mlp")
    torch.manual_seed(5)
    first = mlp.data({"lr": 0.1})
    torch.manual_seed(6)
    second = mlp.data({"lr": 0.2})
    assert torch.equal(first.valid[0], second.valid[0])


@pytest.mark.parametrize("optimizer", ["Adam", "AdamW", "RMSprop"])
@pytest.mark.parametrize("layers", [2, 5])
def test_the_digits_are_learnt(kit: Any, optimizer: str, layers: int) -> None:
    params = {**DIGITS, "optimizer": optimizer, "layers": layers, "hidden": 160}
    trial, link = kit.trial(params=params, epochs=8)
    load_objective("objectives.digits:mlp")(trial)
    assert max(value for _, value in link.values) >= 0.9


def test_the_number_of_layers_is_that_of_the_linear_ones() -> None:
    mlp: Any = load_objective("objectives.digits:mlp")
    for layers in (2, 3, 4, 5):
        model = mlp.model({**DIGITS, "layers": layers})
        linear = [module for module in model if isinstance(module, torch.nn.Linear)]
        assert len(linear) == layers


@pytest.mark.parametrize(
    ("model", "n_parameters"),
    [
        (lambda: mlp.model({}), 109_386),
        (lambda: SimpleCNN(32, n_inputs=3, image_size=32), 60_362),
        (ResNet18, 11_689_512),
    ],
    ids=["784-128-64-10", "SimpleCNN", "ResNet-18"],
)
def test_nets_have_the_size_that_is_known_of_them(
    model: Callable[[], torch.nn.Module], n_parameters: int
) -> None:
    assert sum(parameter.numel() for parameter in model().parameters()) == n_parameters


@pytest.mark.parametrize(("n_inputs", "size"), [(3, 32), (1, 28), (1, 30)])
def test_the_simple_cnn_fits_after_two_poolings(n_inputs: int, size: int) -> None:
    net = SimpleCNN(8, n_inputs=n_inputs, image_size=size)
    assert net(torch.zeros(2, n_inputs, size, size)).shape == (2, 10)


@needs_fashion
@pytest.mark.parametrize(
    ("path", "params"),
    [
        ("objectives.images:cnn", {**IMAGES, "precision": "fp32"}),
        ("objectives.images:cnn", {**IMAGES, "precision": "bf16"}),
        ("objectives.images:mlp", {"lr": 0.05, "momentum": 0.9, "precision": "fp32"}),
    ],
)
def test_clothes_are_learnt(kit: Any, path: str, params: Mapping[str, Any]) -> None:
    trial, link = kit.trial(params=params, epochs=2, train_size=3000, valid_size=1000)
    load_objective(path)(trial)
    assert link.reports[-1].value >= 0.7
    assert link.user_attrs["precision"] == params["precision"]


@needs_fashion
def test_clothes_of_training_and_validation_differ() -> None:
    cnn: Any = load_objective("objectives.images:cnn")
    params = {**cnn.descriptor.settings, "train_size": 500, "valid_size": 300}
    split = cnn.data(params)
    train, valid = (
        {image.numpy().tobytes() for image in part[0]} for part in (split.train, split.valid)
    )
    assert (len(split.train[0]), len(split.valid[0])) == (500, 300)
    assert not train & valid
    assert abs(float(split.train[0].mean())) < 0.1
    assert abs(float(split.train[0].std()) - 1) < 0.1


def test_without_its_files_the_cure_is_named(kit: Any, tmp_path: Path) -> None:
    trial, _ = kit.trial(params=IMAGES, data_dir=str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"dataset-fashion-mnist.*data_dir"):
        load_objective("objectives.images:cnn")(trial)


def write_idx(path: Path, array: np.ndarray[Any, Any], *, packed: bool) -> None:
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    content = b"\x00\x00\x08" + bytes([array.ndim]) + sizes + array.tobytes()
    if packed:
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(content))
    else:
        path.write_bytes(content)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("shape", [(5,), (5, 4, 3)])
@pytest.mark.parametrize("n_items", [1, 3, 5])
def test_idx_files_are_read_plain_and_packed(
    tmp_path: Path, packed: bool, shape: tuple[int, ...], n_items: int
) -> None:
    array = np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8)
    write_idx(tmp_path / "x", array, packed=packed)
    np.testing.assert_array_equal(read_idx(tmp_path / "x", n_items), array[:n_items])


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"\x00\x00\x0d\x01\x00\x00\x00\x01\x00", "no IDX file"),
        (b"", "no IDX file"),
        (b"\x00\x00\x08\x01\x00\x00\x00\x02ab", "holds 2 items, 3"),
        (b"\x00\x00\x08\x01\x00\x00\x00\x03ab", "cut off"),
    ],
)
def test_a_file_that_is_no_idx_file_is_named(tmp_path: Path, content: bytes, text: str) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ValueError, match=text):
        read_idx(tmp_path / "x", 3)
