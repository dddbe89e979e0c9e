"""Trials a second that do nothing: eight clients of the service beside eight of its peers.

    python -m tests.benchmarks.throughput --kind postgresql --stored 1000 --peers stock

`children` are trials in processes of a real worker, `ray` is Ray Tune where it is installed; both
are shown, not judged. Every contender works on a copy of the same database and keeps its processes
from turn to turn. A round is one turn of each, in random order, so that what slows the machine
slows all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import math
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.benchmarks import stock
from tests.benchmarks.contenders import CONTENDERS, NAMES, PEERS
from tests.benchmarks.databases import KINDS, Databases, databases
from tests.benchmarks.figures import Figure, Report, ratio
from tests.benchmarks.processors import Processors

PART = "trials/s"
N_ROUNDS = 5
TURN_SECONDS = 5.0


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
