"""What a study can set about a training: each option is a setting or a parameter of the trial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from hpo.errors import InvalidField
from hpo.setting_rules import SettingRule


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingOptions:
    """The options of the training loop.

    Attributes:
        batch_size: samples of one optimizer step.
        micro_batch: samples that go through the model at once; None is the whole batch. It is
            halved when a GPU runs out of memory.
        eval_batch_size: samples at once in evaluation; None is `micro_batch` or `batch_size`.
        precision: auto, fp32, tf32, bf16 or fp16.
        clip_norm: the largest norm of all gradients together; None does not clip.
        clip_value: the largest absolute value in a gradient; None does not clip.
        ema_decay: of the moving average of the weights; None keeps none.
        evaluate_ema: whether the averaged weights are evaluated, where there are some.
        checkpoint_seconds: between two checkpoints; 0 writes one after every epoch and none within.
        channels_last: whether images (4 dimensions) and the model lie channels last.
        compile: whether the model goes through torch.compile.
        loader_workers: processes that read a dataset or a stream; 0 reads it in the trial itself.
        prefetch_factor: batches that each of them reads ahead; None is PyTorch's default.
        resident_share: tensors move to the device when they need at most this share of what is
            free there; larger ones stay behind and move batch by batch.
        deterministic: whether torch may use deterministic algorithms only.
        allow_slow: whether fp16 is allowed on a CPU.
    """

    epochs: int = 10
    batch_size: int = 64
    micro_batch: int | None = None
    eval_batch_size: int | None = None
    precision: str = "auto"
    clip_norm: float | None = None
    clip_value: float | None = None
    ema_decay: float | None = None
    evaluate_ema: bool = True
    checkpoint_seconds: float = 10.0
    channels_last: bool = False
    compile: bool = False
    loader_workers: int = 0
    prefetch_factor: int | None = None
    resident_share: float = 0.5
    deterministic: bool = False
    allow_slow: bool = False

    def __post_init__(self) -> None:
        for name in RULES:
            _read(name, getattr(self, name))
        if self.clip_norm is not None and self.clip_value is not None:
            raise InvalidField("clip_value", "clip by norm or by value, not by both")
        if self.deterministic and self.precision == "tf32":
            raise InvalidField("precision", "tf32 is off in deterministic mode; take fp32")

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> TrainingOptions:
        """Reads the options among other parameters; text is converted, as workers override by it.

        Raises InvalidField that names the option.
        """
        given = {f.name: params[f.name] for f in fields(cls) if f.name in params}
        return cls(**{name: _read(name, value) for name, value in given.items()})


def _read(name: str, value: Any) -> Any:
    try:
        return RULES[name].read(value)
    except ValueError as error:
        raise InvalidField(name, str(error)) from None


LIMITS: Mapping[str, Mapping[str, Any]] = {
    "epochs": {"minimum": 1},
    "batch_size": {"minimum": 1},
    "micro_batch": {"minimum": 1},
    "eval_batch_size": {"minimum": 1},
    "precision": {"choices": ("auto", "fp32", "tf32", "bf16", "fp16")},
    "clip_norm": {"above": 0, "excludes": ("clip_value",)},
    "clip_value": {"above": 0, "excludes": ("clip_norm",)},
    "ema_decay": {"above": 0, "below": 1},
    "checkpoint_seconds": {"minimum": 0},
    "loader_workers": {"minimum": 0},
    "prefetch_factor": {"minimum": 1},
    "resident_share": {"minimum": 0, "maximum": 1},
}
# The annotations are text here, and name one kind each, or one kind and None.
RULES = {
    f.name: SettingRule(
        type=str(f.type).partition(" |")[0],
        optional="None" in str(f.type),
        **LIMITS.get(f.name, {}),
    )
    for f in fields(TrainingOptions)
}
DEFAULTS: Mapping[str, Any] = asdict(TrainingOptions())
