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
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from hpo.client import Client
from storage import tables as t
from tests.benchmarks.databases import KINDS, N_REPORTS, databases
from tests.benchmarks.figures import Figure, Report
from tests.benchmarks.processors import Processors
from tests.benchmarks.service import service_on
from tests.benchmarks.simulated import Load

PART = "load"
N_WORKERS, SECONDS = 1000, 180.0
PAUSES = (20.0, 10.0, 5.0, 2.0)


def count(url: str, load: Load) -> Iterator[Figure]:
    """What stands in the database against what the workers were told."""
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        found = connection.execute(_steps()).all()
        ended = {row.name: (row.n_trials, row.n_numbers) for row in connection.execute(_ended())}
        n_leases = connection.execute(sa.select(sa.func.count()).select_from(t.hpo_lease)).scalar()
    engine.dispose()
    stored: dict[Any, list[float]] = collections.defaultdict(list)
    for *key, value in found:
        stored[tuple(key)].append(value)
    told = load.tally.acknowledged
    n_lost = sum(stored.get(key) != [value] for key, value in told.items())
    n_inexact = sum(ended.get(name) != (n, n) for name, n in load.launched.items())
    yield _figure("reports acknowledged", len(told))
    yield _figure("of these lost, changed or doubled", n_lost, at_most=0)
    yield _figure("reports stored that nobody was told of", len(stored.keys() - told.keys()))
    yield _figure("studies", len(load.launched))
    yield _figure("of these inexact", n_inexact, at_most=0)
    yield _figure("leases left", n_leases or 0, at_most=0)


def _steps() -> sa.Select[Any]:
    study, trial, step = t.hpo_study.c, t.trials.c, t.trial_steps.c
    return (
        sa.select(study.name, trial.number, step.step, step.intermediate_value)
        .join(t.trials, trial.study_id == study.study_id)
        .join(t.trial_steps, step.trial_id == trial.trial_id)
    )


def _ended() -> sa.Select[Any]:
    study, trial = t.hpo_study.c, t.trials.c
    n_numbers = sa.func.count(sa.distinct(trial.number)).label("n_numbers")
    return (
        sa.select(study.name, sa.func.count().label("n_trials"), n_numbers)
        .join(t.trials, trial.study_id == study.study_id)
        .where(sa.cast(trial.state, sa.String).in_(["COMPLETE", "PRUNED"]))
        .group_by(study.name)
    )


def _figure(name: str, value: float, **fields: Any) -> Figure:
    return Figure(part=PART, name=name, values=[value], **fields)


def step_figures(
    pause: float, seconds: float, times: dict[str, list[float]], spent: dict[str, float]
) -> Iterator[Figure]:
    """Rates, latencies and the share of a core of each side, of one step."""
    what = f"pause {pause:g} s"
    n_requests = sum(map(len, times.values()))
    yield _figure(f"{what}: requests", n_requests / seconds, unit="/s")
    yield _figure(f"{what}: reports", len(times.get("report", [])) / seconds, unit="/s")
    for verb in ("report", "claim", "heartbeat"):
        found = times.get(verb, [])
        if len(found) > 1:
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
        report.say(f"the API is process {service.api.pid}")  # for a profiler
        groups = {"the API": service.api.pid, "the clients": os.getpid()}
        server = {} if places.pid is None else {"PostgreSQL": places.pid}
        _pause_filling(service.client)
        load = Load(port=service.port, n_workers=n_workers, n_reports=n_reports)
        gauge = Gauge(report, load, Processors({**groups, **server}))
        asyncio.run(load.run(pauses, seconds, gauge))
        report.add(*count(url, load))
        report.add(*(_figure(fault, n) for fault, n in load.tally.faults.items() if n))


class Gauge:
    """Told at the begin (None) and at the end of each step; adds its figures."""

    def __init__(self, report: Report, load: Load, processors: Processors) -> None:
        self._report, self._tally, self._processors = report, load.tally, processors
        self._begin = 0.0

    def __call__(self, pause: float | None) -> None:
        took = time.perf_counter() - self._begin
        times, spent = self._tally.taken(), self._processors.since()
        self._begin = time.perf_counter()
        if pause is not None:
            self._report.add(*step_figures(pause, took, times, spent))


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
