"""Those who serve trials side by side: the service, and its peers on copies of its database."""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.acceptance.conftest import await_fact, free_port
from tests.acceptance.faults import family
from tests.benchmarks import stock
from tests.benchmarks.databases import MODULE, STUDY
from tests.benchmarks.protocol import ProtocolWorker
from tests.benchmarks.service import service_on

N_CLIENTS = 8
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
