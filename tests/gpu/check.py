"""What the training kit does on a real GPU: `python tests/gpu/check.py [--parts kit precision …]`.

Needs torch and numpy and nothing else; some three minutes on a large card. Each line of output is
one JSON object. TF32 is named in every figure: "fp32" here has it off for convolutions too, which
PyTorch by itself has not. `--device cpu --quick` only proves that the script itself works.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
from torch import nn
from torch.nn import functional

from hpo.objective import Trial, TrialFailed, TrialReleased
from hpo.training import Precision, Split, Training, TrainingObjective
from hpo.trial import Decision, Verdict

PATIENCE_SECONDS = 120
KINDS = {
    "fp32": ("fp32", False),
    "tf32": ("tf32", False),
    "fp16": ("fp16", False),
    "bf16": ("bf16", False),
    "bf16 channels_last": ("bf16", True),
}


class SimpleCNN(nn.Sequential):
    """The net of the usual benchmarks: two convolutions, 3x32x32 pictures."""

    def __init__(self) -> None:
        super().__init__(
            *(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(64 * 8 * 8, 10)),
        )


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False),
            nn.BatchNorm2d(n_out),
            nn.ReLU(),
            nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False),
            nn.BatchNorm2d(n_out),
        )
        shortcut = nn.Sequential(
            nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out)
        )
        self.shortcut = nn.Identity() if stride == 1 and n_in == n_out else shortcut

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.body(inputs) + self.shortcut(inputs))


class ResNet18(nn.Sequential):
    """ResNet-18 with the stem for small pictures."""

    def __init__(self) -> None:
        stages = ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2))
        blocks = [block for a, b, s in stages for block in (Block(a, b, s), Block(b, b, 1))]
        stem = (nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        super().__init__(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


class Silent:
    """The link of a trial without a service; pauses after one step when asked to."""

    def __init__(self, pause_after: int | None = None) -> None:
        self.pause_after, self.attrs = pause_after, dict[str, Any]()

    def start(self, resumed_from_step: int | None) -> None:
        self.attrs["resumed_from_step"] = resumed_from_step

    def suggest(self, name: str, parameter: Any) -> Any:
        raise KeyError(name)

    def report(self, measurement: Any) -> Decision:
        is_pause = measurement.step == self.pause_after
        return Decision(verdict=Verdict.PAUSE if is_pause else Verdict.CONTINUE)

    def late_decision(self) -> None:
        return None

    def set_user_attr(self, key: str, value: Any) -> None:
        self.attrs[key] = value

    def set_uncounted(self, flag: bool) -> None:
        self.attrs["uncounted"] = flag


class Pictures(TrainingObjective):
    """Noise with a hint of its class; the net and the way to the data are settings."""

    def model(self, params: Any) -> nn.Module:
        return NETS[params["net"]]()

    def data(self, params: Any) -> Split:
        n_samples = params["n_samples"]
        target = torch.randint(10, (n_samples,))
        inputs = torch.randn(n_samples, 3, 32, 32) + target[:, None, None, None] / 10
        tensors: Any = (inputs, target)
        if not params["resident"]:
            tensors = torch.utils.data.TensorDataset(inputs, target)
        return Split(train=tensors, valid=(inputs[:256], target[:256]))

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        return functional.cross_entropy(output, target)

    def optimizer(self, parameters: Iterator[nn.Parameter], params: Any) -> torch.optim.Optimizer:
        options = {"lr": 0.01, "momentum": 0.9}
        if params["fused"] is not None:
            options["fused"] = params["fused"]
        return torch.optim.SGD(parameters, **options)


class MLP(nn.Sequential):
    """Small enough that launching its kernels takes longer than they do."""

    def __init__(self) -> None:
        super().__init__(
            *(nn.Flatten(), nn.Linear(3 * 32 * 32, 256), nn.ReLU()),
            *(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)),
        )


NETS: dict[str, Callable[[], nn.Module]] = {
    "MLP": MLP,
    "SimpleCNN": SimpleCNN,
    "ResNet-18": ResNet18,
}


class Bf16Step:
    """One bf16 step on a batch that stays, as by hand."""

    def __init__(self, net: str, batch_size: int, device: torch.device) -> None:
        self.device, self.model = device, NETS[net]().to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.inputs = torch.randn(batch_size, 3, 32, 32, device=device)
        self.target = torch.randint(10, (batch_size,), device=device)

    def __call__(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        # A cache of casts would be captured half way.
        with torch.autocast(self.device.type, dtype=torch.bfloat16, cache_enabled=False):
            output = self.model(self.inputs)
        functional.cross_entropy(output.float(), self.target).backward()
        self.optimizer.step()


def train_beside(device_type: str, n_steps: int, barrier: Any, rates: Any) -> None:
    """What each of several processes on one device does: steps, timed from a common start."""
    torch.set_num_threads(1)
    step = Bf16Step("SimpleCNN", 64, torch.device(device_type))
    for number in range(n_steps + 3):
        if number == 3:
            synchronize(step.device)
            barrier.wait(PATIENCE_SECONDS)
            started_at = time.perf_counter()
        step()
    synchronize(step.device)
    rates.put(n_steps / (time.perf_counter() - started_at))


def tensors_of(state: Any) -> list[torch.Tensor]:
    """Copies of all tensors of a state but the scaler's, in order."""
    if isinstance(state, torch.Tensor):
        return [state.detach().clone()]
    if isinstance(state, dict):
        state = [value for key, value in state.items() if key != "scaler"]
    return [t for value in state for t in tensors_of(value)] if isinstance(state, list) else []


