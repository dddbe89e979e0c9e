"""What people look at: a study, its best trial and a page of trials, at 10,000 trials.

    python -m tests.benchmarks.reads --kind sqlite --stored 10000

Beside it what plain Optuna needs for the same: a fresh process that opens the study and looks at
its trials. Statements are counted in the store, on both sizes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from storage.store import Store, open_store
from tests.benchmarks.databases import KINDS, STUDY, databases
from tests.benchmarks.figures import Figure, Report, ratio
from tests.benchmarks.service import service_on
from tests.benchmarks.wire import Wire

PART = "reads"
FEW, MANY = 100, 10_000
LIMIT_MS, LEAST_RATIO = 20.0, 200.0
N_ROUNDS, N_TURNS, N_WARM_UP = 3, 15, 3
PATHS: Mapping[str, str] = {
    "study": f"/v1/studies/{STUDY}",
    "best": f"/v1/studies/{STUDY}/best",
    "trials, a page": f"/v1/studies/{STUDY}/trials?limit=50",
    "studies": "/v1/studies",
}
IN_STORE: Mapping[str, Callable[[Store], object]] = {
    "study": lambda store: store.studies.get(STUDY),
    "best": lambda store: store.studies.best(STUDY),
    "trials, a page": lambda store: store.trials.page(STUDY, limit=50),
    "studies": lambda store: store.studies.page(limit=50),
}
# What each of the reads is in plain Optuna. Its imports are not counted.
NAIVE: Mapping[str, str] = {
    "study.trials": "optuna.load_study(study_name=name, storage=url).trials",
    "get_all_study_summaries": "optuna.get_all_study_summaries(storage=url)",
}
PROGRAM = """
import sys, time, optuna
import optuna.storages._rdb.storage
optuna.logging.set_verbosity(optuna.logging.ERROR)
url, name = sys.argv[1:]
begin = time.perf_counter()
{call}
print(time.perf_counter() - begin)
"""


def naive(url: str, call: str) -> float:
    """The milliseconds of a read in a fresh process of plain Optuna."""
    command = [sys.executable, "-c", PROGRAM.format(call=call), url, STUDY]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return 1000 * float(done.stdout)


async def milliseconds(wire: Wire, path: str) -> float:
    begin = time.perf_counter()
    await wire.get(path)
    return 1000 * (time.perf_counter() - begin)


def n_statements(url: str) -> dict[str, int]:
    """How many statements the store makes of each read."""
    found = {}
    with contextlib.closing(open_store(url)) as store:
        store.prepare()
        seen: list[str] = []

        def note(_c: object, _cursor: object, statement: str, *_: object) -> None:
            if statement.startswith(("SELECT", "WITH")):
                seen.append(statement)

        engine = store._database.engine
        sa.event.listen(engine, "before_cursor_execute", note)
        for name, read in IN_STORE.items():
            read(store)
            seen.clear()
            read(store)
            found[name] = len(seen)
    return found


@dataclass
class Round:
    """Milliseconds of each read, one after the other on the same machine."""

    naive: dict[str, float]
    served: dict[str, list[float]]


def rounds(url: str, *, n_rounds: int, n_turns: int) -> Iterator[Round]:
    """Each round has the naive reads, then the service's, every one in its turn."""
    with service_on(url) as service, asyncio.Runner() as runner:
        wire = Wire(service.port)
        for _ in range(N_WARM_UP):
            for path in PATHS.values():
                runner.run(milliseconds(wire, path))
        for _ in range(n_rounds):
            slow = {name: naive(url, call) for name, call in NAIVE.items()}
            served: dict[str, list[float]] = {name: [] for name in PATHS}
            for _ in range(n_turns):
                for name, path in PATHS.items():
                    served[name].append(runner.run(milliseconds(wire, path)))
            yield Round(slow, served)
        wire.close()


def measure(
    report: Report,
    *,
    kinds: Sequence[str] = KINDS,
    n_stored: int = MANY,
    n_rounds: int = N_ROUNDS,
    n_turns: int = N_TURNS,
) -> None:
    """Adds the milliseconds of each read, its statements, and the ratio to plain Optuna."""
    for kind in kinds:
        with tempfile.TemporaryDirectory() as folder, databases(kind, Path(folder)) as places:
            with places.stored(FEW) as few, places.stored(n_stored) as many:
                n_few, n_many = n_statements(few), n_statements(many)
            with places.stored(n_stored) as url:
                found = list(rounds(url, n_rounds=n_rounds, n_turns=n_turns))
            what = f"{places.kind}, {n_stored:,} stored"
            for name in NAIVE:
                values = [one.naive[name] for one in found]
                report.add(_figure(f"Optuna's {name}, {what}", values, unit="ms"))
            for name in PATHS:
                label = f"GET {name}, {what}"
                values = [value for one in found for value in one.served[name]]
                more = n_many[name] - n_few[name]
                report.add(
                    _figure(label, values, unit="ms", at_most=LIMIT_MS),
                    _figure(f"{label}: statements", [n_many[name]]),
                    _figure(f"{label}: statements beyond those at {FEW}", [more], at_most=0),
                    ratio(
                        PART,
                        f"Optuna's cheaper one / {label}",
                        [min(one.naive.values()) for one in found],
                        [statistics.median(one.served[name]) for one in found],
                        at_least=LEAST_RATIO,
                    ),
                )


def _figure(name: str, values: Sequence[float], **fields: Any) -> Figure:
    return Figure(part=PART, name=name, values=values, **fields)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kind", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--stored", type=int, default=MANY)
    parser.add_argument("--rounds", type=int, default=N_ROUNDS)
    options = parser.parse_args()
    measure(Report(), kinds=options.kind, n_stored=options.stored, n_rounds=options.rounds)


if __name__ == "__main__":
    main()
