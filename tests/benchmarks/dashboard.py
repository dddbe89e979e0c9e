"""What an open dashboard costs the reports: one browser on a study of 10,000 trials.

    python -m tests.benchmarks.dashboard --kind sqlite

Workers report at an even pace, in turns with and without a viewer, who asks for what the page of
a study asks for: all of it, then what is new, then the importances.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.databases import KINDS, STUDY, databases
from tests.benchmarks.figures import Figure, Report, ratio
from tests.benchmarks.protocol import ProtocolWorker, curve
from tests.benchmarks.service import service_on

PART = "dashboard"
MANY = 10_000
N_WORKERS, PACE_SECONDS = 4, 0.1
N_ROUNDS, TURN_SECONDS = 3, 8.0
# A process of its own: reading 20 MB must not hold up the workers' clocks.
VIEWER = """
import json, sys, time, urllib.request

url, name = sys.argv[1:]


def get(path):
    with urllib.request.urlopen(url + path, timeout=300) as response:
        return response.read()


studies = json.loads(get("/api/studies"))["study_summaries"]
(number,) = (study["study_id"] for study in studies if study["study_name"] == name)
print("ready", flush=True)
for _ in sys.stdin:
    begin = time.perf_counter()
    whole = json.loads(get(f"/api/studies/{number}?after=0"))
    get(f"/api/studies/{number}?after={len(whole['trials'])}")
    get(f"/api/studies/{number}/param_importances")
    print(time.perf_counter() - begin, flush=True)
"""


class Viewer:
    """One browser, as far as the service sees it."""

    def __init__(self, url: str) -> None:
        command = [sys.executable, "-c", VIEWER, url, STUDY]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self._read()

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()

    def look(self) -> float:
        """Opens the page once; the seconds until all of it is there."""
        assert self._process.stdin is not None
        self._process.stdin.write("look\n")
        return float(self._read())

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


class Reporters:
    """Workers that report at an even pace while a turn lasts."""

    def __init__(self, port: int) -> None:
        self._found: list[float] = []
        self._workers = [ProtocolWorker(port, note=self._note) for _ in range(N_WORKERS)]

    async def register(self) -> None:
        await asyncio.gather(*(worker.register() for worker in self._workers))

    async def turn(self, until: asyncio.Future[Any]) -> list[float]:
        """The milliseconds of each report until that is done."""
        self._found = []
        await asyncio.gather(*(self._serve(worker, until) for worker in self._workers))
        return self._found

    def _note(self, verb: str, seconds: float) -> None:
        if verb == "report":
            self._found.append(1000 * seconds)

    async def _serve(self, worker: ProtocolWorker, until: asyncio.Future[Any]) -> None:
        while not until.done():
            claim = await worker.claim()
            assert claim is not None
            await worker.say(claim, "start", resumed_from_step=None)
            for step, value in enumerate(curve()):
                await asyncio.sleep(PACE_SECONDS)
                await worker.report(claim, step, value)
            await worker.say(claim, "complete", value=value)


async def rounds(port: int, url: str, n_rounds: int, seconds: float) -> tuple[Any, Any, Any]:
    """Reports without and with a viewer in each round, and the seconds of each look."""
    reporters, viewer = Reporters(port), Viewer(url)
    await reporters.register()
    quiet, watched, looks = [], [], []

    async def looking() -> None:
        end = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < end:
            looks.append(await asyncio.to_thread(viewer.look))

    with contextlib.closing(viewer):
        await asyncio.to_thread(viewer.look)  # the first load is the start of a service
        for _ in range(n_rounds):
            quiet.append(await reporters.turn(asyncio.ensure_future(asyncio.sleep(seconds))))
            watched.append(await reporters.turn(asyncio.ensure_future(looking())))
    return quiet, watched, looks


def measure(
    report: Report,
    *,
    kinds: Sequence[str] = KINDS,
    n_stored: int = MANY,
    n_rounds: int = N_ROUNDS,
    seconds: float = TURN_SECONDS,
) -> None:
    """Adds medians and 99 % of reports with and without a viewer, and their ratios."""
    for kind in kinds:
        with (
            tempfile.TemporaryDirectory() as folder,
            databases(kind, Path(folder)) as places,
            places.stored(n_stored) as url,
            service_on(url) as service,
        ):
            asked = rounds(service.port, service.url, n_rounds, seconds)
            quiet, watched, looks = asyncio.run(asked)
            report.add(*_figures(f"{places.kind}, {n_stored:,} stored", quiet, watched, looks))


def _figures(what: str, quiet: Any, watched: Any, looks: Sequence[float]) -> Iterator[Figure]:
    for share in (50, 99):
        alone, seen = ([_percentile(one, share) for one in turns] for turns in (quiet, watched))
        name = f"report p{share}, {what}"
        yield Figure(part=PART, name=name, values=alone, unit="ms")
        yield Figure(part=PART, name=f"{name}, with a viewer", values=seen, unit="ms")
        yield ratio(PART, f"with a viewer / without, {name}", seen, alone)
    yield Figure(part=PART, name=f"page of the study, {what}", values=looks, unit="s")


def _percentile(found: Sequence[float], share: int) -> float:
    return sorted(found)[min(len(found) - 1, len(found) * share // 100)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kind", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--stored", type=int, default=MANY)
    parser.add_argument("--rounds", type=int, default=N_ROUNDS)
    parser.add_argument("--seconds", type=float, default=TURN_SECONDS, help="for each turn")
    options = parser.parse_args()
    measure(
        Report(),
        kinds=options.kind,
        n_stored=options.stored,
        n_rounds=options.rounds,
        seconds=options.seconds,
    )


if __name__ == "__main__":
    main()
