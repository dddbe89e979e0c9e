"""FP32 beside mixed precision, measured so that the figures mean something.

Every kind trains the same net from the same weights on the same batch, which is made before the
clock starts. All are warm, the device is waited for on both sides of the clock, nothing is read
from it in between, and kinds take turns, so that what slows the machine slows all. Memory is
measured with one kind alone in the process. TF32 is set for each turn and named in each row:
PyTorch by itself leaves it on for convolutions, and "fp32" then is not what it says.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import nn
from torch.nn import functional

from hpo.errors import InvalidField
from hpo.training.bench_nets import N_CLASSES, NETS, SHAPE
from hpo.training.footprint import Footprint, footprint
from hpo.training.memory import free_unused, is_out_of_memory
from hpo.training.optimizers import make_optimizer
from hpo.training.precision import DTYPES, HALF_DTYPES, Precision, resolve_precision

N_WARM_STEPS = {"cpu": 2, "cuda": 10}
TURN_SECONDS = 0.3
MAX_STEPS = 500
# Batches that a machine of the kind does in a minute or two.
BATCHES = {
    ("simple_cnn", "cpu"): (64, 256),
    ("simple_cnn", "cuda"): (64, 4096),
    ("resnet18", "cpu"): (16,),
    ("resnet18", "cuda"): (64, 1024),
}
Clock = Callable[[], float]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A precision and the layout of the pictures in memory."""

    precision: str
    channels_last: bool = False

    @property
    def name(self) -> str:
        return f"{self.precision} channels_last" if self.channels_last else self.precision

    @property
    def is_amp(self) -> bool:
        return DTYPES[self.precision] is not None


