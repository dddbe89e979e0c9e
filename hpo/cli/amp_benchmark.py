"""`hpo amp-benchmark`: whether mixed precision pays on this machine, for a net and a batch size."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpo.cli.options import AsJson
from hpo.cli.problems import Interrupted
from hpo.cli.rooms import MissingExtra

if TYPE_CHECKING:
    from rich.table import Table

    from hpo.training.amp_benchmark import Heat

MEBIBYTE = 2**20
PARTS = ("held", "weight_copy", "activation", "peak")

Model = Annotated[
    str, typer.Option(metavar="NAME", help="simple_cnn (60,362 weights) or resnet18 (11 million).")
]
Batch = Annotated[
    list[int] | None,
    typer.Option(
        metavar="N", help="Samples of one step; give it once for each.", show_default="by device"
    ),
]
PrecisionName = Annotated[
    list[str] | None,
    typer.Option(
        "--precision",
        metavar="fp32|tf32|bf16|fp16",
        help="Give it once for each; fp32 always takes part.",
        show_default="all that the device is made for",
    ),
]
Device = Annotated[str, typer.Option(metavar="DEVICE", help="auto, cpu or cuda.")]
Steps = Annotated[
    int | None,
    typer.Option(min=1, help="Steps in one turn.", show_default="a third of a second of them"),
]
Repeats = Annotated[int, typer.Option(min=1, help="Rounds in which each kind has one turn.")]
AllowSlow = Annotated[
    bool, typer.Option("--allow-slow", help="Measure fp16 on a CPU as well, which is slow.")
]


def amp_benchmark(
    model: Model = "simple_cnn",
    batch: Batch = None,
    precision: PrecisionName = None,
    device: Device = "auto",
    steps: Steps = None,
    repeats: Repeats = 7,
    allow_slow: AllowSlow = False,
    as_json: AsJson = False,
) -> None:
    """Compare FP32 with mixed precision (AMP): time and memory of a step.

    Each kind trains the same net on the same batch, in turns, after a warm-up.

    - fp32 has TF32 off, for convolutions too, where PyTorch leaves it on; most
      published gains are over such a mixture. On CUDA tf32 is a row of its own.
    - "held" is weights, gradients, moments and the batch; AMP does not shrink
      it, and adds half copies of the weights.
    - "activations" is what the forward pass keeps for the backward pass.
    - "half layers" are those that were seen to compute in half precision.
    - "peak" is the allocator's, for one step; there is one on CUDA only.
    - channels_last is a memory layout. It helps fp32 too.

    It takes a minute or two. Ctrl-C ends it and shows what it has found so far.

    Examples:
      hpo amp-benchmark
      hpo amp-benchmark --model resnet18 --batch 16 --batch 32 --json > amp.json
      hpo amp-benchmark --device cuda --batch 64 --precision bf16
    """
    _require_torch()
    from hpo.cli.output import console, print_json
    from hpo.training.amp_benchmark import BenchmarkOptions, device_of, heats_of
    from hpo.training.amp_report import conclusion_of, document_of

    options = BenchmarkOptions(
        model=model,
        batch_sizes=tuple(batch or ()),
        precisions=tuple(precision or ()),
        n_steps=steps,
        n_repeats=repeats,
        allow_slow=allow_slow,
    )
    found = device_of(device)
    heats = heats_of(options, found)
    is_complete = _run(heats)
    if as_json:
        print_json(document_of(heats, options, found, is_complete=is_complete))
    else:
        console().print(table_of(heats))
        for text in filter(None, map(conclusion_of, heats)):
            console().print(text)
    if not is_complete:
        raise Interrupted("interrupted: the figures are of the rounds until then")


def table_of(heats: Sequence[Heat]) -> Table:
    """A line for each kind at each batch size."""
    from hpo.cli.output import table
    from hpo.training.amp_report import row_of

    sizes = ("held MB", "half copies MB", "activations MB", "peak MB")
    made = table(
        *("net", "batch", "kind", "TF32", "half layers", "ms/step", "quartiles", "x fp32", *sizes),
        right=["batch", "ms/step", "x fp32", *sizes],
    )
    for heat in heats:
        for entry in heat.entries:
            made.add_row(*_cells(row_of(heat, entry)))
        made.add_section()
    return made


def _run(heats: Sequence[Heat]) -> bool:
    """Whether all of it was done; Ctrl-C leaves what has been found."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    screen = Console(stderr=True)
    made = Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal)
    try:
        with made as progress:
            bar = progress.add_task("", total=sum(heat.n_parts for heat in heats))
            for heat in heats:
                for text in heat.run():
                    progress.update(bar, description=f"batch {heat.batch_size}: {text}")
                    progress.advance(bar)
    except KeyboardInterrupt:
        return False
    return True


def _cells(row: dict[str, Any]) -> list[str]:
    seconds, speed = row["seconds_per_step"], row["speed_to_fp32"]
    return [
        *(row["net"], str(row["batch"]), row["kind"]),
        _tf32_words(row["tf32"]),
        f"{row['half_layers']} of {row['layers']}",
        row["failure"] or ("-" if seconds is None else f"{1e3 * seconds['median']:.2f}"),
        "-"
        if seconds is None
        else " to ".join(f"{1e3 * seconds[edge]:.2f}" for edge in ("low", "high")),
        "-" if speed is None else f"{speed['median']:.2f}",
        *(_mebibytes(row[f"{part}_bytes"]) for part in PARTS),
    ]


def _tf32_words(flags: dict[str, bool]) -> str:
    states = {True: "on", False: "off"}
    return "/".join(states[flags[name]] for name in ("matmul", "cudnn")) if flags else "-"


def _mebibytes(n_bytes: int | None) -> str:
    return "-" if n_bytes is None else f"{n_bytes / MEBIBYTE:.1f}"


def _require_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise MissingExtra(
            "torch is not installed; this command needs it: pip install torch, then "
            "pip install 'hpo-service[torch]'"
        )
