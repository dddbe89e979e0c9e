"""What each precision does and does not do to weights, losses and steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hpo.errors import InvalidField
from hpo.training import Precision, Training
from hpo.training.precision import SCALE_FLOOR, resolve_precision

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")


def fp16(**options: Any) -> Precision:
    return Precision("fp16", CPU, allow_slow=True, **options)


def step(precision: Precision, model: nn.Module, optimizer: Any, factor: float = 1e-3) -> Any:
    optimizer.zero_grad()
    output = precision.forward(model)(torch.ones(4, 3))
    precision.backward(output.square().mean() * factor)
    return precision.step(optimizer, clip_norm=None)


@pytest.mark.parametrize(
    ("name", "device", "capability", "expected"),
    [
        ("auto", CPU, None, "fp32"),
        ("auto", CUDA, (9, 0), "bf16"),
        ("auto", CUDA, (8, 0), "bf16"),
        ("auto", CUDA, (7, 5), "fp16"),
        ("auto", CUDA, (7, 0), "fp16"),
        ("auto", CUDA, (6, 1), "fp32"),
        ("fp16", CUDA, (9, 0), "fp16"),
        ("tf32", CPU, None, "tf32"),
    ],
)
def test_auto_takes_the_best_the_device_has(
    name: str, device: torch.device, capability: Any, expected: str
) -> None:
    assert resolve_precision(name, device, capability=capability) == expected


@pytest.mark.parametrize(("name", "text"), [("fp16", "allow_slow"), ("int8", "bf16")])
def test_an_unfit_precision_is_refused_with_the_cure(name: str, text: str) -> None:
    with pytest.raises(InvalidField, match=text) as caught:
        Precision(name, CPU)
    assert caught.value.field == "precision"


@pytest.mark.parametrize("name", PRECISIONS)
@pytest.mark.parametrize("before", [True, False])
def test_tf32_is_on_where_it_is_asked_for_and_nowhere_else(name: str, before: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = before
    torch.backends.cudnn.allow_tf32 = before
    Precision(name, CPU, allow_slow=True)
    assert torch.backends.cuda.matmul.allow_tf32 is (name == "tf32")
    assert torch.backends.cudnn.allow_tf32 is (name == "tf32")


@pytest.mark.parametrize("n_overflows", [1, 16, 17, 40])
def test_property_16_the_scale_never_falls_below_its_floor_and_comes_back(n_overflows: int) -> None:
    torch.manual_seed(0)
    precision, model = fp16(), nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    results = [step(precision, model, optimizer, float("inf")) for _ in range(n_overflows)]
    assert not any(result.stepped for result in results)
    assert results[-1].scale == max(2.0**16 / 2**n_overflows, SCALE_FLOOR)
    assert step(precision, model, optimizer).stepped


@pytest.mark.parametrize("name", ["fp32", "tf32", "bf16"])
def test_only_fp16_scales(name: str) -> None:
    precision = Precision(name, CPU)
    loss = torch.ones((), requires_grad=True)
    precision.backward(loss)
    assert loss.grad == 1.0
    assert precision.state_dict() == {}


def test_the_scaler_of_another_precision_is_no_scaler_for_fp16() -> None:
    with pytest.raises(RuntimeError, match="empty"):
        fp16().load_state_dict(Precision("fp32", CPU).state_dict())


@pytest.mark.parametrize("clip_norm", [1e-4, 1e-3])
def test_property_09_clipping_sees_the_unscaled_gradient(clip_norm: float) -> None:
    weights = []
    for initial_scale in (2.0**8, 2.0**16):
        torch.manual_seed(0)
        precision, model = fp16(initial_scale=initial_scale), nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        output = precision.forward(model)(torch.ones(4, 3))
        precision.backward(output.square().mean() * 0.01)
        result = precision.step(optimizer, clip_norm=clip_norm)
        assert result.stepped
        assert result.grad_norm is not None
        assert result.grad_norm > clip_norm  # so that it was clipped
        weights.append(model.weight.detach().clone())
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("initial_scale", [2.0**8, 2.0**16])
def test_clipped_training_is_as_good_in_fp16(kit: Any, initial_scale: float) -> None:
    losses, norms = [], []
    for name in ("fp32", "fp16"):
        settings = {"precision": name, "allow_slow": True, "clip_norm": 1.0}
        training = Training(kit.Tiny(), kit.trial(optimizer_options={"lr": 0.5}, **settings)[0])
        if name == "fp16":
            precision = training.learner.precision
            precision.load_state_dict({**precision.state_dict(), "scale": initial_scale})
        step = training.learner.optimizer.step

        def noted(step: Any = step, model: Any = training.learner.model) -> None:
            norms.append(nn.utils.get_total_norm([p.grad for p in model.parameters()]).item())
            step()

        training.learner.optimizer.step = noted
        training.train()
        losses.append(training.evaluate()["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=0.05)
    assert max(norms) <= 1.0001
    assert len(norms) == 48


@pytest.mark.parametrize("name", PRECISIONS)
def test_clipping_by_value_sees_the_unscaled_gradient(name: str) -> None:
    torch.manual_seed(0)
    precision, model = Precision(name, CPU, allow_slow=True), nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    precision.backward(precision.forward(model)(torch.ones(4, 3)).square().mean())
    found = precision.step(optimizer, clip_value=0.01, measure=True)
    assert found.grad_norm is not None
    assert found.grad_norm > 0.1  # that before clipping
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert parameter.grad.abs().max() == pytest.approx(0.01)


@pytest.mark.parametrize("name", PRECISIONS)
def test_property_10_each_step_unscales_once_before_it_clips(
    kit: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    training = Training(kit.Tiny(), kit.trial(precision=name, allow_slow=True, clip_norm=1.0)[0])
    spy(monkeypatch, training.learner.precision.scaler, "unscale_", calls)
    spy(monkeypatch, training.learner.optimizer, "step", calls)
    spy(monkeypatch, nn.utils, "clip_grad_norm_", calls)
    training.train_epoch()
    n_batches = -(-kit.n_train // 16)
    unscaling = ["unscale_"] if name == "fp16" else []
    assert calls == [*unscaling, "clip_grad_norm_", "step"] * n_batches


def test_property_10_gradients_are_dropped_before_each_step(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(kit.Tiny(), kit.trial()[0])
    seen: list[Any] = []
    forward = training.recipe.step
    monkeypatch.setattr(
        training.recipe,
        "step",
        lambda *args: (
            seen.extend(p.grad for p in training.learner.model.parameters()),
            forward(*args),
        )[1],
    )
    training.train_epoch()
    assert seen
    assert all(gradient is None for gradient in seen)


class Probe(torch.autograd.Function):
    """Passes a tensor through and notes whether its backward runs under autocast."""

    seen: list[tuple[bool, bool]] = []  # noqa: RUF012  # emptied by the test that uses it

    @staticmethod
    def forward(context: Any, tensor: torch.Tensor) -> torch.Tensor:
        context.in_forward = torch.is_autocast_enabled("cpu")
        return tensor.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        Probe.seen.append((context.in_forward, torch.is_autocast_enabled("cpu")))
        return gradient


class Probing(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return Probe.apply(self.inner(inputs))


@pytest.mark.parametrize("name", PRECISIONS)
def test_property_11_forward_is_under_autocast_and_backward_is_not(kit: Any, name: str) -> None:
    class Objective(kit.Tiny):  # type: ignore[name-defined, misc]  # a fixture's class
        def model(self, params: Any) -> nn.Module:
            return Probing(super().model(params))

    Probe.seen.clear()
    Objective()(kit.trial(precision=name, allow_slow=True, epochs=1)[0])
    assert set(Probe.seen) == {(name in ("bf16", "fp16"), False)}


@pytest.mark.parametrize("name", PRECISIONS)
@pytest.mark.parametrize("shape", ["tensor", "tuple", "dict"])
def test_property_12_the_loss_gets_fp32_outside_autocast(kit: Any, name: str, shape: str) -> None:
    seen: set[Any] = set()

    class Wrapped(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, inputs: torch.Tensor) -> Any:
            out = self.inner(inputs)
            return {"tensor": out, "tuple": (out, [out]), "dict": {"logits": out}}[shape]

    class Objective(kit.Tiny):  # type: ignore[name-defined, misc]  # a fixture's class
        def model(self, params: Any) -> nn.Module:
            return Wrapped(super().model(params))

        def loss(self, output: Any, target: torch.Tensor) -> torch.Tensor:
            logits = {
                "tensor": lambda o: o,
                "tuple": lambda o: o[1][0],
                "dict": lambda o: o["logits"],
            }[shape](output)
            seen.add((logits.dtype, torch.is_autocast_enabled("cpu")))
            return super().loss(logits, target)

        def metrics(self, output: Any, target: torch.Tensor) -> Any:
            return {"accuracy": torch.ones(len(target))}

    Objective()(kit.trial(precision=name, allow_slow=True, epochs=1)[0])
    assert seen == {(torch.float32, False)}


@pytest.mark.parametrize("name", PRECISIONS)
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_property_08_nothing_is_ever_made_half(
    kit: Any, name: str, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trap(*_: Any) -> None:
        raise AssertionError("half() was called")

    monkeypatch.setattr(nn.Module, "half", trap)
    monkeypatch.setattr(nn.Module, "bfloat16", trap)
    monkeypatch.setattr(torch.Tensor, "half", trap)
    monkeypatch.setattr(torch.Tensor, "bfloat16", trap)
    training = Training(
        kit.Tiny(), kit.trial(precision=name, allow_slow=True, optimizer=optimizer)[0]
    )
    training.train()
    held = [
        *training.learner.model.parameters(),
        *training.learner.model.buffers(),
        *(p.grad for p in training.learner.model.parameters()),
        *(
            t
            for s in training.learner.optimizer.state.values()
            for t in s.values()
            if torch.is_tensor(t)
        ),
    ]
    assert {tensor.dtype for tensor in held} == {torch.float32}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("place", ["weight", "buffer"])
def test_a_half_model_is_refused(kit: Any, dtype: torch.dtype, place: str) -> None:
    class Objective(kit.Tiny):  # type: ignore[name-defined, misc]  # a fixture's class
        def model(self, params: Any) -> nn.Module:
            model = super().model(params)
            if place == "weight":
                return model.to(dtype)
            model.register_buffer("mean", torch.zeros(1, dtype=dtype))
            return model

    with pytest.raises(ValueError, match="fp32"):
        Objective()(kit.trial()[0])


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("fp32", torch.float32),
        ("tf32", torch.float32),
        ("bf16", torch.bfloat16),
        ("fp16", torch.float16),
    ],
)
def test_property_23_the_kernels_really_run_in_the_named_precision(
    kit: Any, name: str, dtype: torch.dtype
) -> None:
    training = Training(kit.Tiny(), kit.trial(precision=name, allow_slow=True)[0])
    seen = set()
    for module in training.learner.model.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda _m, _i, output: seen.add(output.dtype))
    training.train_epoch()
    training.evaluate()
    assert seen == {dtype}


@pytest.mark.parametrize("name", PRECISIONS)
def test_no_stale_cast_of_the_weights_survives(kit: Any, name: str) -> None:
    training = Training(kit.Tiny(), kit.trial(precision=name, allow_slow=True)[0])
    inputs = torch.ones(2, 6)
    training.evaluate()  # must leave no half copies without history
    training.train_epoch()
    assert all(parameter.grad is not None for parameter in training.learner.model.parameters())
    before = training.learner.forward(inputs).detach()
    with torch.no_grad():
        for parameter in training.learner.model.parameters():
            parameter.mul_(2)
    assert not torch.equal(training.learner.forward(inputs).detach(), before)


@pytest.mark.parametrize("where", ["setting", "parameter"])
def test_precision_is_a_setting_or_a_parameter(kit: Any, where: str) -> None:
    if where == "setting":
        trial, link = kit.trial(epochs=1, precision="bf16")
    else:  # the parameter hides the setting
        trial, link = kit.trial(epochs=1, precision="fp32", params={"precision": "bf16"})
    kit.Tiny()(trial)
    assert link.user_attrs["precision"] == "bf16"


def spy(monkeypatch: pytest.MonkeyPatch, target: Any, name: str, calls: list[str]) -> None:
    original = getattr(target, name)

    def noted(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return original(*args, **kwargs)

    monkeypatch.setattr(target, name, noted)
