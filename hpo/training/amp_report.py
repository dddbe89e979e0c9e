"""What the comparison of precisions found, as rows, as a document and as a sentence."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from hpo.numbers import strict
from hpo.training.amp_benchmark import BASE, BenchmarkOptions, Entry, Heat
from hpo.version import __version__

FORMAT = 1
# Less than this is noise on most machines.
WORTH = 1.05
# Quartiles of fewer say nothing.
ENOUGH_ROUNDS = 3
FIGURES = (
    *("seconds_per_step", "steps_per_second", "speed_to_fp32"),
    *("held_bytes", "activation_bytes", "weight_copy_bytes"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """The median of some rounds, and the quartiles about it."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if len(values) == 1:
            return cls(low=values[0], median=values[0], high=values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(low=low, median=median, high=high)


def gain(entry: Entry, over: Entry) -> Spread:
    """How many steps an entry makes while the other makes one.

    The median is that of the two medians, as the table shows them; the quartiles are of rounds.
    """
    pairs = zip(over.seconds, entry.seconds, strict=False)  # one that did not fit has none
    rounds = Spread.of([theirs / ours for theirs, ours in pairs])
    median = statistics.median(over.seconds) / statistics.median(entry.seconds)
    return Spread(low=min(rounds.low, median), median=median, high=max(rounds.high, median))


def row_of(heat: Heat, entry: Entry) -> dict[str, Any]:
    """Everything about one kind of a heat; figures that are missing are None."""
    base = next(found for found in heat.entries if found.kind == BASE)
    figures: dict[str, Any] = dict.fromkeys(FIGURES)
    if entry.footprint is not None:
        figures |= asdict(entry.footprint)
    if entry.seconds:
        spread = Spread.of(entry.seconds)
        figures |= {"seconds_per_step": asdict(spread), "steps_per_second": 1 / spread.median}
    if entry.seconds and base.seconds:
        figures["speed_to_fp32"] = asdict(gain(entry, base))
    return {
        "net": heat.options.model,
        "batch": heat.batch_size,
        "kind": entry.kind.name,
        "precision": entry.kind.precision,
        "channels_last": entry.kind.channels_last,
        "tf32": entry.tf32,
        "layers": entry.n_layers,
        "half_layers": entry.n_half_layers,
        **figures,
        "peak_bytes": entry.peak_bytes,
        "steps_per_repeat": entry.n_steps,
        "repeats": list(entry.seconds),
        "loss_first_and_last": list(entry.losses),
        "failure": entry.failure,
    }


def conclusion_of(heat: Heat) -> str | None:
    """Whether mixed precision pays here; None before the first round has ended."""
    plain, best = (_fastest(heat, is_amp=is_amp) for is_amp in (False, True))
    if plain is None or best is None:
        return None
    n_rounds = min(len(best.seconds), len(plain.seconds))
    if n_rounds < ENOUGH_ROUNDS:
        return (
            f"Rounds: {n_rounds}, too few to say whether AMP pays here at batch "
            f"{heat.batch_size} for {heat.options.model}; take {ENOUGH_ROUNDS} or more (--repeats)."
        )
    found = gain(best, plain)
    pays = "pays" if found.low > WORTH else "does not pay"
    return (
        f"AMP {pays} here at batch {heat.batch_size} for {heat.options.model}: its fastest kind, "
        f"{best.kind.name}, makes {found.median:.2f} times the steps of {plain.kind.name}, the "
        f"fastest without it (half of the rounds from {found.low:.2f} to {found.high:.2f})"
        f"{_memory_words(best, plain)}."
    )


def document_of(
    heats: Sequence[Heat], options: BenchmarkOptions, device: torch.device, *, is_complete: bool
) -> dict[str, Any]:
    """The whole as strict JSON: machine, versions, settings, rows with raw repeats."""
    document: dict[str, Any] = strict(
        {
            "format": FORMAT,
            "complete": is_complete,
            "machine": machine(device),
            "versions": versions(),
            "settings": {**asdict(options), "device": device.type},
            "rows": [row_of(heat, entry) for heat in heats for entry in heat.entries],
            "conclusions": [text for heat in heats if (text := conclusion_of(heat))],
        }
    )
    return document


def machine(device: torch.device) -> dict[str, Any]:
    """What the figures hold for."""
    found: dict[str, Any] = {
        "device": device.type,
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.platform(),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found["gpu"] = properties.name
        found["gpu_bytes"] = properties.total_memory
        found["capability"] = f"{properties.major}.{properties.minor}"
    return found


def versions() -> dict[str, str | None]:
    """Of all that makes a difference."""
    return {
        "hpo": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]  # torch leaves it so
    }


def _fastest(heat: Heat, *, is_amp: bool) -> Entry | None:
    timed = [found for found in heat.entries if found.seconds and found.kind.is_amp is is_amp]
    return min(timed, key=lambda entry: statistics.median(entry.seconds), default=None)


def _memory_words(best: Entry, plain: Entry) -> str:
    if best.footprint is None or plain.footprint is None:
        return ""
    share = best.footprint.activation_bytes / plain.footprint.activation_bytes
    return f", and keeps {share:.2f} of its activation bytes"


def _processor() -> str:
    table = Path("/proc/cpuinfo")
    if table.is_file():
        for line in table.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
