"""The benchmark of the search measures what it says: one search is real, its sums are right."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hpo.objective import Trial, TrialPruned
from hpo.space import Choice, FloatRange, IntRange, Space
from hpo.study import Direction
from tests.benchmarks import search_problems
from tests.benchmarks.search import (
    CONTENDERS,
    MEMORY,
    Curve,
    Search,
    document_of,
    paired,
    picture,
    search,
    show,
    summaries_of,
)
from tests.benchmarks.search_problems import Table, tables

TPE, RANDOM = CONTENDERS


@dataclass(frozen=True, kw_only=True)
class Bowl:
    """Ten steps down to the square of x."""

    budget: int = 200
    name: str = "bowl"
    unit: str = "steps"
    direction: Direction = Direction.MINIMIZE
    max_steps: int | None = 10
    best_known: float | None = 0.0

    @property
    def space(self) -> Space:
        return {"x": FloatRange(low=-1, high=1)}

    def evaluate(self, trial: Trial) -> None:
        for step in range(10):
            trial.report(trial.params["x"] ** 2 + (9 - step) / 100, step)
            if trial.should_prune():
                raise TrialPruned


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory, where there is such a folder: a search commits hundreds of times."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        yield Path(name)


def test_a_search_spends_its_budget_and_pruning_buys_more_trials(folder: Path) -> None:
    pruned, plain = (
        search(Bowl(budget=100), contender.name, 3, folder) for contender in CONTENDERS
    )
    assert (plain.n_complete, plain.n_pruned, plain.spent) == (10, 0, 100)
    assert pruned.n_pruned > 0
    assert pruned.n_pruned + pruned.n_complete > 10
    assert 100 <= pruned.spent < 110  # the last trial may go over it
    assert list(folder.iterdir()) == []
    for curve in (pruned, plain):
        values = [value for _, value in curve.points]
        assert values == sorted(values, reverse=True)
        assert 0 <= values[-1] < 0.1
        assert curve.points[0][0] == 10  # the first trial's ten steps


def curve(contender: Any, seed: int, *points: tuple[int, float]) -> Curve:
    return Curve(problem="bowl", contender=contender.name, seed=seed, points=list(points))


CURVES = [
    curve(TPE, 0, (10, 0.5), (40, 0.1)),
    curve(TPE, 1, (10, 0.7), (50, 0.1)),
    curve(RANDOM, 0, (10, 0.6), (100, 0.2)),
    curve(RANDOM, 1, (30, 0.6), (90, 0.4)),
]


def test_means_are_over_seeds_at_the_same_spending() -> None:
    tpe, random = summaries_of(Bowl(budget=100), CURVES)
    # At 10, 25, 50, 75 and 100 of 100.
    assert tpe.means == pytest.approx([0.6, 0.6, 0.1, 0.1, 0.1])
    assert tpe.deviations[0] == pytest.approx(0.02**0.5)
    # Before every seed has a value there is no mean.
    assert random.means[:2] == [None, None]
    assert random.means[2:] == pytest.approx([0.6, 0.6, 0.3])
    # The mean that the last contender ends with.
    assert (tpe.reached_at, random.reached_at) == (50, 100)


def test_only_seeds_that_all_have_had_are_compared() -> None:
    assert paired(CURVES[:3]) == [CURVES[0], CURVES[2]]


def test_the_picture_shows_the_better_one_higher() -> None:
    tpe, random = picture(Bowl(budget=100), CURVES)
    assert tpe.endswith("█" * 21)
    assert random[-1] == "▅"
    assert " " * 11 + "▁" in random


def test_the_table_and_the_file_hold_all_of_it() -> None:
    bowl, screen = Bowl(budget=100), io.StringIO()
    show(bowl, CURVES, Console(file=screen, width=150))
    assert "0.1000 ± 0.0000" in screen.getvalue()
    assert "best of the table 0.0000" in screen.getvalue()
    document = json.loads(json.dumps(document_of([bowl], CURVES, 1.0)))
    (problem,) = document["problems"]
    assert [found["contender"] for found in problem["summaries"]] == [TPE.name, RANDOM.name]
    assert len(problem["curves"]) == 4
    assert document["contenders"][0]["pruner"] == {"name": "median", "n_warmup_steps": 3}


class Grid:
    """A table as the package gives it."""

    search_space: dict[str, list[Choice]] = {"lr": [0.1, 0.2], "kind": ["a", "b"]}  # noqa: RUF012  # as theirs
    metric_names = ("val_loss",)
    directions = {"val_loss": "minimize"}  # noqa: RUF012  # as theirs
    _dataset = {  # noqa: RUF012  # as theirs
        "00": {"val_loss": [1.0, 3.0]},
        "01": {"val_loss": [5.0]},
        "10": {"val_loss": [0.5, 0.7]},
        "11": {"val_loss": [9.0]},
    }


def test_a_table_s_cell_is_the_mean_of_its_seeds(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_problems, "_load", lambda family, data: Grid)
    table = Table(family="hpolib", data="grid", budget=12)
    assert table.best_known == pytest.approx(0.6)
    assert table.space["lr"] == IntRange(low=0, high=1)
    assert table.value_of({"lr": 0, "kind": "a"}) == 2.0
    found = Search(table, RANDOM, 1, folder).run()
    assert (found.n_complete, found.spent) == (12, 12)
    assert found.points[-1][1] == pytest.approx(0.6)


def test_fifteen_tables_or_one_of_each_family() -> None:
    assert len(tables(every=True, budget=1)) == 15
    families = [table.family for table in tables(every=False, budget=1)]
    assert families == ["hpolib", "hpobench", "nasbench201"]
