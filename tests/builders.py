"""Builders of what many tests need: studies, workers, claims."""

from __future__ import annotations

import uuid
from dataclasses import fields
from typing import Any

from hpo.space import Categorical, FloatRange
from hpo.study import Budget, Direction, StudyDefinition
from storage.records import Claimed, ClaimRequest, Lease, WorkerRegistration
from storage.store import Store

BUDGET = {field.name for field in fields(Budget)}
SPACE = {"x": FloatRange(low=0, high=1), "kind": Categorical(choices=("a", "b"))}


def definition(**fields: Any) -> StudyDefinition:
    """A study of `demo:objective` that draws at random."""
    budget = {name: fields.pop(name) for name in BUDGET & fields.keys()}
    defaults: dict[str, Any] = {
        "name": "demo",
        "objective": "demo:objective",
        "direction": Direction.MINIMIZE,
        "seed": 1,
        "space": SPACE,
    }
    return StudyDefinition(budget=Budget(**{"n_trials": 3, **budget}), **{**defaults, **fields})


def register(store: Store, *, allow: tuple[str, ...] = ("demo",)) -> uuid.UUID:
    worker_id = uuid.uuid4()
    store.workers.register(
        WorkerRegistration(
            id=worker_id,
            name=f"node:{worker_id.hex[:4]}",
            version="0.1.0",
            slots=2,
            devices=("cpu", "cpu"),
            allow=allow,
            objectives={},
        )
    )
    return worker_id


def request(worker_id: uuid.UUID) -> ClaimRequest:
    return ClaimRequest(worker_id=worker_id, claim_key=uuid.uuid4().hex, device="cpu")


def lease_of(claimed: Claimed) -> Lease:
    return Lease(study_name=claimed.study_name, number=claimed.number, token=claimed.token)
