"""The OpenAPI document: what every route has in common is added here and not at each of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import FastAPI

from api.access import ANYBODY, rule_of
from api.entrance import can_wait
from api.errors import Problem, problems
from api.routes import Route, routes_of

DESCRIPTION = """\
Launch studies, read their trials, and run workers. Non-finite numbers travel as the strings
`"NaN"`, `"Infinity"` and `"-Infinity"`. Every error is a problem document (RFC 9457) with a
stable `code`, and every answer has an `X-Request-ID`.
The console is at [/]({root}/), the dashboard at [/dashboard]({root}/dashboard).

Once there is a token, every request needs one, as `Authorization: Bearer …` or by the cookie of
`/login`. Roles: `reader`, `worker`, `operator` (both of them, and changes), `admin` (all).
"""

# In the order of the document, in which what users need comes first.
TAGS = (
    *("studies", "trials", "analysis", "objectives", "worker protocol", "workers", "tokens"),
    *("session", "events", "health", "operations"),
)

SCHEMES = {
    "token": {"type": "http", "scheme": "bearer", "description": "`hpo token create` makes one."},
    "session": {"type": "apiKey", "in": "cookie", "name": "hpo_session"},
}


class App(FastAPI):
    """FastAPI with the document of this service."""

    def openapi(self) -> dict[str, Any]:
        """Adds the schema that `api.errors.problems` refers to, and who may call what."""
        if self.openapi_schema is None:
            document = super().openapi()
            schema = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
            components = document["components"]
            components["schemas"].update(schema.pop("$defs"), Problem=schema)
            components["securitySchemes"] = SCHEMES
            _name_keys(document)
            for route, method, operation in _operations(document, routes_of(self.routes)):
                _add_access(operation, route, method)
                for parameter in operation.get("parameters", ()):
                    parameter["schema"] = _without_null(parameter["schema"])
        assert self.openapi_schema is not None
        return self.openapi_schema


def _operations(
    document: Mapping[str, Any], routes: Iterator[Route]
) -> Iterator[tuple[Route, str, dict[str, Any]]]:
    for route in routes:
        for method in route.methods:
            operation = document["paths"].get(route.template, {}).get(method.lower())
            if operation is not None:
                yield route, method, operation


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter can be left out, but it cannot be null."""
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    if len(kinds) != 1:
        return schema
    return {**kinds[0], **{name: part for name, part in schema.items() if name != "anyOf"}}


def _name_keys(part: Any) -> None:
    """Says that all names of an object have a pattern; pydantic says what those have that fit."""
    if isinstance(part, list):
        for item in part:
            _name_keys(item)
    elif isinstance(part, dict):
        if len(part.get("patternProperties", ())) == 1:
            ((pattern, schema),) = part.pop("patternProperties").items()
            part["additionalProperties"] = schema
            part["propertyNames"] = {**part.get("propertyNames", {}), "pattern": pattern}
        for item in part.values():
            _name_keys(item)


def _add_access(operation: dict[str, Any], route: Route, method: str) -> None:
    rule = rule_of(route, method, route.template)
    assert rule is not None, f"{method} {route.template} has no rule: see api/access.py"
    if rule == ANYBODY:
        operation["security"] = []
        return
    roles = sorted(rule)
    operation["security"] = [{"token": roles}, {"session": roles}]
    operation["x-roles"] = roles
    said = operation.get("description")
    operation["description"] = (f"{said}\n\n" if said else "") + f"Role: {' or '.join(roles)}."
    codes = ["unauthorized", "forbidden", *(["too_many"] if can_wait(route, operation) else [])]
    for status, entry in problems(*codes).items():
        found = operation["responses"].setdefault(str(status), entry)
        for code in codes:
            if f"`{code}`" in entry["description"] and f"`{code}`" not in found["description"]:
                found["description"] += f", `{code}`"
