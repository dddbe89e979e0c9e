"""What a study can set about a training: each option is a setting or a parameter of the trial."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from hpo.errors import InvalidField


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
        for name, (is_fit, text) in LIMITS.items():
            value = getattr(self, name)
            if value is not None and not is_fit(value):
                raise InvalidField(name, f"must be {text}, got {value}")
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
        return cls(**{name: _convert(name, value) for name, value in given.items()})


def _convert(name: str, value: Any) -> Any:
    if name in OPTIONAL and value in (None, "", "none", "null"):
        return None
    try:
        return CONVERTERS[name](value)
    except (TypeError, ValueError) as error:
        raise InvalidField(name, f"{error}, got {value!r}") from None


def _whole(value: Any) -> int:
    if isinstance(value, bool) or float(value) != int(float(value)):
        raise ValueError("must be a whole number")
    return int(float(value))


def _number(value: Any) -> float:
    if isinstance(value, bool) or math.isnan(float(value)):
        raise ValueError("must be a number")
    return float(value)


def _flag(value: Any) -> bool:
    flags = {True: True, False: False, "true": True, "false": False, "1": True, "0": False}
    if value not in flags:
        raise ValueError("must be true or false")
    return flags[value]


Limit = tuple[Callable[[Any], bool], str]
COUNT: Limit = (lambda value: value >= 1, "1 or more")
NOT_NEGATIVE: Limit = (lambda value: value >= 0, "0 or more")
POSITIVE: Limit = (lambda value: value > 0, "above 0")
LIMITS: dict[str, Limit] = {
    "epochs": COUNT,
    "batch_size": COUNT,
    "micro_batch": COUNT,
    "eval_batch_size": COUNT,
    "clip_norm": POSITIVE,
    "clip_value": POSITIVE,
    "ema_decay": (lambda value: 0 < value < 1, "between 0 and 1"),
    "checkpoint_seconds": NOT_NEGATIVE,
    "loader_workers": NOT_NEGATIVE,
    "prefetch_factor": COUNT,
    "resident_share": (lambda value: 0 <= value <= 1, "from 0 to 1"),
}
KINDS: dict[str, Callable[[Any], Any]] = {
    "int": _whole,
    "float": _number,
    "bool": _flag,
    "str": str,
}
# The annotations are text here, and name one kind each, or one kind and None.
CONVERTERS = {f.name: KINDS[str(f.type).partition(" |")[0]] for f in fields(TrainingOptions)}
OPTIONAL = frozenset(f.name for f in fields(TrainingOptions) if "None" in str(f.type))
DEFAULTS: Mapping[str, Any] = asdict(TrainingOptions())
