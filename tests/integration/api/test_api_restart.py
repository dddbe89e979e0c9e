"""A study means the same after a restart: what it drew and decided is what it would have been."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.api_kit import Node, read, serving
from tests.integration.api.conftest import NewDatabase

N_TRIALS, N_STEPS = 10, 4
# None of it is a default; what a worker says of the objective fills the rest.
STUDY: dict[str, Any] = {
    "name": "lasting",
    "direction": "minimize",
    "space": {
        "x": {"type": "float", "low": -1.0, "high": 1.0},
        "kind": {"type": "categorical", "choices": ["a", [1, 2]]},
    },
    "n_trials": N_TRIALS,
    "seed": 7,
    "sampler": {"name": "tpe", "n_startup_trials": 3, "multivariate": True},
    "pruner": {"name": "median", "n_startup_trials": 2, "n_warmup_steps": 1, "interval_steps": 2},
    "value_rule": "best",
    "max_attempts": 2,
    "settings": {"precision": "bf16"},
}
DESCRIPTOR = {"max_steps": N_STEPS, "settings": {"epochs": N_STEPS, "precision": "fp32"}}
# What the objective says of itself after somebody has changed its code.
CHANGED = {
    "direction": "maximize",
    "max_steps": 99,
    "space": {"z": {"type": "int", "low": 0, "high": 9}},
    "settings": {"epochs": 99, "precision": "fp16"},
}


@contextmanager
def worker_of(url: str, known: Node | None) -> Iterator[Node]:
    """A service that has just started, and a new worker; `known` is one from before the restart."""
    with serving(url) as client:
        node = Node(client, **DESCRIPTOR)
        if known is not None:
            node.objective = known.objective
            node.document["allow"] = known.document["allow"]
            node.document["objectives"] = [{"objective": known.objective, **CHANGED}]
            assert client.post("/v1/workers", json=node.document).status_code == 200
        yield node


def run_one(node: Node) -> dict[str, Any]:
    """One trial, as a worker runs it: what it was given, and each verdict with its evidence."""
    claim = node.claim()
    given = {name: claim[name] for name in claim.keys() - {"study_uuid", "token", "objective"}}
    decisions = []
    offset = 0.0 if claim["params"]["kind"] == "a" else 0.25
    for step in range(N_STEPS):
        value = (claim["params"]["x"] - 0.5) ** 2 + offset + (N_STEPS - step) * 0.125
        decisions.append(read(node.send(claim, "report", step=step, value=value)))
        if decisions[-1]["verdict"] != "continue":
            return {**given, "decisions": decisions, "end": read(node.send(claim, "prune"))}
    return {**given, "decisions": decisions, "end": read(node.send(claim, "complete"))}


def shown(client: TestClient) -> dict[str, Any]:
    """All that the service says of the study but of what came of it so far."""
    study = read(client.get("/v1/studies/lasting"))
    changing = {"state", "reason", "counts", "n_started", "best", "ended_at", "blocked"}
    return {name: study[name] for name in study.keys() - changing}


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_sampler_pruner_and_settings_outlive_the_service_and_its_workers(
    new_database: NewDatabase, kind: str
) -> None:
    with worker_of(new_database(kind), None) as node:
        node.launch(**STUDY)
        uninterrupted = [run_one(node) for _ in range(N_TRIALS)]

    url = new_database(kind)
    with worker_of(url, None) as first:
        first.launch(**STUDY)
        course = [run_one(first) for _ in range(N_TRIALS // 2)]
        before = shown(first.client)
    with worker_of(url, first) as second:
        assert shown(second.client) == before
        course += [run_one(second) for _ in range(N_TRIALS - N_TRIALS // 2)]
        assert read(second.client.get("/v1/studies/lasting"))["state"] == "completed"

    assert course == uninterrupted
    states = {trial["end"]["state"] for trial in course}
    assert states == {"COMPLETE", "PRUNED"}, "nothing was decided that could have changed"
    assert course[-1]["settings"] == {"epochs": N_STEPS, "precision": "bf16"}
    assert (course[-1]["max_steps"], course[-1]["direction"]) == (N_STEPS, "minimize")
