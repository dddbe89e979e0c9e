"""The OpenAPI document: complete, consistent, and with examples that work."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

import pytest

from api.app import create_app
from api.schemas.claims import ClaimBody, ReportBody
from api.schemas.points import EnqueueBody
from api.schemas.study_amend import StudyAmend
from api.schemas.study_create import StudyCreate
from api.schemas.tokens import TokenCreate
from api.schemas.transfer import CloneBody, WarmStartBody
from api.schemas.workers import WorkerRegister
from hpo.version import __version__
from storage.store import Store

STUDY_VERBS = ["pause", "resume", "stop", "cancel", "archive", "unarchive"]
TRIAL = "/v1/studies/{study}/trials/{number}"
ROUTES = {
    "DELETE /v1/tokens/{name}",
    "GET /healthz",
    "GET /metrics",
    "GET /readyz",
    "GET /v1/objectives",
    "GET /v1/session",
    "GET /v1/studies",
    "POST /v1/studies/check",
    "GET /v1/studies/{study}",
    "GET /v1/events",
    "GET /v1/studies/{study}/best",
    *(
        f"GET /v1/studies/{{study}}/{w}"
        for w in ["importances", "history", "pareto", "pruning", "columns", "curves"]
    ),
    "POST /v1/studies/{study}/trials",
    *(f"POST {TRIAL}/{verb}" for verb in ["cancel", "requeue", "exclude", "include"]),
    "GET /v1/studies/{study}/events",
    "GET /v1/studies/{study}/trials",
    "GET /v1/tokens",
    "GET /v1/workers",
    f"GET {TRIAL}",
    f"GET {TRIAL}/log",
    *(f"{method} {TRIAL}/model" for method in ["GET", "POST", "PUT"]),
    f"POST {TRIAL}/log",
    "PATCH /v1/studies/{study}",
    *(f"POST /v1/studies/{{study}}/{verb}" for verb in STUDY_VERBS),
    "DELETE /v1/studies/{study}",
    *(f"POST /v1/studies/{w}" for w in ["import", "adopt", "{study}/clone", "{study}/warm-start"]),
    "GET /v1/studies/{study}/export",
    "POST /v1/claims",
    "POST /v1/studies/{study}/ask",
    "POST /v1/studies",
    "POST /v1/tokens",
    "POST /v1/workers",
    "POST /v1/workers/{id}/heartbeat",
    *(
        f"POST {TRIAL}/{verb}"
        for verb in ["start", "suggest", "report", "renew", "complete", "prune", "fail", "release"]
    ),
}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    app = create_app(cast(Store, None))  # the document asks no database
    return dict(json.loads(json.dumps(app.openapi(), allow_nan=False)))


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def test_every_route_is_there(document: dict[str, Any]) -> None:
    assert {name for name, _ in operations(document)} == ROUTES
    assert document["info"]["version"] == __version__


def test_every_route_of_the_api_says_how_it_fails(document: dict[str, Any]) -> None:
    for name, operation in operations(document):
        if name == "GET /healthz":
            continue
        assert {"422", "503"} <= operation["responses"].keys(), name
        for status, response in operation["responses"].items():
            if int(status) >= 400:
                assert list(response["content"]) == ["application/problem+json"], (name, status)
                assert "`" in response["description"]


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    def references(node: Any) -> Iterator[str]:
        if isinstance(node, dict):
            for key, value in node.items():
                if key == "$ref":
                    yield value
                else:
                    yield from references(value)
        elif isinstance(node, list):
            for item in node:
                yield from references(item)

    for reference in references(document):
        node: Any = document
        for part in reference.removeprefix("#/").split("/"):
            node = node[part]
        assert node
    assert "Problem" in document["components"]["schemas"]


@pytest.mark.parametrize(
    "body",
    [
        *(StudyCreate, StudyAmend, EnqueueBody, CloneBody, WarmStartBody),
        *(WorkerRegister, ClaimBody, ReportBody, TokenCreate),
    ],
)
def test_examples_are_valid(document: dict[str, Any], body: Any) -> None:
    examples = document["components"]["schemas"][body.__name__]["examples"]
    assert examples
    for example in examples:
        read = body.model_validate(example)
        assert not getattr(read, "_faults", [])


def test_a_sampler_may_be_a_name_or_an_object(document: dict[str, Any]) -> None:
    sampler = document["components"]["schemas"]["StudyCreate"]["properties"]["sampler"]
    assert {"type": "string"} in sampler["anyOf"][0].get("anyOf", sampler["anyOf"])
