"""A restart with 10,000 stored trials: how soon something is decided, and how much memory it takes.

    python -m tests.benchmarks.restart --kind postgresql

From the start of the process to the verdict on the first report of a new trial: `hpo api` beside
a fresh process of stock Optuna. Memory is what the API process holds once it has decided, beyond
what it holds with a study of no trials.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.benchmarks.databases import KINDS, PARAMS, STUDY, databases
from tests.benchmarks.figures import Figure, Report, ratio
from tests.benchmarks.protocol import ProtocolWorker, curve
from tests.benchmarks.service import service_on

PART = "restart"
MANY = 10_000
N_ROUNDS = 3
LEAST_RATIO, MOST_MB = 6.0, 100.0
MB = 1_000_000
PROGRAM = """
import sys, optuna
optuna.logging.set_verbosity(optuna.logging.ERROR)
url, name, *params = sys.argv[1:]
pruner, sampler = optuna.pruners.MedianPruner(), optuna.samplers.RandomSampler(seed=1)
study = optuna.load_study(study_name=name, storage=url, sampler=sampler, pruner=pruner)
trial = study.ask()
for param in params:
    trial.suggest_float(param, 0.0, 1.0)
trial.report(0.5, 0)
assert not trial.should_prune()
study.tell(trial, 0.5)
"""


def stock_seconds(url: str) -> float:
    """A fresh process of stock Optuna, from its start to its first decision."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", PROGRAM, url, STUDY, *PARAMS], check=True)
    return time.perf_counter() - begin


@dataclass(frozen=True, kw_only=True)
class Start:
    """One start of the API: seconds until it was ready and had decided, megabytes held then."""

    ready: float
    decided: float
    held: float


def start(url: str) -> Start:
    begin = time.perf_counter()
    with service_on(url) as service:
        ready = time.perf_counter() - begin
        decided = asyncio.run(_decide(service.port, begin))
        held = psutil.Process(service.api.pid).memory_info().rss / MB
    return Start(ready=ready, decided=decided, held=held)


async def _decide(port: int, begin: float) -> float:
    worker = ProtocolWorker(port)
    await worker.register()
    claim = await worker.claim()
    assert claim is not None
    await worker.say(claim, "start", resumed_from_step=None)
    answer = await worker.report(claim, 0, curve()[0])
    seconds = time.perf_counter() - begin
    assert answer["verdict"] == "continue"
    await worker.say(claim, "complete", value=0.5)
    for _ in range(2):
        assert await worker.serve_one()
    worker.close()
    return seconds


def measure(
    report: Report,
    *,
    kinds: Sequence[str] = KINDS,
    n_stored: int = MANY,
    samplers: Sequence[str] = ("random", "tpe"),
    n_rounds: int = N_ROUNDS,
) -> None:
    """Adds seconds of both, their ratio, and the memory of the stored trials."""
    for kind in kinds:
        with tempfile.TemporaryDirectory() as folder, databases(kind, Path(folder)) as places:
            for sampler in samplers:
                what = f"{places.kind}, {n_stored:,} stored, {sampler}"
                ours, theirs, alone = [], [], []
                with contextlib.ExitStack() as stack:
                    empty, full, plain = (
                        stack.enter_context(places.stored(n, sampler))
                        for n in (0, n_stored, n_stored)
                    )
                    for _ in range(n_rounds):
                        ours.append(start(full))
                        theirs.append(stock_seconds(plain))
                        alone.append(start(empty))
                decided = [one.decided for one in ours]
                more = [a.held - b.held for a, b in zip(ours, alone, strict=True)]
                report.add(
                    _figure(f"hpo ready, {what}", [one.ready for one in ours], unit="s"),
                    _figure(f"hpo decides, {what}", decided, unit="s"),
                    _figure(f"stock decides, {what}", theirs, unit="s"),
                    ratio(PART, f"stock / hpo, {what}", theirs, decided, at_least=LEAST_RATIO),
                    _figure(f"memory of the trials, {what}", more, unit="MB", at_most=MOST_MB),
                )


def _figure(name: str, values: Sequence[float], **fields: Any) -> Figure:
    return Figure(part=PART, name=name, values=values, **fields)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kind", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--stored", type=int, default=MANY)
    parser.add_argument("--sampler", nargs="+", default=["random"], choices=["random", "tpe"])
    parser.add_argument("--rounds", type=int, default=N_ROUNDS)
    options = parser.parse_args()
    measure(
        Report(),
        kinds=options.kind,
        n_stored=options.stored,
        samplers=options.sampler,
        n_rounds=options.rounds,
    )


if __name__ == "__main__":
    main()
