"""What a benchmark prints is judged by its median, and is written with its spread."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from tests.benchmarks.figures import Figure, Report, ratio


def figure(*values: float, **fields: float) -> Figure:
    return Figure(part="part", name="name", values=values, **fields)


@pytest.mark.parametrize(
    ("fields", "is_met"),
    [
        ({}, None),
        ({"at_least": 2.0}, True),
        ({"at_least": 2.1}, False),
        ({"at_least": 2.1, "slack": 0.1}, True),
        ({"at_most": 2.0}, True),
        ({"at_most": 1.9}, False),
        ({"at_most": 1.9, "slack": 0.1}, True),
    ],
)
def test_the_median_is_held_to_the_bound(fields: dict[str, float], is_met: bool | None) -> None:
    assert figure(1.0, 2.0, 9.0, **fields).is_met is is_met


def test_a_ratio_is_taken_round_by_round() -> None:
    found = ratio("part", "name", [2.0, 8.0], [1.0, 2.0], at_least=3)
    assert found.values == [2.0, 4.0]
    assert found.is_met


def test_a_report_tells_what_was_missed(tmp_path: Path) -> None:
    screen = io.StringIO()
    report = Report(Console(file=screen, width=120))
    report.add(figure(1.0, 2.0, 3.0, at_most=1.0), figure(7.0))
    report.show()
    assert [found.median for found in report.missed] == [2.0]
    assert "at most 1: MISSED" in screen.getvalue()

    report.write(tmp_path / "bench.json")
    document = json.loads((tmp_path / "bench.json").read_text())
    assert document["machine"]["versions"]["optuna"].startswith("5.")
    first, second = document["figures"]
    assert (first["median"], first["low"], first["high"], first["n"]) == (2.0, 1.5, 2.5, 3)
    assert (first["is_met"], second["is_met"]) == (False, None)
