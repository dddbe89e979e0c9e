"""A thousand simulated workers on one service: what it bears, and whether anything gets lost.

    python -m tests.benchmarks.load --workers 1000 --seconds 180 --pauses 20 10 5 2

Each worker speaks the whole protocol: it registers, beats, claims by long poll, starts, reports,
and settles as the verdicts say. Between reports it rests for the pause of the moment, give or take
a half. Studies are launched as they are needed; when the time is over the last ones are brought to
their end, and the database is counted: each acknowledged report once, each study its trials.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import functools
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import sqlalchemy as sa

from hpo.client import Client
from hpo.space import parameter_to_json
from storage import tables as t
from tests.benchmarks.databases import KINDS, N_REPORTS, databases, definition
from tests.benchmarks.figures import Figure, Report
from tests.benchmarks.processors import Processors
from tests.benchmarks.protocol import ProtocolWorker
from tests.benchmarks.service import service_on
from tests.benchmarks.wire import Refused, Wire

PART = "load"
N_WORKERS, SECONDS = 1000, 180.0
PAUSES = (20.0, 10.0, 5.0, 2.0)
RETRY_SECONDS = 1.0
DRAIN_SECONDS = 600.0
BEAT_SHARE = (0.9, 1.1)
Ack = tuple[str, int, int]  # study, trial, step


@dataclass
class Tally:
    """What the workers were told, and how long the answers took."""

    acknowledged: dict[Ack, float] = field(default_factory=dict)
    settled: set[tuple[str, int]] = field(default_factory=set)
    seconds: dict[str, list[float]] = field(
        default_factory=lambda: collections.defaultdict(list[float])
    )
    faults: collections.Counter[str] = field(default_factory=collections.Counter)

    def note(self, verb: str, seconds: float) -> None:
        self.seconds[verb].append(seconds)

    def taken(self) -> dict[str, list[float]]:
        """The times since the last call."""
        found = dict(self.seconds)
        self.seconds.clear()
        return found


class SimulatedWorker:
    """One worker with one slot, and its heartbeat on a connection of its own."""

    def __init__(self, index: int, load: Load) -> None:
        self._load, self._tally = load, load.tally
        self._random = random.Random(index)
        self._worker = ProtocolWorker(load.port, name=f"node{index}:1", note=self._tally.note)
        self._beats = Wire(load.port)
        self._held: list[str] = []

    async def serve(self) -> None:
        """Trials until there are no more."""
        times = await self._patiently(self._worker.register)
        beating = asyncio.create_task(self._beat(float(times["heartbeat_seconds"])))
        try:
            while not self._load.is_over:
                claim = await self._patiently(lambda: self._worker.claim(2.0))
                if claim is not None:
                    await self._perform(claim)
        finally:
            beating.cancel()
            self._worker.close()
            self._beats.close()

    async def _perform(self, claim: dict[str, Any]) -> None:
        self._held = [claim["token"]]
        try:
            await self._attempt(claim)
        except Refused as refused:  # a worker ends its child then, and asks for the next trial
            self._tally.faults[f"refused: {refused.code}"] += 1
        finally:
            self._held = []

    async def _attempt(self, claim: dict[str, Any]) -> None:
        await self._say(claim, "start", resumed_from_step=None)
        value, end = 0.0, "complete"
        level = self._random.random()
        for step in range(self._load.n_reports):
            await self._rest()
            value = level + self._random.random() / (step + 1)
            answer = await self._say(
                claim, "report", step=step, value=value, elapsed_seconds=0.0, metrics={}
            )
            self._tally.acknowledged[claim["study"], claim["number"], step] = value
            if answer["verdict"] == "prune":
                end = "prune"
                break
        fields = {"value": value} if end == "complete" else {}
        await self._say(claim, end, **fields)
        self._tally.settled.add((claim["study"], claim["number"]))

    async def _say(self, claim: dict[str, Any], verb: str, **fields: Any) -> Any:
        return await self._patiently(lambda: self._worker.say(claim, verb, **fields))

    async def _rest(self) -> None:
        pause = self._load.pause
        if pause:
            await asyncio.sleep(pause * self._random.uniform(0.5, 1.5))

    async def _beat(self, heartbeat_seconds: float) -> None:
        await asyncio.sleep(heartbeat_seconds * self._random.random())
        while True:
            begin = time.perf_counter()
            path, document = f"/v1/workers/{self._worker.id}/heartbeat", {"tokens": self._held}
            answer = await self._patiently(functools.partial(self._beats.post, path, document))
            self._tally.note("heartbeat", time.perf_counter() - begin)
            # A trial that was settled meanwhile is told as lost, too.
            self._tally.faults["leases lost"] += sum(
                token in self._held for token in answer["lost"]
            )
            await asyncio.sleep(heartbeat_seconds * self._random.uniform(*BEAT_SHARE))

    async def _patiently(self, call: Any) -> Any:
        """Asks again while the service is away or too busy: every request may be repeated."""
        while True:
            try:
                return await call()
            except Refused as refused:
                if refused.status < 500:
                    raise
                self._tally.faults[f"answered {refused.status}, asked again"] += 1
            except (OSError, asyncio.IncompleteReadError) as error:
                self._tally.faults[f"{type(error).__name__}, asked again"] += 1
            await asyncio.sleep(RETRY_SECONDS * self._random.uniform(0.5, 1.5))


@dataclass
class Load:
    """The workers, and the studies that keep them busy."""

    port: int
    n_workers: int
    n_reports: int
    pause: float = 0.0
    tally: Tally = field(default_factory=Tally)
    launched: dict[str, int] = field(default_factory=dict)
    is_over: bool = False

    @property
    def n_per_study(self) -> int:
        return max(20, self.n_workers // 5)

    async def run(self, pauses: Sequence[float], seconds: float, on_step: Any) -> None:
        """One step for each pause, then what is left of the studies to its end."""
        tasks = [
            asyncio.create_task(SimulatedWorker(index, self).serve())
            for index in range(self.n_workers)
        ]
        feeding = asyncio.create_task(self._feed())
        self.pause = pauses[0]
        await self._busy()
        for pause in pauses:
            self.pause = pause
            await on_step(None)
            await asyncio.sleep(seconds / len(pauses))
            await on_step(pause)
        feeding.cancel()
        self.pause = 0.0
        await self._drained()
        self.is_over = True
        await asyncio.gather(*tasks)

    async def _feed(self) -> None:
        """Always trials for twice as many workers as there are."""
        wire = Wire(self.port)
        while True:
            n_left = sum(self.launched.values()) - len(self.tally.settled)
            if n_left < 2 * self.n_workers:
                name = f"load-{len(self.launched)}"
                await wire.post("/v1/studies", _document(name, self.n_per_study))
                self.launched[name] = self.n_per_study
            else:
                await asyncio.sleep(0.1)

    async def _busy(self) -> None:
        """Until every worker has had its first report acknowledged, or half a minute."""
        give_up_at = time.monotonic() + 30
        while len(self.tally.acknowledged) < self.n_workers and time.monotonic() < give_up_at:
            await asyncio.sleep(0.1)

    async def _drained(self) -> None:
        give_up_at = time.monotonic() + DRAIN_SECONDS
        while len(self.tally.settled) < sum(self.launched.values()):
            if time.monotonic() > give_up_at:
                self.tally.faults["the studies did not come to their end in time"] += 1
                return
            await asyncio.sleep(0.2)


def _document(name: str, n_trials: int) -> dict[str, Any]:
    made = definition()
    return {
        "name": name,
        "objective": made.objective,
        "direction": made.direction,
        "space": {key: parameter_to_json(parameter) for key, parameter in made.space.items()},
        "sampler": "random",
        "n_trials": n_trials,
    }


def count(url: str, load: Load) -> list[Figure]:
    """What stands in the database against what the workers were told."""
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        study, trial, step = t.hpo_study.c, t.trials.c, t.trial_steps.c
        rows = connection.execute(
            sa.select(study.name, trial.number, step.step, step.intermediate_value)
            .join(t.trials, trial.study_id == study.study_id)
            .join(t.trial_steps, step.trial_id == trial.trial_id)
        ).all()
        ended = connection.execute(
            sa.select(study.name, sa.func.count(), sa.func.count(sa.distinct(trial.number)))
            .join(t.trials, trial.study_id == study.study_id)
            .where(sa.cast(trial.state, sa.String).in_(["COMPLETE", "PRUNED"]))
            .group_by(study.name)
        ).all()
        n_leases = connection.execute(sa.select(sa.func.count()).select_from(t.hpo_lease)).scalar()
    engine.dispose()
    stored = collections.Counter((row.name, row.number, row.step) for row in rows)
    values = {(row.name, row.number, row.step): row.intermediate_value for row in rows}
    told = load.tally.acknowledged
    n_lost = sum(stored[key] != 1 or values[key] != value for key, value in told.items())
    exact = {row.name for row in ended if row[1] == row[2] == load.launched.get(row.name)}
    return [
        _figure("reports acknowledged", len(told)),
        _figure("of these lost, changed or doubled", n_lost, at_most=0),
        _figure("reports stored that nobody was told of", len(stored.keys() - told.keys())),
        _figure("studies", len(load.launched)),
        _figure("of these inexact", len(load.launched.keys() - exact), at_most=0),
        _figure("leases left", n_leases or 0, at_most=0),
    ]


def _figure(name: str, value: float, **fields: Any) -> Figure:
    return Figure(part=PART, name=name, values=[value], **fields)


def step_figures(
    pause: float, seconds: float, times: dict[str, list[float]], spent: dict[str, float]
) -> Iterator[Figure]:
    """Rates, latencies and the share of a core of each side, of one step."""
    what = f"pause {pause:g} s"
    n_requests = sum(map(len, times.values()))
    yield _figure(f"{what}: requests", n_requests / seconds, unit="/s")
    for verb in ("report", "claim", "heartbeat", "complete", "prune"):
        found = times.get(verb, [])
        if len(found) < 2:
            continue
        yield _figure(f"{what}: {verb}s", len(found) / seconds, unit="/s")
        points = statistics.quantiles(found, n=100, method="inclusive")
        yield _figure(f"{what}: {verb} p50", 1000 * points[49], unit="ms")
        yield _figure(f"{what}: {verb} p99", 1000 * points[98], unit="ms")
    for name, used in spent.items():
        yield _figure(f"{what}: cores of {name}", used / seconds)


def measure(
    report: Report,
    *,
    kind: str = "postgresql",
    n_workers: int = N_WORKERS,
    seconds: float = SECONDS,
    pauses: Sequence[float] = PAUSES,
    n_reports: int = N_REPORTS,
) -> None:
    """Adds what each step bore, and the count at the end."""
    _allow_connections()
    with (
        tempfile.TemporaryDirectory() as folder,
        databases(kind, Path(folder)) as places,
        places.stored(0) as url,
        service_on(url) as service,
    ):
        report.say(f"the API is process {service.api.pid}")
        groups = {"the API": service.api.pid, "the clients": psutil.Process().pid}
        if (pid := places.pid) is not None:
            groups["PostgreSQL"] = pid
        _pause_filling(service.client)
        load = Load(port=service.port, n_workers=n_workers, n_reports=n_reports)
        processors = Processors(groups)
        begin = time.perf_counter()

        async def on_step(pause: float | None) -> None:
            nonlocal begin
            took, times, spent = time.perf_counter() - begin, load.tally.taken(), processors.since()
            begin = time.perf_counter()
            if pause is not None:
                report.add(*step_figures(pause, took, times, spent))

        asyncio.run(load.run(pauses, seconds, on_step))
        report.add(*count(url, load))
        for fault, n_times in load.tally.faults.items():
            if n_times:
                report.add(_figure(fault, n_times))


def _pause_filling(client: Client) -> None:
    """The study of stored trials never ends, so its trials would not be counted."""
    for study in client.studies():
        client.pause_study(study["name"])


def _allow_connections() -> None:
    """Two connections a worker, for us and for the API, which inherits the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=N_WORKERS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for all pauses together")
    parser.add_argument("--pauses", type=float, nargs="+", default=PAUSES, help="between reports")
    parser.add_argument("--reports", type=int, default=N_REPORTS, help="of a trial")
    parser.add_argument("--kind", default="postgresql", choices=KINDS)
    options = parser.parse_args()
    report = Report()
    measure(
        report,
        kind=options.kind,
        n_workers=options.workers,
        seconds=options.seconds,
        pauses=options.pauses,
        n_reports=options.reports,
    )
    report.show()


if __name__ == "__main__":
    main()
