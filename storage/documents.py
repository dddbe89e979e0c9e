"""Definitions and descriptors as JSON in our tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from hpo.numbers import strict
from hpo.objective import Descriptor
from hpo.setting_rules import rules_from_json
from hpo.space import space_from_json, space_to_json
from hpo.study import Algorithm, Budget, Direction, OnFault, StudyDefinition, ValueRule

BUDGET_FIELDS = tuple(field.name for field in dataclasses.fields(Budget))


def definition_to_json(definition: StudyDefinition) -> dict[str, Any]:
    """One flat object; the budget's fields stand beside the others, as in a request."""
    document = {
        field.name: getattr(definition, field.name)
        for field in dataclasses.fields(definition)
        if field.name not in ("budget", "space", "sampler", "pruner")
    }
    document.update(dataclasses.asdict(definition.budget))
    document["directions"] = [direction.value for direction in definition.directions]
    document["metrics"] = list(definition.metrics)
    document["tags"] = list(definition.tags)
    document["space"] = None if definition.space is None else space_to_json(definition.space)
    for kind in ("sampler", "pruner"):
        algorithm: Algorithm = getattr(definition, kind)
        document[kind] = {"name": algorithm.name, "options": dict(algorithm.options)}
    plain = {key: getattr(value, "value", value) for key, value in document.items()}
    return dict(strict(plain))


def definition_to_request(definition: StudyDefinition) -> dict[str, Any]:
    """The definition as a request that creates the same study would say it."""
    document = definition_to_json(definition)
    for kind in ("sampler", "pruner"):
        algorithm = document[kind]
        document[kind] = {"name": algorithm["name"], **algorithm["options"]}
    several = definition.is_multi_objective
    for name in ("direction", "metric") if several else ("directions", "metrics"):
        del document[name]
    return {name: value for name, value in document.items() if value is not None and value != []}


def definition_from_json(
    document: Mapping[str, Any], *, budget: Budget, **in_force: Any
) -> StudyDefinition:
    """Reads a stored definition; the budget and `in_force` are what is in force now."""
    fields = {key: value for key, value in document.items() if key not in BUDGET_FIELDS}
    fields.update(in_force)
    space = fields.pop("space")
    return StudyDefinition(
        **{
            **fields,
            "direction": Direction(fields["direction"]),
            "directions": tuple(map(Direction, fields["directions"])),
            "metrics": tuple(fields["metrics"]),
            "tags": tuple(fields["tags"]),
            "value_rule": ValueRule(fields["value_rule"]),
            "on_diverged": OnFault(fields["on_diverged"]),
            "on_out_of_memory": OnFault(fields["on_out_of_memory"]),
            "sampler": Algorithm(**fields["sampler"]),
            "pruner": Algorithm(**fields["pruner"]),
            "space": None if space is None else space_from_json(space),
            "budget": budget,
        }
    )


def descriptor_from_json(document: Mapping[str, Any]) -> Descriptor:
    direction, space = document["direction"], document["space"]
    return Descriptor(
        summary=document["summary"],
        direction=None if direction is None else Direction(direction),
        metric=document["metric"],
        max_steps=document["max_steps"],
        space=None if space is None else space_from_json(space),
        settings=document["settings"],
        setting_rules=rules_from_json(document.get("setting_rules", {})),
    )
