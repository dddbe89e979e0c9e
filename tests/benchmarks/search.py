"""TPE with MedianPruner beside random search that prunes nothing: the best value by what was spent.

    python -m tests.benchmarks.search --seeds 10 --json search.json

The searches are real ones: studies in a store on a SQLite file, whose trials are claimed, reported
and settled as workers do, without HTTP in between. Both contenders may spend the same, so one that
prunes gets more trials. A value counts when its trial has completed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import platform
import shutil
import signal
import statistics
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table as Screen

from hpo.objective import Trial, TrialPruned
from hpo.space import Choice, Parameter
from hpo.study import Algorithm, Budget, Direction, StudyDefinition
from hpo.trial import Decision, Measurement
from hpo.version import __version__
from storage.records import Claimed, ClaimRequest, Lease, WorkerRegistration
from storage.store import Store, open_store
from tests.benchmarks.search_problems import Digits, Problem, folder_for, tables

SHARES = (0.1, 0.25, 0.5, 0.75, 1.0)
BARS = "▁▂▃▄▅▆▇█"
BAR_WIDTH = 40
MODULE = "bench"
# What is measured is the search, not how long a disk takes to make each report durable.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A sampler and a pruner as a study names them."""

    name: str
    sampler: Algorithm
    pruner: Algorithm


CONTENDERS = (
    Contender(
        name="TPE + median pruner",
        sampler=Algorithm(name="tpe"),
        # Of epochs of an annealed training; without it the first ones, which say little, decide.
        pruner=Algorithm(name="median", options={"n_warmup_steps": 3}),
    ),
    Contender(
        name="random, no pruner",
        sampler=Algorithm(name="random"),
        pruner=Algorithm(name="none"),
    ),
)


@dataclass(kw_only=True)
class Curve:
    """The best value of one search: (spent, best) whenever it has improved."""

    problem: str
    contender: str
    seed: int
    points: list[tuple[int, float]] = field(default_factory=list)
    spent: int = 0
    n_complete: int = 0
    n_pruned: int = 0
    seconds: float = 0.0

    def add(self, value: float, direction: Direction) -> None:
        """Takes note of the value of a trial that has completed."""
        self.n_complete += 1
        best = self.points[-1][1] if self.points else None
        if best is None or direction.best((best, value)) != best:
            self.points.append((self.spent, value))

    def at(self, spent: float) -> float | None:
        """The best value when so much was spent; None before the first."""
        found = [value for when, value in self.points if when <= spent]
        return found[-1] if found else None


class StoreLink:
    """A trial's way to the store: that of a worker, but for the wire and HTTP."""

    def __init__(self, store: Store, lease: Lease) -> None:
        self._store, self._lease = store, lease
        self.n_reports = 0
        self.last: float | None = None

    def start(self, resumed_from_step: int | None) -> None:
        self._store.claims.start(self._lease, resumed_from_step)

    def suggest(self, name: str, parameter: Parameter) -> Choice:
        return self._store.claims.suggest(self._lease, name, parameter)

    def report(self, measurement: Measurement) -> Decision:
        self.n_reports, self.last = self.n_reports + 1, measurement.value
        return self._store.claims.report(self._lease, measurement, {})

    def late_decision(self) -> None:
        return None

    def set_user_attr(self, key: str, value: Any) -> None:
        """Attributes are no part of the search."""


class Search:
    """One study of one contender, up to the problem's budget."""

    def __init__(self, problem: Problem, contender: Contender, seed: int, folder: Path) -> None:
        self._problem, self._folder = problem, folder
        self.curve = Curve(problem=problem.name, contender=contender.name, seed=seed)
        self._definition = StudyDefinition(
            name="bench",
            objective=f"{MODULE}:objective",
            direction=problem.direction,
            space=problem.space,
            max_steps=problem.max_steps,
            sampler=contender.sampler,
            pruner=contender.pruner,
            seed=seed,
            budget=Budget(n_trials=problem.budget),  # each trial costs at least one
        )

    def run(self) -> Curve:
        """Claims, runs and settles trials until the budget is spent."""
        begin = time.perf_counter()
        store = open_store(f"sqlite:///{self._folder / 'hpo.db'}")
        try:
            store.prepare()
            worker_id = _register(store)
            store.studies.create(self._definition, given=frozenset())
            while self.curve.spent < self._problem.budget:
                key = uuid.uuid4().hex
                request = ClaimRequest(worker_id=worker_id, claim_key=key, device="cpu")
                claimed = store.claims.claim(request)
                if claimed is None:
                    break
                self._one_trial(store, claimed)
        finally:
            store.close()
        self.curve.seconds = time.perf_counter() - begin
        return self.curve

    def _one_trial(self, store: Store, claimed: Claimed) -> None:
        lease = Lease(study_name=claimed.study_name, number=claimed.number, token=claimed.token)
        link = StoreLink(store, lease)
        trial = Trial(
            link,
            study=claimed.study_name,
            number=claimed.number,
            params=claimed.params,
            seed=claimed.seed,
            direction=self._problem.direction,
            checkpoint_dir=self._folder / "checkpoints",
        )
        try:
            value = self._problem.evaluate(trial)
        except TrialPruned:
            self.curve.spent += link.n_reports
            self.curve.n_pruned += 1
            store.claims.prune(lease, {})
            return
        self.curve.spent += max(1, link.n_reports)
        store.claims.complete(lease, value, {})
        final = link.last if value is None else value
        assert final is not None
        self.curve.add(final, self._problem.direction)


