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
        micro_batch: samples that go through the model at once; None is the whole batch.
        eval_batch_size: samples at once in evaluation; None is `micro_batch` or `batch_size`.
        precision: auto, fp32, tf32, bf16 or fp16.
        clip_norm: the largest norm of all gradients together; None does not clip.
        checkpoint_seconds: between two checkpoints; 0 writes one after every epoch.
        deterministic: whether torch may use deterministic algorithms only.
        allow_slow: whether fp16 is allowed on a CPU.
    """

    epochs: int = 10
    batch_size: int = 64
    micro_batch: int | None = None
    eval_batch_size: int | None = None
    precision: str = "auto"
    clip_norm: float | None = None
    checkpoint_seconds: float = 10.0
    deterministic: bool = False
    allow_slow: bool = False

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "micro_batch", "eval_batch_size"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise InvalidField(name, f"must be 1 or more, got {count}")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise InvalidField("clip_norm", f"must be above 0, got {self.clip_norm}")
        if not self.checkpoint_seconds >= 0:
            raise InvalidField(
                "checkpoint_seconds", f"must be 0 or more, got {self.checkpoint_seconds}"
            )

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


CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "epochs": _whole,
    "batch_size": _whole,
    "micro_batch": _whole,
    "eval_batch_size": _whole,
    "precision": str,
    "clip_norm": _number,
    "checkpoint_seconds": _number,
    "deterministic": _flag,
    "allow_slow": _flag,
}
OPTIONAL = frozenset({"micro_batch", "eval_batch_size", "clip_norm"})
DEFAULTS: Mapping[str, Any] = asdict(TrainingOptions())
