"""Round trips to PostgreSQL for one trial, counted in the server's own log.

    python -m tests.benchmarks.round_trips --stored 100 --show

A round trip is one message to the server that is answered: a statement, BEGIN or COMMIT, and ";",
which asks whether a pooled connection still lives. Statements of one pipeline count one by one.
Marks in the log stand before each trial and after the last, and whatever else the service says to
the database meanwhile is counted with them.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psycopg
import sqlalchemy as sa

from tests.benchmarks.databases import ServerDatabases, databases
from tests.benchmarks.figures import Figure, Report
from tests.benchmarks.protocol import ProtocolWorker
from tests.benchmarks.service import service_on
from tests.benchmarks.stock import open_storage, open_study, serve_one

PART = "round trips"
LIMIT = 20
STORED = (100, 10_000)
N_TRIALS = 15
N_WARM_UP = 12  # until psycopg has prepared what comes often
IDLE_SECONDS = 5.0
LATE_SECONDS = 0.5  # for what the service does after its answer
SETTINGS = {"log_statement": "'all'", "log_line_prefix": "'@@ %d | '"}
MARK = "bench mark"
SHOWN_CHARACTERS = 150

Trials = Sequence[list[str]]


class Log:
    """The statements of one database in the log of its server."""

    def __init__(self, path: Path, url: str) -> None:
        database = sa.make_url(url)
        self._path, self._prefix = path, f"{database.database} | LOG:  "
        self._offset = path.stat().st_size
        self._connection = psycopg.connect(
            database.set(drivername="postgresql").render_as_string(hide_password=False),
            autocommit=True,
        )

    def close(self) -> None:
        self._connection.close()

    def mark(self) -> None:
        self._connection.execute(f"SELECT '{MARK}'")

    def between_marks(self) -> Trials:
        """The statements between each mark and the next one."""
        groups: list[list[str]] = [[]]
        for statement in self._statements():
            if MARK in statement:
                groups.append([])
            else:
                groups[-1].append(statement)
        return groups[1:-1]

    def _statements(self) -> Iterator[str]:
        with self._path.open("rb") as file:
            file.seek(self._offset)
            entries = file.read().decode(errors="replace").split("@@ ")
        for entry in entries:
            if entry.startswith(self._prefix):
                text = entry.removeprefix(self._prefix)
                if text.startswith(("statement: ", "execute ")):
                    yield " ".join(text.partition(": ")[2].split())


def counted(log: Log, serve: Callable[[], None], n_trials: int) -> Trials:
    """What each of so many trials says to the database, after a warm-up."""
    for _ in range(N_WARM_UP):
        serve()
    for _ in range(n_trials):
        log.mark()
        serve()
    time.sleep(LATE_SECONDS)
    log.mark()
    return log.between_marks()


def trials_of_hpo(
    places: ServerDatabases, n_stored: int, sampler: str, n_trials: int
) -> tuple[Trials, float]:
    """Statements of each trial, and those a second while nothing is asked of the service."""
    with places.stored(n_stored, sampler) as url, service_on(url) as service:
        log = Log(places.server.log, url)
        with asyncio.Runner() as runner:
            worker = ProtocolWorker(service.port)
            runner.run(worker.register())
            trials = counted(log, lambda: runner.run(_one(worker)), n_trials)
            idle = Log(places.server.log, url)
            idle.mark()
            time.sleep(IDLE_SECONDS)
            idle.mark()
            (alone,) = idle.between_marks()
            worker.close()
        for opened in (log, idle):
            opened.close()
    return trials, len(alone) / IDLE_SECONDS


async def _one(worker: ProtocolWorker) -> None:
    assert await worker.serve_one()


def trials_of_stock(places: ServerDatabases, n_stored: int, sampler: str, n_trials: int) -> Trials:
    """Statements of each trial of stock Optuna."""
    with places.stored(n_stored, sampler) as url:
        log = Log(places.server.log, url)
        storage = open_storage(url)
        study = open_study(storage, sampler)
        trials = counted(log, lambda: serve_one(study), n_trials)
        storage.remove_session()
        log.close()
    return trials


def measure(
    report: Report,
    *,
    stored: Sequence[int] = STORED,
    samplers: Sequence[str] = ("random", "tpe"),
    n_trials: int = N_TRIALS,
    shows: bool = False,
) -> None:
    """Adds the figures of hpo and of stock Optuna at each size."""
    with (
        tempfile.TemporaryDirectory() as folder,
        databases("postgresql", Path(folder), **SETTINGS) as places,
    ):
        assert isinstance(places, ServerDatabases)
        for sampler in samplers:
            for n_stored in stored:
                what = f"{n_stored:,} stored, {sampler}"
                trials, idle = trials_of_hpo(places, n_stored, sampler, n_trials)
                counts = [len(trial) for trial in trials]
                report.add(
                    Figure(part=PART, name=f"hpo, {what}", values=counts, at_most=LIMIT),
                    Figure(
                        part=PART,
                        name=f"hpo, {what}: mean of all",
                        values=[statistics.fmean(counts)],
                    ),
                    Figure(part=PART, name="hpo, idle", values=[idle], unit="/s"),
                )
                if shows:
                    show(report, trials)
                found = trials_of_stock(places, n_stored, sampler, n_trials)
                report.add(Figure(part=PART, name=f"stock, {what}", values=[len(t) for t in found]))


def show(report: Report, trials: Trials) -> None:
    """The statements of the trial that has the median number of them."""
    for index, statement in enumerate(sorted(trials, key=len)[len(trials) // 2], start=1):
        report.say(f"{index:4} {statement[:SHOWN_CHARACTERS]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--stored", type=int, nargs="+", default=STORED)
    parser.add_argument("--sampler", nargs="+", default=["random"], choices=["random", "tpe"])
    parser.add_argument("--trials", type=int, default=N_TRIALS)
    parser.add_argument("--show", action="store_true", help="print the statements of one trial")
    options = parser.parse_args()
    measure(
        Report(),
        stored=options.stored,
        samplers=options.sampler,
        n_trials=options.trials,
        shows=options.show,
    )


if __name__ == "__main__":
    main()
