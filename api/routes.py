"""Which route a request will take, known before it is taken: for access, logs and figures.

The table is made of the app's own routes, in their order, so it covers every route there is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from fastapi.routing import iter_route_contexts
from starlette._utils import get_route_path
from starlette.routing import BaseRoute, Mount, compile_path
from starlette.types import Scope

# What stands in logs and figures for paths of the dashboard and for those that lead nowhere.
NO_TEMPLATE = "(other)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """A route by its template, such as /v1/studies/{study}; `methods` is empty for a mount."""

    template: str
    methods: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()
    pattern: re.Pattern[str] = field(repr=False)


def routes_of(routes: Sequence[BaseRoute]) -> Iterator[Route]:
    """Every HTTP route, also those of routers that were included."""
    for found in iter_route_contexts(routes):
        is_mount = isinstance(found.original_route, Mount)
        path = str(found.path)
        pattern, template, _ = compile_path(f"{path}/{{path:path}}" if is_mount else path)
        yield Route(
            template=path if is_mount else template,
            methods=frozenset(found.methods or ()),
            tags=frozenset(getattr(found, "tags", None) or ()),
            pattern=pattern,
        )


class Routes:
    """The table of one app."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        self.all = tuple(routes_of(routes))

    def find(self, scope: Scope) -> Route | None:
        """The route that will answer, or one of the same path; None where there is none."""
        path, partial = path_of(scope), None
        for route in self.all:
            if route.pattern.match(path):
                if not route.methods or scope["method"] in route.methods:
                    return route
                partial = partial or route
        return partial


def path_of(scope: Scope) -> str:
    """The path without the prefix that a proxy before us has."""
    return get_route_path(scope)


def root_of(scope: Scope) -> str:
    """The prefix that a proxy before us has; empty without one."""
    return str(scope.get("root_path", "")).rstrip("/")
