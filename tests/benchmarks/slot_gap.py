"""How long a slot stands still: from the end of a trial to the first step of the next one.

    python -m tests.benchmarks.slot_gap

A real `hpo worker` with one slot and torch on the CPU. Both ends are noted by the objective itself:
when its code returns, and when its first optimizer step is done. Beside it what a fresh process
needs until it has imported torch and made the same step.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.acceptance.conftest import Service
from tests.benchmarks.databases import KINDS, databases
from tests.benchmarks.figures import Figure, Report, ratio
from tests.benchmarks.service import service_on

PART = "slot gap"
LIMIT_MS = 150.0
N_ROUNDS, N_TRIALS = 4, 8
# The clock is the system's, the same in all processes.
STEP = """
import time

import torch
from torch import nn


def step():
    net = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(torch.ones(4, 8)).square().mean().backward()
    optimizer.step()
    return time.monotonic()
"""
OBJECTIVE = f"""{STEP}

from pathlib import Path

from hpo import FloatRange, objective

NOTES = Path(__file__).with_name("notes.txt")


@objective(direction="minimize", space={{"x": FloatRange(low=0.0, high=1.0)}})
def gap(trial):
    began = step()
    trial.report(trial.params["x"], 0)
    with NOTES.open("a") as file:
        file.write(f"{{trial.number}} {{began}} {{time.monotonic()}}\\n")
    return trial.params["x"]
"""


def fresh_process() -> float:
    """The milliseconds until a process of its own has made a step."""
    begin = time.monotonic()
    program = f"{STEP}\nprint(step())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    return 1000 * (float(done.stdout) - begin)


def gaps(service: Service, folder: Path, name: str, n_trials: int) -> list[float]:
    """The milliseconds between the trials of one study, which run one after the other."""
    notes = folder / "notes.txt"
    notes.write_text("")
    service.client.create_study(
        {"name": name, "objective": "gap:gap", "n_trials": n_trials, "sampler": "random"}
    )
    assert service.await_end(name)["state"] == "completed"
    lines = [line.split() for line in notes.read_text().splitlines()]
    spans = sorted((float(began), float(ended)) for _, began, ended in lines)
    assert len(spans) == n_trials
    return [1000 * (after[0] - before[1]) for before, after in itertools.pairwise(spans)]


def measure(
    report: Report,
    *,
    kinds: Sequence[str] = ("sqlite",),
    n_rounds: int = N_ROUNDS,
    n_trials: int = N_TRIALS,
) -> None:
    """Adds the gaps of rounds of trials, a fresh process after each, and the ratio."""
    for kind in kinds:
        with (
            tempfile.TemporaryDirectory() as text,
            databases(kind, Path(text)) as places,
            places.stored(0) as url,
            service_on(url) as service,
        ):
            folder = Path(text)
            (folder / "gap.py").write_text(OBJECTIVE)
            options = ("--code", text, "--allow", "gap", "--slots", "1", "--devices", "cpu")
            service.start_worker(*options)
            gaps(service, folder, "warm-up", 2)
            found, fresh = [], []
            for number in range(n_rounds):
                found.append(gaps(service, folder, f"gap-{number}", n_trials))
                fresh.append(fresh_process())
            every = [value for one in found for value in one]
            medians = [sorted(one)[len(one) // 2] for one in found]
            name = f"gap on a slot, {places.kind}"
            report.add(
                Figure(part=PART, name=name, values=every, unit="ms", at_most=LIMIT_MS),
                Figure(part=PART, name="fresh process to its first step", values=fresh, unit="ms"),
                ratio(PART, f"fresh process / {name}", fresh, medians),
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kind", nargs="+", default=["sqlite"], choices=KINDS)
    parser.add_argument("--rounds", type=int, default=N_ROUNDS)
    parser.add_argument("--trials", type=int, default=N_TRIALS, help="of a round")
    options = parser.parse_args()
    measure(Report(), kinds=options.kind, n_rounds=options.rounds, n_trials=options.trials)


if __name__ == "__main__":
    main()
