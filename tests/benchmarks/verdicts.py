"""A report with its verdict, on the server's side: what the store needs for it.

    python -m tests.benchmarks.verdicts --kind sqlite --stored 100 10000

Sizes take turns, so that what slows the machine slows both. HTTP, JSON and the wire are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hpo.trial import Measurement
from storage.store import open_store
from tests.benchmarks.databases import KINDS, MODULE, Databases, databases
from tests.benchmarks.figures import Figure, Report, ratio
from tests.benchmarks.protocol import curve
from tests.builders import lease_of, register, request

PART = "verdict"
STORED = (100, 10_000)
LIMITS_MS = {"SQLite": 3.0, "PostgreSQL": 5.0}
N_TRIALS, N_WARM_UP = 30, 3
GROWTH = 1.5

# The milliseconds of each report of one trial.
ReportTrial = Callable[[], list[float]]


@contextlib.contextmanager
def reporting(places: Databases, n_stored: int) -> Iterator[ReportTrial]:
    """A store on a database of so many trials, and a worker that reports."""
    with places.stored(n_stored) as url, contextlib.closing(open_store(url)) as store:
        store.prepare()
        worker_id: uuid.UUID = register(store, allow=(MODULE,))

        def report_trial() -> list[float]:
            claimed = store.claims.claim(request(worker_id))
            assert claimed is not None
            lease = lease_of(claimed)
            store.claims.start(lease, None)
            found = []
            for step, value in enumerate(curve()):
                begin = time.perf_counter()
                decision = store.claims.report(lease, Measurement(step=step, value=value), {})
                found.append(1000 * (time.perf_counter() - begin))
                assert decision.verdict == "continue"
            store.claims.complete(lease, value, {})
            return found

        yield report_trial


def taken_in_turns(
    places: Databases, stored: Sequence[int], n_trials: int
) -> dict[int, list[list[float]]]:
    """The milliseconds of each report of each trial, by the number of stored trials."""
    with contextlib.ExitStack() as stack:
        turns = {n: stack.enter_context(reporting(places, n)) for n in stored}
        for turn in turns.values():
            for _ in range(N_WARM_UP):
                turn()
        found: dict[int, list[list[float]]] = {n: [] for n in stored}
        for _ in range(n_trials):
            for n_stored, turn in turns.items():
                found[n_stored].append(turn())
        return found


def measure(
    report: Report,
    *,
    kinds: Sequence[str] = KINDS,
    stored: Sequence[int] = STORED,
    n_trials: int = N_TRIALS,
) -> None:
    """Adds the milliseconds of a report at each size, and their ratio."""
    for kind in kinds:
        with tempfile.TemporaryDirectory() as folder, databases(kind, Path(folder)) as places:
            found = taken_in_turns(places, stored, n_trials)
            report.add(*_figures(places.kind, found))


def _figures(kind: str, found: dict[int, list[list[float]]]) -> Iterator[Figure]:
    for n_stored, trials in found.items():
        name, values = f"report, {kind}, {n_stored:,} stored", list(itertools.chain(*trials))
        yield Figure(part=PART, name=name, values=values, unit="ms", at_most=LIMITS_MS[kind])
    few, many = min(found), max(found)
    name = f"report, {kind}, {many:,} stored / {few:,} stored"
    # The shortest of a trial's reports: neighbours on the machine only ever add.
    yield ratio(PART, name, map(min, found[many]), map(min, found[few]), at_most=GROWTH)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kind", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--stored", type=int, nargs="+", default=STORED)
    parser.add_argument("--trials", type=int, default=N_TRIALS)
    options = parser.parse_args()
    measure(Report(), kinds=options.kind, stored=options.stored, n_trials=options.trials)


if __name__ == "__main__":
    main()
