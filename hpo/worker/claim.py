"""What a claim hands to a worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from hpo.space import Choice
from hpo.worker.limits import Limits


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A trial under a lease; `token` is the right to write to it."""

    study: str
    study_uuid: str
    objective: str
    direction: str
    number: int
    attempt: int
    token: str
    params: Mapping[str, Choice]
    settings: Mapping[str, Any]
    seed: int
    value_rule: str
    keep_models: int
    limits: Limits

    @property
    def label(self) -> str:
        """How log lines name the trial."""
        return f"trial {self.study}/{self.number}"

    @property
    def module(self) -> str:
        """The module that holds the objective."""
        return self.objective.partition(":")[0]

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Claim:
        """Reads a claim; members that this version does not know are left out."""
        names = [field.name for field in fields(cls) if field.name != "limits"]
        limits = Limits(**{field.name: document.get(field.name) for field in fields(Limits)})
        return cls(**{name: document[name] for name in names}, limits=limits)
