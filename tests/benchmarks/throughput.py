"""Trials a second that do nothing: eight clients of the service beside eight of its peers.

    python -m tests.benchmarks.throughput --kind postgresql --stored 1000 --peers stock

`children` are trials in processes of a real worker, `ray` is Ray Tune where it is installed; both
are shown, not judged. Every contender works on a copy of the same database and keeps its processes
from turn to turn. A round is one turn of each, in random order, so that what slows the machine
slows all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import itertools
import json
import math
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from tests.acceptance.conftest import await_fact, free_port
from tests.acceptance.faults import family
from tests.benchmarks import stock
from tests.benchmarks.databases import KINDS, MODULE, STUDY, Databases, databases
from tests.benchmarks.figures import Figure, Report, ratio
from tests.benchmarks.processors import Processors
from tests.benchmarks.protocol import ProtocolWorker
from tests.benchmarks.service import service_on

PART = "trials/s"
N_CLIENTS = 8
N_ROUNDS = 5
TURN_SECONDS = 5.0
READY_SECONDS = 300.0

OBJECTIVE = """
def nothing(trial):
    for step in range(10):
        trial.report(0.5 + 0.1 / (step + 1), step)
    return 0.5
"""

# How many trials all clients together have served in a turn of so many seconds, and a second.
Turn = Callable[[float], tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Contender:
    """Someone to serve trials, and the processes in which it does so, by a name for each."""

    turn: Turn
    groups: Mapping[str, int]


Contenders = Iterator[Contender]


@contextlib.contextmanager
def hpo(url: str, _sampler: str) -> Contenders:
    """Protocol clients of a real service, in this process: they need a tenth of a core."""
    with service_on(url) as service, asyncio.Runner() as runner:
        workers = [ProtocolWorker(service.port, name=f"bench:{i}") for i in range(N_CLIENTS)]

        async def register() -> None:
            await asyncio.gather(*(worker.register() for worker in workers))

        async def turn(seconds: float) -> tuple[float, float]:
            return together(
                await asyncio.gather(*(_serve_for(worker, seconds) for worker in workers))
            )

        runner.run(register())
        yield Contender(
            turn=lambda seconds: runner.run(turn(seconds)),
            groups={"the API": service.api.pid, "the clients": os.getpid()},
        )
        for worker in workers:
            worker.close()


def together(served: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Trials and trials a second of all; each ended its last trial in its own time."""
    return sum(n for n, _ in served), sum(n / seconds for n, seconds in served)


async def _serve_for(worker: ProtocolWorker, seconds: float) -> tuple[int, float]:
    begin = time.perf_counter()
    n_trials = 0
    while time.perf_counter() - begin < seconds:
        assert await worker.serve_one()
        n_trials += 1
    return n_trials, time.perf_counter() - begin