def _register(store: Store) -> uuid.UUID:
    worker_id = uuid.uuid4()
    store.workers.register(
        WorkerRegistration(
            id=worker_id,
            name="bench:0",
            version=__version__,
            slots=1,
            devices=("cpu",),
            allow=(MODULE,),
            objectives={},
        )
    )
    return worker_id


def search(problem: Problem, name: str, seed: int, root: Path) -> Curve:
    """One search of the contender of this name in a folder of its own, which goes with it."""
    (contender,) = (found for found in CONTENDERS if found.name == name)
    folder = folder_for(root, problem, name, seed)
    try:
        return Search(problem, contender, seed, folder).run()
    finally:
        shutil.rmtree(folder)


def run_all(
    problems: Sequence[Problem], n_seeds: int, n_processes: int, console: Console
) -> list[Curve]:
    """Every contender on every problem with every seed, several at a time.

    Ctrl-C ends it with what has been found, the first seeds of all problems.
    """
    context = multiprocessing.get_context("spawn")
    curves: list[Curve] = []
    with (
        tempfile.TemporaryDirectory(prefix="hpo-bench-", dir=MEMORY) as root,
        Progress(console=console, transient=True, disable=not console.is_terminal) as progress,
        ProcessPoolExecutor(n_processes, context, ignore_interrupts) as pool,
    ):
        # Contenders of one seed stand side by side: what slows the machine slows both.
        asked: list[Future[Curve]] = [
            pool.submit(search, problem, contender.name, seed, Path(root))
            for seed, problem, contender in itertools.product(range(n_seeds), problems, CONTENDERS)
        ]
        bar = progress.add_task("searches", total=len(asked))
        try:
            for done in as_completed(asked):
                curves.append(done.result())
                progress.advance(bar)
        except KeyboardInterrupt:
            console.print("interrupted: waiting for the searches that have begun")
            pool.shutdown(cancel_futures=True)
            curves = [done.result() for done in asked if done.done() and not done.cancelled()]
    return paired(curves)


def ignore_interrupts() -> None:
    """Ctrl-C is for the process that shows the figures."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def paired(curves: Sequence[Curve]) -> list[Curve]:
    """Those of the seeds that all contenders have had."""
    counts = Counter((curve.problem, curve.seed) for curve in curves)
    return [c for c in curves if counts[c.problem, c.seed] == len(CONTENDERS)]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One contender on one problem: mean and deviation over seeds, by share of the budget."""

    contender: str
    n_seeds: int
    means: list[float | None]
    deviations: list[float | None]
    n_trials: float
    n_pruned: float
    reached_at: float | None


def summaries_of(problem: Problem, curves: Sequence[Curve]) -> list[Summary]:
    """Of all contenders; `reached_at` is what was spent for the last one's final mean."""
    groups = [
        [curve for curve in curves if (curve.problem, curve.contender) == (problem.name, c.name)]
        for c in CONTENDERS
    ]
    target = _mean_at(groups[-1], problem.budget)
    return [_summary(problem, group, target) for group in groups if group]


def _summary(problem: Problem, group: Sequence[Curve], target: float | None) -> Summary:
    spent = [share * problem.budget for share in SHARES]
    return Summary(
        contender=group[0].contender,
        n_seeds=len(group),
        means=[_mean_at(group, point) for point in spent],
        deviations=[_deviation_at(group, point) for point in spent],
        n_trials=statistics.fmean(curve.n_complete + curve.n_pruned for curve in group),
        n_pruned=statistics.fmean(curve.n_pruned for curve in group),
        reached_at=_reached_at(problem, group, target),
    )


def _values_at(group: Sequence[Curve], spent: float) -> list[float] | None:
    """One value of each seed; None while one of them has none."""
    values = [curve.at(spent) for curve in group]
    found = [value for value in values if value is not None]
    return found if found and len(found) == len(values) else None


def _mean_at(group: Sequence[Curve], spent: float) -> float | None:
    values = _values_at(group, spent)
    return None if values is None else statistics.fmean(values)


