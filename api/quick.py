"""Routes that are asked all the time: an ordinary request skips what FastAPI does for any other.

FastAPI resolves dependencies, and hops into a thread a second time to check the answer; that takes
longer than to store a report. So here the body is read and the endpoint called at once. A request
that does not fit takes the usual way, which finds out what is wrong with it and says so.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Coroutine
from typing import Any, get_type_hints

import anyio.to_thread
from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError

from api.schemas.base import MAX_INT
from api.service import Service
from hpo.study import STUDY_NAME

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
Arguments = dict[str, Any]


class QuickRoute(APIRoute):
    """A route of `api.claims` whose endpoint is a plain function of these: a trial, a body, parts.

    What an endpoint may ask for stands in `PARTS`, under the name of its parameter.
    """

    def get_route_handler(self) -> Handler:
        usual, quick = super().get_route_handler(), _quick(self)

        async def handle(request: Request) -> Response:
            return await quick(request) or await usual(request)

        return handle


def _trial(request: Request, _service: Service) -> tuple[str, int] | None:
    study, number = request.path_params["study"], request.path_params["number"]
    is_number = number.isascii() and number.isdecimal() and len(number) <= len(str(MAX_INT))
    if not (is_number and STUDY_NAME.fullmatch(study)) or int(number) > MAX_INT:
        return None
    return study, int(number)


PARTS: dict[str, Callable[[Request, Service], Any]] = {
    "trial": _trial,
    "store": lambda _, service: service.store,
    "metrics": lambda _, service: service.metrics,
    "doorbell": lambda _, service: service.doorbell,
}


def _quick(route: APIRoute) -> Callable[[Request], Coroutine[Any, Any, Response | None]]:
    endpoint: Callable[..., Any] = route.endpoint
    names = inspect.signature(endpoint).parameters.keys() - {"body"}
    parts = {name: PARTS[name] for name in names}
    schema: type[BaseModel] = get_type_hints(endpoint)["body"]

    async def quick(request: Request) -> Response | None:
        service: Service = request.app.state.service
        service.upkeep.check_prepared()
        arguments = {name: find(request, service) for name, find in parts.items()}
        arguments["body"] = await _body(request, schema)
        if any(value is None for value in arguments.values()):
            return None
        reply = await anyio.to_thread.run_sync(functools.partial(endpoint, **arguments))
        if reply is None:
            return Response(status_code=204)
        return Response(reply.model_dump_json(), media_type="application/json")

    return quick


async def _body(request: Request, schema: type[BaseModel]) -> BaseModel | None:
    """The body if it is as it should be; it is kept for the usual way."""
    try:
        return schema.model_validate(json.loads(await request.body()))
    except (ValueError, ValidationError, RecursionError):
        return None