def synchronize(device: torch.device) -> None:
    """Waits for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize()


class Check:
    """The parts, on one device."""

    def __init__(self, device: torch.device, *, quick: bool) -> None:
        self.device, self.quick = device, quick
        self.folders = (Path(tempfile.mkdtemp()) / str(number) for number in itertools.count())

    def kit(self) -> None:
        """Resuming, skipping and running out of memory, as on the CPU."""
        settings = {"precision": "bf16", "deterministic": True, "epochs": 3, "n_samples": 512}
        if self.quick:
            settings |= {"net": "MLP", "n_samples": 64}
        whole, first = self.training(**settings), self.training(Silent(pause_after=0), **settings)
        whole.train()
        try:
            first.train()
        except TrialReleased:
            second = self.training(resume_dirs=(first.trial.checkpoint_dir,), **settings)
        second.train()
        pairs = zip(
            whole.learner.model.parameters(), second.learner.model.parameters(), strict=True
        )
        emit("resume", difference=max(float((a - b).detach().abs().max()) for a, b in pairs))
        torch.use_deterministic_algorithms(False)
        for is_fused in (False, True):
            self.overflow(is_fused=is_fused)
        for kind in ("fp32", "bf16", "fp16"):
            self.dtypes(kind)
        self.peak()
        self.out_of_memory()

    def overflow(self, *, is_fused: bool) -> None:
        """One overflow: weights, moments and average stay, the scale halves."""
        training = self.training(
            net="MLP", precision="fp16", n_samples=64, fused=is_fused, ema_decay=0.9
        )
        learner = training.learner
        learner.train_step(next(training.train_data.batches(64, self.device)))
        before = tensors_of(learner.state_dict())
        inputs = torch.full((64, 3, 32, 32), 1e30, device=self.device)
        _, result = learner.train_step(
            (inputs, torch.zeros(64, dtype=torch.long, device=self.device))
        )
        same = all(map(torch.equal, before, tensors_of(learner.state_dict())))
        emit(
            "overflow",
            fused=is_fused,
            stepped=result.stepped,
            scale=result.scale,
            state_unchanged=same,
        )

    def dtypes(self, kind: str) -> None:
        """What the layers compute in, and what the loss gets."""
        training, layers, losses = self.training(net="MLP", precision=kind, n_samples=64), set(), []
        for module in training.learner.model.modules():
            if isinstance(module, nn.Linear):
                module.register_forward_hook(lambda _m, _i, output: layers.add(str(output.dtype)))
        loss = training.recipe.loss
        training.recipe.loss = lambda output, target: (
            losses.append(str(output.dtype)),
            loss(output, target),
        )[1]
        training.train_epoch()
        training.evaluate()
        emit("dtypes", kind=kind, layers=sorted(layers), losses=sorted(set(losses)))

    def peak(self) -> None:
        """The peak of a trial is its own, not that of a larger one before it."""
        peaks = []
        for batch_size in (8, 16) if self.quick else (512, 8):
            objective, link = Pictures(), Silent()
            objective(self.trial(link, (), batch_size=batch_size, n_samples=batch_size, epochs=1))
            peaks.append(link.attrs.get("peak_mb"))
        emit("peak", peak_mb=peaks)

    def out_of_memory(self) -> None:
        """A batch that does not fit is split, a sample that does not ends the trial."""
        if self.device.type != "cuda":
            return
        self.too_large_a_batch()
        held = torch.cuda.memory_allocated()

        class Huge(Pictures):
            def step(self, forward: Any, batch: Any) -> torch.Tensor:
                blocks = [torch.empty(2**33, device=batch[0].device) for _ in range(64)]
                return super().step(forward, batch) * len(blocks)

        try:
            Huge()(self.trial(Silent(), (), n_samples=64))
        except TrialFailed as failure:
            emit("out of memory", reason=failure.reason, message=str(failure))
        emit("memory after it", held_before=held, held_after=torch.cuda.memory_allocated())
        self.training(epochs=1, n_samples=64).train()

    def too_large_a_batch(self) -> None:
        """A real shortage that halving cures: the process may take 4 GiB of the device."""
        total = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(4 * 2**30 / total)
        training = self.training(net="ResNet-18", batch_size=2048, n_samples=2048, epochs=1)
        training.train()
        torch.cuda.set_per_process_memory_fraction(1.0)
        emit("halved", batch=2048, micro_batch=training.learner.micro_batch)

    def precision(self) -> None:
        """Steps a second and memory of each precision."""
        sizes = {"SimpleCNN": (64, 4096), "ResNet-18": (64, 1024)}
        for net, batch_sizes in list(sizes.items())[: 1 if self.quick else 2]:
            for batch_size in (8,) if self.quick else batch_sizes:
                for kind in KINDS:
                    if self.device.type == "cuda" or kind != "fp16":
                        emit(
                            "precision",
                            net=net,
                            batch=batch_size,
                            kind=kind,
                            **self.figures(net, batch_size, kind),
                        )

    def figures(self, net: str, batch_size: int, kind: str) -> dict[str, float]:
        """Figures of one net at one batch size."""
        name, channels_last = KINDS[kind]
        layout = torch.channels_last if channels_last else torch.contiguous_format
        precision = Precision(name, self.device)
        model = NETS[net]().to(self.device, memory_format=layout)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        inputs = torch.randn(batch_size, 3, 32, 32, device=self.device).contiguous(
            memory_format=layout
        )
        target = torch.randint(10, (batch_size,), device=self.device)
        forward = precision.forward(model)

        def step() -> None:
            optimizer.zero_grad()
            precision.backward(functional.cross_entropy(forward(inputs), target))
            precision.step(optimizer, clip_norm=None)

        seconds = self.seconds_of(step, n_steps=3 if self.quick else 50)
        held, peak = self.memory(step)
        return {
            "steps_per_second": round(1 / seconds, 1),
            "held_mb": held,
            "activation_mb": peak - held,
        }

    def harness(self) -> None:
        """An epoch of the kit beside a loop by hand, taken in turns."""
        for net, batch_size in (("SimpleCNN", 64), ("ResNet-18", 256))[: 1 if self.quick else 2]:
            n_samples = 64 if self.quick else batch_size * 40
            training = self.training(
                net=net, batch_size=batch_size, n_samples=n_samples, precision="bf16"
            )
            by_hand = self.loop_by_hand(net, batch_size, n_samples)
            times = [
                [self.seconds_of(run, 1) for run in (training.train_epoch, by_hand)]
                for _ in range(2 if self.quick else 7)
            ]
            kit, hand = (statistics.median(column) for column in zip(*times, strict=True))
            emit(
                "harness",
                net=net,
                batch=batch_size,
                kit_ms=kit * 1e3,
                by_hand_ms=hand * 1e3,
                ratio=kit / hand,
            )

    def loop_by_hand(self, net: str, batch_size: int, n_samples: int) -> Callable[[], None]:
        """The shortest bf16 epoch that trains the same."""
        model = NETS[net]().to(self.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        inputs = torch.randn(n_samples, 3, 32, 32, device=self.device)
        target = torch.randint(10, (n_samples,), device=self.device)

        def epoch() -> None:
            for index in torch.randperm(n_samples, device=self.device).split(batch_size):
                optimizer.zero_grad()
                with torch.autocast(self.device.type, dtype=torch.bfloat16):
                    output = model(inputs[index])
                functional.cross_entropy(output.float(), target[index]).backward()
                optimizer.step()

        return epoch

    def data(self) -> None:
        """Resident tensors beside a DataLoader."""
        for workers in (None, 0) if self.quick else (None, 0, 4):
            training = self.training(
                n_samples=64 if self.quick else 20_000,
                resident=workers is None,
                loader_workers=workers or 0,
            )
            seconds = self.seconds_of(training.train_epoch, 1)
            emit("data", loader_workers=workers, epoch_seconds=round(seconds, 4))

    def processes(self) -> None:
        """Several trials on one device, each in a process of its own."""
        context = multiprocessing.get_context("spawn")
        for n_processes in (2,) if self.quick else (1, 4, 8):
            barrier, rates = context.Barrier(n_processes + 1), context.Queue()
            arguments = (self.device.type, 3 if self.quick else 500, barrier, rates)
            children = [
                context.Process(target=train_beside, args=arguments) for _ in range(n_processes)
            ]
            started_at = time.perf_counter()
            for child in children:
                child.start()
            barrier.wait(PATIENCE_SECONDS)
            start_seconds = time.perf_counter() - started_at
            found = [rates.get(timeout=PATIENCE_SECONDS) for _ in children]
            for child in children:
                child.join()
            emit(
                "processes",
                processes=n_processes,
                start_seconds=round(start_seconds, 2),
                steps_per_second_each=round(statistics.median(found), 1),
                steps_per_second_together=round(sum(found), 1),
            )

    def graph(self) -> None:
        """A whole bf16 step as one CUDA graph beside the same step launched kernel by kernel."""
        if self.device.type != "cuda":
            emit("graph", left_out="needs CUDA")
            return
        for net in ("MLP", "SimpleCNN"):
            step = Bf16Step(net, 64, self.device)
            eager = self.seconds_of(step, 200)
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    step()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
            replayed = self.seconds_of(graph.replay, 200)
            emit(
                "graph",
                net=net,
                eager_us=eager * 1e6,
                graph_us=replayed * 1e6,
                gain=eager / replayed,
            )

    def training(
        self, link: Silent | None = None, resume_dirs: Any = (), **settings: Any
    ) -> Training:
        """A training of `Pictures` with these settings."""
        return Training(Pictures(), self.trial(link or Silent(), resume_dirs, **settings))

    def trial(self, link: Silent, resume_dirs: Any, **settings: Any) -> Trial:
        """A trial without a service."""
        defaults = {"net": "SimpleCNN", "resident": True, "fused": None, "checkpoint_seconds": 1000}
        return Trial(
            link,
            study="check",
            number=0,
            settings={**defaults, "allow_slow": True, **settings},
            device=self.device.type,
            checkpoint_dir=next(self.folders),
            resume_dirs=resume_dirs,
        )

    def seconds_of(self, run: Callable[[], Any], n_steps: int) -> float:
        """Seconds of one call, after a warm-up, the device's work included."""
        for _ in range(max(1, n_steps // 5)):
            run()
        synchronize(self.device)
        started_at = time.perf_counter()
        for _ in range(n_steps):
            run()
        synchronize(self.device)
        return (time.perf_counter() - started_at) / n_steps

    def memory(self, step: Callable[[], None]) -> tuple[int, int]:
        """MB held between two steps, and at the peak of one."""
        if self.device.type != "cuda":
            return 0, 0
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated() >> 20
        step()
        return held, torch.cuda.max_memory_allocated() >> 20


def emit(part: str, **facts: Any) -> None:
    """One line of output."""
    sys.stdout.write(json.dumps({"part": part, **facts}) + "\n")
    sys.stdout.flush()


def main() -> None:
    parts = ("kit", "precision", "harness", "data", "processes", "graph")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    check = Check(torch.device(arguments.device), quick=arguments.quick)
    name = torch.cuda.get_device_name() if arguments.device == "cuda" else "CPU"
    emit("device", name=name, torch=torch.__version__)
    for part in arguments.parts:
        getattr(check, part)()


if __name__ == "__main__":
    main()