@contextlib.contextmanager
def stock_optuna(url: str, sampler: str, proxy_port: int | None = None) -> Contenders:
    """Processes of stock Optuna on the database, or behind the gRPC proxy on this port."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for seed in range(N_CLIENTS):
        ours, theirs = context.Pipe()
        arguments = (url, sampler, proxy_port, seed, theirs)
        process = context.Process(target=stock.serve_turns, args=arguments, daemon=True)
        process.start()
        pipes.append(ours)
        processes.append(process)

    def turn(seconds: float) -> tuple[float, float]:
        for pipe in pipes:
            pipe.send(seconds)
        return together([pipe.recv() for pipe in pipes])

    try:
        for pipe in pipes:
            assert pipe.poll(READY_SECONDS), "a process of Optuna did not get ready"
            pipe.recv()
        yield Contender(turn=turn, groups={str(found.pid): found.pid for found in processes})
    finally:
        for process in processes:
            process.terminate()
            process.join()


@contextlib.contextmanager
def grpc_proxy(url: str, sampler: str) -> Contenders:
    """Processes of stock Optuna behind one process of its gRPC proxy."""
    context = multiprocessing.get_context("spawn")
    port = free_port()
    proxy = context.Process(target=stock.serve_proxy, args=(url, port), daemon=True)
    proxy.start()
    try:
        with stock_optuna(url, sampler, port) as behind:
            assert proxy.pid is not None
            yield Contender(turn=behind.turn, groups={**behind.groups, "the proxy": proxy.pid})
    finally:
        proxy.terminate()
        proxy.join()


@contextlib.contextmanager
def children(url: str, _sampler: str) -> Contenders:
    """Trials in processes of their own: a real worker with a slot for each client."""
    with tempfile.TemporaryDirectory() as folder, service_on(url) as service:
        (Path(folder) / f"{MODULE}.py").write_text(OBJECTIVE)
        slots = ("--slots", str(N_CLIENTS), "--devices", "cpu")
        worker = service.start_worker("--code", folder, "--allow", MODULE, *slots)

        def n_complete() -> int:
            return int(service.client.study(STUDY)["counts"]["COMPLETE"])

        def turn(seconds: float) -> tuple[float, float]:
            with working(worker.pid):
                n_before, begin = n_complete(), time.perf_counter()
                time.sleep(seconds)
                return together([(n_complete() - n_before, time.perf_counter() - begin)])

        before = n_complete()
        await_fact(lambda: n_complete() > before, what="for a trial")
        stand_still(worker.pid)
        try:
            yield Contender(
                turn=turn, groups={"the API": service.api.pid, "the worker": worker.pid}
            )
        finally:
            go_on(worker.pid)


def stand_still(pid: int) -> None:
    """A worker without a turn costs nothing; its leases last longer than a round."""
    for process in family(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.suspend()


def go_on(pid: int) -> None:
    for process in family(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()


@contextlib.contextmanager
def working(pid: int) -> Iterator[None]:
    """A worker at work in the block alone."""
    go_on(pid)
    try:
        yield
    finally:
        stand_still(pid)


@contextlib.contextmanager
def ray_tune(url: str, sampler: str) -> Contenders:
    """Ray Tune with Optuna's search; a turn is a trial for each client, however long that takes."""
    command = [sys.executable, "-m", "tests.benchmarks.ray_tune", url, sampler]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, text=True, **pipes)
    assert process.stdin is not None
    assert process.stdout is not None
    questions, answers = process.stdin, process.stdout

    def turn(_seconds: float) -> tuple[float, float]:
        questions.write("serve\n")
        questions.flush()
        return together([json.loads(answers.readline())])

    try:
        assert answers.readline(), "Ray did not start"
        yield Contender(turn=turn, groups={"Ray": process.pid})
    finally:
        questions.close()
        process.wait()


