"""Replication: the parameters of one trial under other seeds, as a study of its own.

Its space holds one choice for each parameter, which keeps every value to the bit; the seed of a
trial follows from the study's seed and its number, so each trial has another one.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpo.errors import HpoError, StudyExists
from hpo.seeds import derive_seed, trial_seed

if TYPE_CHECKING:
    from hpo.client import Client

Document = Mapping[str, Any]

# What a trial's result depends on, beside its parameters and its seed.
SAME = (
    "objective",
    "direction",
    "settings",
    "metric",
    "max_steps",
    "value_rule",
    "max_attempts",
    "retry_backoff_seconds",
    "on_diverged",
    "on_out_of_memory",
    "keep_models",
    "priority",
)
SAME_LIMITS = ("max_parallel_trials", "trial_timeout_seconds", "no_progress_seconds")


@dataclass(frozen=True, kw_only=True, slots=True)
class Replication:
    """What came of it so far; `values` are those of trials that have completed."""

    original: Document
    study: Document
    trials: tuple[Document, ...]

    @property
    def values(self) -> list[float]:
        found = [trial["value"] for trial in self.trials if trial["state"] == "COMPLETE"]
        return [value for value in found if value is not None and math.isfinite(value)]

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.values) if self.values else None

    @property
    def standard_deviation(self) -> float | None:
        """Of the sample, with n - 1; None for fewer than two values."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    def seed_of(self, number: int) -> int:
        """The seed of a replicate."""
        return trial_seed(self.study["seed"], number)

    def to_json(self) -> dict[str, Any]:
        """For other programs."""
        shown = ("number", "state", "value", "reason")
        trials = [
            {name: trial[name] for name in shown} | {"seed": self.seed_of(trial["number"])}
            for trial in self.trials
        ]
        return {
            "study": self.study["name"],
            "state": self.study["state"],
            "replicates": self.study["replicates"],
            "original": {name: self.original[name] for name in ("number", "value", "params")},
            "trials": trials,
            "mean": self.mean,
            "standard_deviation": self.standard_deviation,
        }


def replicate(
    client: Client, name: str, *, seeds: int, number: int | None = None, new_name: str
) -> Document:
    """Launches the study that replicates a trial, the best one by default, or finds it again.

    One that exists goes on when it has fewer trials than `seeds`. Raises StudyExists when the
    study `new_name` is of something else.
    """
    existing = _existing(client, new_name)
    if existing is not None:
        _check_same(existing, name, number)
        if seeds > existing["budget"]["n_trials"]:
            return client.amend_study(new_name, {"n_trials": seeds})
        return existing
    if number is None:
        number = int(client.best(name)["number"])
    document = replicate_document(
        client.study(name), client.trial(name, number), name=new_name, seeds=seeds
    )
    return client.create_study(document)[0]


def read_replication(client: Client, new_name: str) -> Replication:
    """How a replication stands."""
    study = client.study(new_name)
    origin, _, number = str(study["replicates"]).partition("/")
    return Replication(
        study=study,
        original=client.trial(origin, int(number)),
        trials=tuple(client.trials(new_name)),
    )


def replicate_document(
    study: Document, trial: Document, *, name: str, seeds: int
) -> dict[str, Any]:
    """The study that tries the parameters of `trial` under so many other seeds."""
    if not trial["params"] and study["space"]:
        raise HpoError(
            f"trial {study['name']}/{trial['number']} has no parameters yet; wait until it runs"
        )
    document = {
        **{field: study[field] for field in SAME},
        **{field: study["budget"][field] for field in SAME_LIMITS},
        "name": name,
        "n_trials": seeds,
        "seed": derive_seed(study["seed"], "replicate", trial["number"]),
        "sampler": "random",
        "pruner": "none",
        "space": fixed_space(trial["params"].items()) or None,
        "replicates": f"{study['name']}/{trial['number']}",
    }
    return {field: value for field, value in document.items() if value is not None}


def fixed_space(params: Iterable[tuple[str, Any]]) -> dict[str, dict[str, Any]]:
    """A space of one point: a range of one value on a log scale would lose bits of it."""
    return {name: {"type": "categorical", "choices": [value]} for name, value in params}


def _existing(client: Client, name: str) -> Document | None:
    from hpo.client import ApiError

    try:
        return client.study(name)
    except ApiError as error:
        if error.code != "not_found":
            raise
        return None


def _check_same(existing: Document, name: str, number: int | None) -> None:
    origin = str(existing["replicates"] or "")
    wanted = f"{name}/" if number is None else f"{name}/{number}"
    if origin != wanted and not (number is None and origin.startswith(wanted)):
        what = f"replicates {origin}" if origin else "replicates nothing"
        raise StudyExists(f"A study {existing['name']!r} exists and {what}; choose another --name.")