def _deviation_at(group: Sequence[Curve], spent: float) -> float | None:
    values = _values_at(group, spent)
    return None if values is None or len(values) < 2 else statistics.stdev(values)


def _reached_at(problem: Problem, group: Sequence[Curve], target: float | None) -> float | None:
    if target is None:
        return None
    for spent in range(1, problem.budget + 1):
        mean = _mean_at(group, spent)
        if mean is not None and problem.direction.best((mean, target)) == mean:
            return spent
    return None


def show(problem: Problem, curves: Sequence[Curve], console: Console) -> list[Summary]:
    """A table and a picture of one problem."""
    found = summaries_of(problem, curves)
    known = "" if problem.best_known is None else f"; best of the table {problem.best_known:.4f}"
    spent = [f"{share * problem.budget:.0f}" for share in SHARES]
    screen = Screen(
        title=f"{problem.name}: best value by {problem.unit} spent, {problem.direction}, "
        f"mean ± deviation of {found[0].n_seeds} seeds{known}",
        title_justify="left",
    )
    for column in ("contender", *spent, "trials", "pruned", "random's best at"):
        screen.add_column(column, justify="left" if column == "contender" else "right")
    for row in found:
        cells = map(_cell, row.means, row.deviations)
        reached = "-" if row.reached_at is None else f"{row.reached_at:.0f}"
        screen.add_row(row.contender, *cells, f"{row.n_trials:.1f}", f"{row.n_pruned:.1f}", reached)
    console.print(screen)
    for line in picture(problem, curves):
        console.print(line)
    return found


def picture(problem: Problem, curves: Sequence[Curve]) -> Iterator[str]:
    """A line of bars for each contender, on one scale: the higher the better."""
    rows = {}
    for contender in CONTENDERS:
        key = (problem.name, contender.name)
        group = [curve for curve in curves if (curve.problem, curve.contender) == key]
        points = [problem.budget * (place + 1) / BAR_WIDTH for place in range(BAR_WIDTH)]
        rows[contender.name] = [_mean_at(group, point) for point in points]
    sign = 1 if problem.direction is Direction.MAXIMIZE else -1
    known = [sign * value for row in rows.values() for value in row if value is not None]
    if not known:
        return
    low, width = min(known), (max(known) - min(known)) or 1.0
    for name, row in rows.items():
        bars = (
            " " if value is None else BARS[round((sign * value - low) / width * (len(BARS) - 1))]
            for value in row
        )
        yield f"{name:>20} {''.join(bars)}"


def _cell(mean: float | None, deviation: float | None) -> str:
    if mean is None:
        return "-"
    return f"{mean:.4f}" + ("" if deviation is None else f" ± {deviation:.4f}")


def document_of(
    problems: Sequence[Problem], curves: Sequence[Curve], seconds: float
) -> dict[str, Any]:
    """All figures, with the curve of every search."""
    return {
        "format": 1,
        "machine": {"cores": os.cpu_count(), "system": platform.platform()},
        "versions": {"hpo": __version__, "python": platform.python_version()},
        "seconds": seconds,
        "contenders": [
            {
                "name": c.name,
                "sampler": {"name": c.sampler.name, **c.sampler.options},
                "pruner": {"name": c.pruner.name, **c.pruner.options},
            }
            for c in CONTENDERS
        ],
        "shares": SHARES,
        "problems": [
            {
                "name": problem.name,
                "unit": problem.unit,
                "budget": problem.budget,
                "direction": problem.direction,
                "best_known": problem.best_known,
                "summaries": [asdict(found) for found in summaries_of(problem, curves)],
                "curves": [asdict(c) for c in curves if c.problem == problem.name],
            }
            for problem in problems
        ],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs what is asked for and prints it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=10, help="searches by each contender")
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--epochs", type=int, default=300, help="to spend on digits; 0 for none")
    parser.add_argument("--trials", type=int, default=100, help="to spend on a table; 0 for none")
    parser.add_argument("--all-tables", action="store_true", help="15 instead of 3")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    problems: list[Problem] = [Digits(budget=given.epochs)] if given.epochs else []
    problems += tables(every=given.all_tables, budget=given.trials) if given.trials else []
    begin, console = time.perf_counter(), Console(width=150)
    curves = run_all(problems, given.seeds, given.processes, Console(stderr=True))
    problems = [found for found in problems if any(c.problem == found.name for c in curves)]
    for problem in problems:
        show(problem, curves, console)
    seconds = time.perf_counter() - begin
    console.print(f"{len(curves)} searches in {seconds:.0f} s")
    if given.json is not None:
        text = json.dumps(document_of(problems, curves, seconds), indent=1)
        given.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