CONTENDERS: Mapping[str, Callable[[str, str], contextlib.AbstractContextManager[Contender]]] = {
    "hpo": hpo,
    "stock": stock_optuna,
    "grpc": grpc_proxy,
    "children": children,
    "ray": ray_tune,
}
PEERS = [name for name in CONTENDERS if name != "hpo"]
NAMES = {
    "hpo": "hpo",
    "stock": "stock Optuna",
    "grpc": "Optuna's gRPC proxy",
    "children": "hpo with real children",
    "ray": "Ray Tune with Optuna",
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A size, a sampler, and those who are measured beside the service."""

    n_stored: int
    sampler: str
    peers: Sequence[str]


CASES = (
    Case(n_stored=1_000, sampler="random", peers=("stock", "grpc", "children")),
    Case(n_stored=1_000, sampler="tpe", peers=("stock",)),
    Case(n_stored=10_000, sampler="random", peers=("stock",)),
)


def cases() -> tuple[Case, ...]:
    """All of them; Ray Tune is among the peers where it is installed."""
    if importlib.util.find_spec("ray") is None:
        return CASES
    first, *rest = CASES
    return replace(first, peers=(*first.peers, "ray")), *rest


@dataclass
class Found:
    """What one contender has done, once for each round."""

    rates: list[float] = field(default_factory=list)
    work: list[float] = field(default_factory=list)  # processor's milliseconds for a trial


def found_of(
    places: Databases, case: Case, *, n_rounds: int, turn_seconds: float
) -> dict[str, Found]:
    """What each contender does in each round, after a short turn to warm up."""
    server = {} if places.pid is None else {"PostgreSQL": places.pid}
    with contextlib.ExitStack() as stack:
        contenders = {}
        for name in ("hpo", *case.peers):
            url = stack.enter_context(places.stored(case.n_stored, case.sampler))
            contenders[name] = stack.enter_context(CONTENDERS[name](url, case.sampler))
        for contender in contenders.values():
            contender.turn(turn_seconds / 5)
        found = {name: Found() for name in contenders}
        order = random.Random(1)
        for _ in range(n_rounds):
            for name in order.sample(list(contenders), k=len(contenders)):
                contender = contenders[name]
                processors = Processors({**contender.groups, **server})
                n_trials, rate = contender.turn(turn_seconds)
                work = 1000 * sum(processors.since().values())
                found[name].rates.append(rate)
                found[name].work.append(work / n_trials if n_trials else math.inf)
        return found


def bound_of(kind: str, n_stored: int, peer: str) -> float | None:
    """How many times as fast as stock Optuna the service has to be."""
    if peer != "stock":
        return None
    if n_stored >= 10_000:
        return 5.0
    return 3.0 if kind == "PostgreSQL" else 4.0


def measure(
    report: Report,
    *,
    kinds: Sequence[str] = KINDS,
    chosen: Sequence[Case] | None = None,
    n_rounds: int = N_ROUNDS,
    turn_seconds: float = TURN_SECONDS,
) -> None:
    """Adds the rates of all contenders, and how many times as fast the service is."""
    for kind in kinds:
        with tempfile.TemporaryDirectory() as folder, databases(kind, Path(folder)) as places:
            for case in cases() if chosen is None else chosen:
                found = found_of(places, case, n_rounds=n_rounds, turn_seconds=turn_seconds)
                report.add(*_figures(places.kind, case, found))


def _figures(kind: str, case: Case, found: Mapping[str, Found]) -> Iterator[Figure]:
    what = f"{kind}, {case.n_stored:,} stored, {case.sampler}"
    ours = found["hpo"]
    for name, theirs in found.items():
        label = f"{NAMES[name]}, {what}"
        yield Figure(part=PART, name=label, values=theirs.rates, unit="trials/s")
        # Work does not depend on what neighbours leave of the machine.
        yield Figure(part=PART, name=f"{label}: work", values=theirs.work, unit="ms/trial")
    for peer in case.peers:
        # The bounds are those of the random sampler: what TPE thinks costs both the same.
        bound = bound_of(kind, case.n_stored, peer) if case.sampler == "random" else None
        theirs, label = found[peer], f"hpo / {NAMES[peer]}, {what}"
        yield ratio(PART, label, ours.rates, theirs.rates, at_least=bound)
        yield ratio(PART, f"work of {NAMES[peer]} / of hpo, {what}", theirs.work, ours.work)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kind", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--stored", type=int, nargs="+", default=[1_000])
    parser.add_argument("--sampler", nargs="+", default=["random"], choices=list(stock.SAMPLERS))
    parser.add_argument("--peers", nargs="*", default=["stock"], choices=PEERS)
    parser.add_argument("--rounds", type=int, default=N_ROUNDS)
    parser.add_argument("--seconds", type=float, default=TURN_SECONDS, help="for each turn")
    options = parser.parse_args()
    chosen = [
        Case(n_stored=n_stored, sampler=sampler, peers=options.peers)
        for n_stored, sampler in itertools.product(options.stored, options.sampler)
    ]
    measure(
        Report(),
        kinds=options.kind,
        chosen=chosen,
        n_rounds=options.rounds,
        turn_seconds=options.seconds,
    )


if __name__ == "__main__":
    main()