BASE = Kind(precision="fp32")
KINDS = (
    BASE,
    Kind(precision="fp32", channels_last=True),
    Kind(precision="tf32"),
    Kind(precision="bf16"),
    Kind(precision="bf16", channels_last=True),
    Kind(precision="fp16"),
    Kind(precision="fp16", channels_last=True),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkOptions:
    """What is compared, and for how long; without `n_steps` a turn takes a third of a second."""

    model: str = "simple_cnn"
    batch_sizes: Sequence[int] = ()
    precisions: Sequence[str] = ()
    n_steps: int | None = None
    n_repeats: int = 7
    allow_slow: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.model not in NETS:
            raise InvalidField("model", f"must be {' or '.join(NETS)}, got {self.model!r}")
        for size in self.batch_sizes:
            if size < 2:
                raise InvalidField("batch", f"must be 2 or more, got {size}")
        if self.n_repeats < 1:
            raise InvalidField("repeats", f"must be 1 or more, got {self.n_repeats}")
        if self.n_steps is not None and self.n_steps < 1:
            raise InvalidField("steps", f"must be 1 or more, got {self.n_steps}")


@dataclass(kw_only=True, slots=True)
class Entry:
    """What was found of one kind so far; `failure` says why there is no more.

    `n_half_layers` of the `n_layers` convolutions and linear layers were seen to give half
    outputs; `tf32` is the state of the flags for matrix products and for convolutions.
    """

    kind: Kind
    n_layers: int = 0
    n_half_layers: int = 0
    tf32: dict[str, bool] = field(default_factory=dict)
    footprint: Footprint | None = None
    peak_bytes: int | None = None
    n_steps: int = 0
    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    failure: str = ""


class Contestant:
    """One net under one kind, which makes real steps on a batch that stays."""

    def __init__(
        self, kind: Kind, batch_size: int, device: torch.device, options: BenchmarkOptions
    ) -> None:
        self.device = device
        layout = torch.channels_last if kind.channels_last else torch.contiguous_format
        with torch.random.fork_rng(devices=[]):  # the same weights and pictures for each
            torch.manual_seed(options.seed)
            model = NETS[options.model]()
            inputs = torch.randn(batch_size, *SHAPE)
            target = torch.randint(N_CLASSES, (batch_size,))
        self.precision = Precision(kind.precision, device, allow_slow=options.allow_slow)
        self.model: nn.Module = model.to(device, memory_format=layout)  # type: ignore[call-overload]  # torch's overloads lack it
        self.optimizer = make_optimizer(torch.optim.Adam, self.model.parameters(), lr=1e-3)
        self.batch = (inputs.to(device, memory_format=layout), target.to(device))
        self._forward = self.precision.forward(self.model)

    def loss(self) -> torch.Tensor:
        """The loss of the batch, in fp32."""
        inputs, target = self.batch
        return functional.cross_entropy(self._forward(inputs), target)

    def step(self) -> torch.Tensor:
        """One step as the training kit makes it; the loss stays on the device."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss()
        self.precision.backward(loss)
        self.precision.step(self.optimizer)
        return loss.detach()

    def warm_up(self) -> float:
        """Steps that are not counted; the loss of the first."""
        self.precision.set_tf32()
        losses = [self.step() for _ in range(N_WARM_STEPS[self.device.type])]
        return float(losses[0])

    def seconds_per_step(self, n_steps: int, clock: Clock) -> float:
        """Of one turn."""
        self.precision.set_tf32()
        synchronize(self.device)
        begin = clock()
        for _ in range(n_steps):
            self.step()
        synchronize(self.device)
        return (clock() - begin) / n_steps

    def count_half_layers(self) -> tuple[int, int]:
        """How many layers that autocast casts there are, and how many gave half outputs."""
        dtypes: list[torch.dtype] = []
        layers = [m for m in self.model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
        hooks = [
            layer.register_forward_hook(lambda _m, _i, output: dtypes.append(output.dtype))
            for layer in layers
        ]
        self.loss()
        for hook in hooks:
            hook.remove()
        return len(layers), sum(dtype in HALF_DTYPES for dtype in dtypes)


class Heat:
    """All kinds of one net at one batch size; `entries` grows while it goes on."""

    def __init__(
        self,
        batch_size: int,
        kinds: Sequence[Kind],
        device: torch.device,
        options: BenchmarkOptions,
        *,
        clock: Clock = time.perf_counter,
    ) -> None:
        self.batch_size, self.device, self.options = batch_size, device, options
        self.entries = [Entry(kind=kind) for kind in kinds]
        self._clock = clock

    @property
    def n_parts(self) -> int:
        """How many parts `run` has."""
        return 2 * len(self.entries) + self.options.n_repeats

    def run(self) -> Iterator[str]:
        """Measures part by part and says before each what it is."""
        for entry in self.entries:
            yield f"memory of {entry.kind.name}"
            self._guarded(entry, self._measure_memory)
            free_unused(self.device)
        ready: list[tuple[Entry, Contestant]] = []
        for entry in self.entries:
            yield f"warming up {entry.kind.name}"
            contestant = self._guarded(entry, self._warm)
            if contestant is not None:
                ready.append((entry, contestant))
        for number in range(self.options.n_repeats):
            yield f"round {number + 1} of {self.options.n_repeats}"
            self._take_turns(ready if number % 2 else ready[::-1])
        for entry, contestant in ready:
            entry.losses.append(float(contestant.loss().detach()))

    def _guarded(self, entry: Entry, part: Callable[[Entry], T]) -> T | None:
        """What does not fit is left out; the others go on."""
        if entry.failure:
            return None
        try:
            return part(entry)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            entry.failure = "does not fit into memory"
        return None

    def _measure_memory(self, entry: Entry) -> None:
        is_cuda = self.device.type == "cuda"
        before = torch.cuda.memory_allocated(self.device) if is_cuda else 0
        contestant = self._contestant(entry)
        entry.n_layers, entry.n_half_layers = contestant.count_half_layers()
        wanted = entry.n_layers if entry.kind.is_amp else 0
        # A benchmark must not report fp32 as mixed precision.
        assert entry.n_half_layers == wanted, f"{entry.kind.name}: {entry.n_half_layers} half"
        entry.losses.append(contestant.warm_up())
        if is_cuda:
            torch.cuda.reset_peak_memory_stats(self.device)
            contestant.step()
            synchronize(self.device)
            entry.peak_bytes = torch.cuda.max_memory_allocated(self.device) - before
        entry.footprint = footprint(
            contestant.model, contestant.optimizer, contestant.batch, contestant.loss
        )

    def _warm(self, entry: Entry) -> Contestant:
        contestant = self._contestant(entry)
        contestant.warm_up()
        entry.tf32 = {
            "matmul": torch.backends.cuda.matmul.allow_tf32,
            "cudnn": torch.backends.cudnn.allow_tf32,
        }
        seconds = contestant.seconds_per_step(1, self._clock)
        fitting = max(1, min(MAX_STEPS, round(TURN_SECONDS / max(seconds, 1e-6))))
        entry.n_steps = self.options.n_steps or fitting
        return contestant

    def _take_turns(self, ready: Sequence[tuple[Entry, Contestant]]) -> None:
        # A round counts whole: a ratio compares turns of the same round.
        found = [c.seconds_per_step(entry.n_steps, self._clock) for entry, c in ready]
        for (entry, _), seconds in zip(ready, found, strict=True):
            entry.seconds.append(seconds)

    def _contestant(self, entry: Entry) -> Contestant:
        return Contestant(entry.kind, self.batch_size, self.device, self.options)


def heats_of(
    options: BenchmarkOptions, device: torch.device, *, clock: Clock = time.perf_counter
) -> list[Heat]:
    """One heat for each batch size. Raises InvalidField for a precision that is not here."""
    kinds = kinds_of(options, device)
    sizes = options.batch_sizes or BATCHES[options.model, device.type]
    return [Heat(size, kinds, device, options, clock=clock) for size in sizes]


def kinds_of(options: BenchmarkOptions, device: torch.device) -> list[Kind]:
    """The kinds asked for, or all that make sense on the device; fp32 is always among them."""
    for name in options.precisions:
        if name not in DTYPES:
            raise InvalidField("precision", f"must be {', '.join(DTYPES)}, got {name!r}")
        resolve_precision(name, device, allow_slow=options.allow_slow)
        if name == "tf32" and device.type == "cpu":
            raise InvalidField("precision", "tf32 is a mode of CUDA devices; leave it out here")
    sensible = [name for name in DTYPES if _is_sensible(name, device, options.allow_slow)]
    wanted = {"fp32", *(options.precisions or sensible)}
    return [kind for kind in KINDS if kind.precision in wanted]


def _is_sensible(name: str, device: torch.device, allow_slow: bool) -> bool:
    if device.type == "cpu":
        return name in ("fp32", "bf16") or (name == "fp16" and allow_slow)
    # Tensor cores take tf32 and bf16 from this capability on.
    has_both = torch.cuda.get_device_capability(device) >= (8, 0)
    return has_both or name in ("fp32", "fp16")


def device_of(name: str) -> torch.device:
    """The device of this name, "auto" for CUDA where there is one. Raises InvalidField."""
    has_cuda = torch.cuda.is_available()
    known = {"auto": "cuda" if has_cuda else "cpu", "cpu": "cpu", "cuda": "cuda"}
    if name not in known:
        raise InvalidField("device", f"must be {', '.join(known)}, got {name!r}")
    if name == "cuda" and not has_cuda:
        raise InvalidField("device", "PyTorch finds no CUDA device here; take cpu")
    return torch.device(known[name])


def synchronize(device: torch.device) -> None:
    """Waits for all work on the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
