"""`make bench`: the service and its peers measured side by side on this machine.

    python -m tests.benchmarks --only throughput reads --json bench.json

Each part is a module that can be run alone, with options of its own: see its --help. The exit code
is 1 when a figure misses its bound.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
import time
from pathlib import Path

from tests.benchmarks.figures import Report

# In the order in which they are most useful, should one end them early.
PARTS = {
    "round-trips": "round trips to PostgreSQL for one trial",
    "throughput": "trials a second of eight clients",
    "verdicts": "a report with its verdict, in the store",
    "reads": "what people look at",
    "restart": "a restart, and memory",
    "slot-gap": "a slot between two trials",
    "load": "a thousand simulated workers",
    "dashboard": "reports while the dashboard is open",
    "training": "the training kit beside a loop by hand",
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    # What the parts have started is to end with them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    report = Report()
    for name in options.only:
        report.say(f"\n{name}: {PARTS[name]}")
        begin = time.monotonic()
        importlib.import_module(f"tests.benchmarks.{name.replace('-', '_')}").measure(report)
        report.say(f"  ({time.monotonic() - begin:.0f} s)")
        if options.json is not None:
            report.write(options.json)
    report.say("")
    report.show()
    for figure in report.missed:
        report.say(f"missed: {figure.name} is {figure.median:.4g} {figure.unit}, {figure.bound}")
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
