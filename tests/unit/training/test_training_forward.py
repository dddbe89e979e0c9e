"""How the model is called: layout, torch.compile and its way back, fused optimizers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from hpo.training import Split, Training, make_optimizer
from hpo.training.optimizers import may_fuse

compile_eagerly = functools.partial(torch.compile, backend="eager")


class Layouts(nn.Module):
    """A small convolutional net that notes how its input lies in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3)
        self.last = nn.Linear(4, 3)
        self.seen: set[bool] = set()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.seen.add(images.is_contiguous(memory_format=torch.channels_last))
        return self.last(functional.relu(self.convolution(images)).mean(dim=(2, 3)))


def picture_objective(kit: Any) -> Any:
    class Pictures(kit.Tiny):  # type: ignore[name-defined, misc]  # a fixture's class
        def model(self, params: Any) -> nn.Module:
            return Layouts()

        def data(self, params: Any) -> Split:
            generator = torch.Generator().manual_seed(3)
            images = torch.randn(48, 3, 8, 8, generator=generator)
            target = torch.randint(3, (48,), generator=generator)
            return Split(train=(images[:32], target[:32]), valid=(images[32:], target[32:]))

    return Pictures()


@pytest.mark.parametrize("channels_last", [True, False])
def test_images_and_model_lie_channels_last_when_asked_to(kit: Any, channels_last: bool) -> None:
    trial, _ = kit.trial(channels_last=channels_last, epochs=2)
    training = Training(picture_objective(kit), trial)
    training.train()
    model = training.learner.model
    assert model.seen == {channels_last}
    weight = model.convolution.weight
    assert weight.is_contiguous(memory_format=torch.channels_last) is channels_last
    assert training.learner.optimizer.param_groups[0]["params"][0] is weight


def test_the_layout_is_no_matter_to_the_result(kit: Any) -> None:
    links = []
    for channels_last in (False, True):
        trial, link = kit.trial(channels_last=channels_last)
        picture_objective(kit)(trial)
        links.append(link)
    losses = [[report.metrics["loss"] for report in link.reports] for link in links]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_channels_last_resumes_to_the_bit(kit: Any) -> None:
    whole, _ = kit.trial(channels_last=True)
    picture_objective(kit)(whole)
    _, second, _ = kit.train_in_two_within(picture_objective(kit), 3, channels_last=True)
    kit.assert_same(kit.last_state(second), kit.last_state(whole))


def test_data_that_is_no_image_is_left_alone(kit: Any) -> None:
    trial, link = kit.trial(channels_last=True)
    kit.Tiny()(trial)
    plain, plain_link = kit.trial()
    kit.Tiny()(plain)
    assert link.values == plain_link.values


def test_a_compiled_model_is_called_and_trains_the_same(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def backend(module: Any, inputs: Any) -> Any:
        calls.append(1)
        return module.forward

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    trial, link = kit.trial(compile=True, epochs=2)
    kit.Tiny()(trial)
    said = [argument for call, argument in link.calls if call == "uncounted"]
    assert said[:2] == [True, False]  # the silence of a compilation
    assert said == [True, False] * (len(said) // 2)
    assert link.calls.index(("uncounted", False)) < link.calls.index(("report", 0))
    plain, plain_link = kit.trial(epochs=2)
    kit.Tiny()(plain)
    assert calls
    assert link.user_attrs["compiled"] is True
    assert link.values == plain_link.values
    kit.assert_same(kit.last_state(trial)["model"], kit.last_state(plain)["model"])


def broken_backend(module: Any, inputs: Any) -> Any:
    raise RuntimeError("no C++ compiler was found")


def refuse(model: Any) -> Any:
    raise RuntimeError("torch.compile is not supported on this Python")


@pytest.mark.parametrize(
    ("replacement", "text"),
    [
        (functools.partial(torch.compile, backend=broken_backend), "no C++ compiler was found"),
        (refuse, "not supported on this Python"),
    ],
)
def test_a_model_that_cannot_be_compiled_runs_as_it_is_and_says_why(
    kit: Any,
    replacement: Callable[..., Any],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    monkeypatch.setattr(torch, "compile", replacement)
    trial, link = kit.trial(compile=True, dropout=0.3)
    kit.Tiny()(trial)
    said = capsys.readouterr().out
    assert text in said
    assert said.count("torch.compile failed") == 1
    assert link.user_attrs["compiled"] is False
    plain, _ = kit.trial(dropout=0.3)
    kit.Tiny()(plain)
    kit.assert_same(kit.last_state(trial)["model"], kit.last_state(plain)["model"])


def test_an_error_of_the_model_stays_its_own(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(6, 3)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            raise KeyError("my own")

    class Objective(kit.Tiny):  # type: ignore[name-defined, misc]  # a fixture's class
        def model(self, params: Any) -> nn.Module:
            return Broken()

    monkeypatch.setattr(torch, "compile", compile_eagerly)
    with pytest.raises(KeyError, match="my own"):
        Objective()(kit.trial(compile=True)[0])


@pytest.mark.parametrize(
    ("kind", "devices", "expected"),
    [
        (torch.optim.AdamW, {"cuda"}, True),
        (torch.optim.SGD, {"cuda"}, True),
        (torch.optim.RMSprop, {"cuda"}, False),  # has no such form
        (torch.optim.AdamW, {"cpu"}, False),
        (torch.optim.AdamW, {"cpu", "cuda"}, False),
        (torch.optim.AdamW, set(), False),
    ],
)
def test_optimizers_are_fused_on_a_gpu(kind: Any, devices: set[str], expected: bool) -> None:
    assert may_fuse(kind, devices) is expected


def test_an_optimizer_is_made_with_its_options() -> None:
    model = nn.Linear(3, 2)
    optimizer = make_optimizer(torch.optim.AdamW, model.parameters(), lr=0.25)
    assert type(optimizer) is torch.optim.AdamW
    assert optimizer.param_groups[0]["lr"] == 0.25
    assert not optimizer.param_groups[0]["fused"]
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == [
        id(p) for p in model.parameters()
    ]
