"""Problem documents: one shape for every error, strict JSON, and no text of a driver or a bug."""

from __future__ import annotations

import json
import logging
import math
from typing import Any, NoReturn

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from api.errors import MEDIA_TYPE, STATUSES, ReadOnly, add_error_handlers, problem_of, problems
from api.gate import MAX_BODY_BYTES, Gate
from hpo import errors as hpo_errors
from hpo.cli.api import own_names
from hpo.errors import (
    DatabaseInUse,
    HpoError,
    InvalidField,
    LeaseLost,
    NoCompletedTrial,
    SchemaMismatch,
    StudyExists,
    Unavailable,
)

PLAIN = {"Content-Type": "text/plain"}


def document_of(error: HpoError) -> dict[str, Any]:
    def refuse(literal: str) -> NoReturn:
        raise AssertionError(f"{literal} is no JSON")

    response = problem_of(error)
    assert response.media_type == MEDIA_TYPE
    document: dict[str, Any] = json.loads(bytes(response.body), parse_constant=refuse)
    assert document["status"] == response.status_code
    assert document["type"] == "about:blank"
    assert document["title"]
    return document


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (NoCompletedTrial(counts={"FAIL": 1}), 404, "no_completed_trial"),
        (StudyExists(), 409, "study_exists"),
        (LeaseLost(), 409, "lease_lost"),
        (Unavailable(), 503, "unavailable"),
        (SchemaMismatch(found="a", needed="b", command="hpo db upgrade"), 503, "schema_mismatch"),
        (ReadOnly(), 403, "read_only"),
        (InvalidField("url", "is wrong"), 422, "invalid"),
    ],
)
def test_an_error_becomes_a_problem_document(error: HpoError, status: int, code: str) -> None:
    document = document_of(error)
    assert (document["status"], document["code"]) == (status, code)
    assert document["detail"] == str(error)
    assert document.items() >= dict(error.facts).items()


def test_every_error_that_a_request_can_meet_has_a_status() -> None:
    codes = {
        error.code
        for error in vars(hpo_errors).values()
        if isinstance(error, type) and issubclass(error, HpoError)
    }
    # A process that cannot open its database never serves a request.
    assert codes - STATUSES.keys() == {HpoError.code, DatabaseInUse.code}


def test_non_finite_facts_are_strings() -> None:
    assert document_of(StudyExists(difference={"a": [math.nan, math.inf]}))["difference"] == {
        "a": ["NaN", "Infinity"]
    }


def test_a_lone_surrogate_can_be_quoted() -> None:
    assert document_of(InvalidField("name", "got \ud800"))["errors"][0]["message"].endswith(
        "\ud800"
    )


def test_facts_cannot_overwrite_the_members_of_a_problem() -> None:
    assert document_of(LeaseLost(status=200))["status"] == 409


@pytest.mark.parametrize("error", [Unavailable(), SchemaMismatch()])
def test_what_passes_by_itself_says_when_to_try_again(error: HpoError) -> None:
    assert problem_of(error).headers["Retry-After"] == "2"


def test_an_error_without_a_code_of_its_own_shows_nothing() -> None:
    document = document_of(HpoError("password=secret"))
    assert (document["status"], document["code"]) == (500, "internal")
    assert "secret" not in json.dumps(document)


def test_routes_document_codes_that_exist() -> None:
    documented = problems("study_exists", "lease_lost")
    assert set(documented) == {409, 422, 503}
    assert documented[409]["description"] == "Code `study_exists`, `lease_lost`"


@pytest.fixture
def client() -> TestClient:
    app = FastAPI(redirect_slashes=False)

    @app.post("/v1/echo")
    def echo(body: dict[str, Any]) -> dict[str, Any]:
        return body

    @app.get("/v1/bug")
    def bug() -> None:
        raise RuntimeError("psycopg.OperationalError: password=secret")

    add_error_handlers(app)
    app.add_middleware(Gate)
    return TestClient(app)


def test_a_bug_is_logged_and_not_shown(
    client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "api.errors"):
        response = client.get("/v1/bug")
    assert response.status_code == 500
    assert response.json()["code"] == "internal"
    assert "secret" not in response.text
    assert "password=secret" in caplog.text


def test_a_path_that_is_not_there(client: TestClient) -> None:
    response = client.get("/v1/nothing")
    assert (response.status_code, response.json()["code"]) == (404, "not_found")
    assert response.headers["content-type"] == MEDIA_TYPE


def test_a_method_that_is_not_there(client: TestClient) -> None:
    response = client.delete("/v1/echo")
    assert (response.status_code, response.json()["code"]) == (405, "method_not_allowed")
    assert response.headers["allow"] == "POST"
    assert "DELETE" in response.json()["detail"]


@pytest.mark.parametrize("content", [b"{", b"\xff", b'{"a": ' + b"[" * 5000])
def test_a_body_that_is_no_json(client: TestClient, content: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    response = client.post("/v1/echo", content=content, headers=headers)
    assert response.status_code == 422
    assert [fault["field"] for fault in response.json()["errors"]] == ["body"]
    assert "JSON" in response.json()["errors"][0]["message"]


def test_no_body(client: TestClient) -> None:
    response = client.post("/v1/echo")
    assert response.status_code == 422
    assert response.json()["errors"] == [{"field": "body", "message": "is required"}]


@pytest.mark.parametrize(
    "headers", [PLAIN, {}, {"Content-Type": "application/x-www-form-urlencoded"}]
)
def test_a_body_of_another_kind(client: TestClient, headers: dict[str, str]) -> None:
    response = client.post("/v1/echo", content=b"{}", headers=headers)
    assert (response.status_code, response.json()["code"]) == (415, "media_type")


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "application/merge+json"])
def test_json_by_another_name(client: TestClient, kind: str) -> None:
    response = client.post("/v1/echo", content=b'{"a": 1}', headers={"Content-Type": kind})
    assert response.json() == {"a": 1}


def test_a_body_of_exactly_the_limit_passes(client: TestClient) -> None:
    text = "x" * (MAX_BODY_BYTES - len('{"a":""}'))
    response = client.post(
        "/v1/echo",
        content=f'{{"a":"{text}"}}'.encode(),
        headers={"Content-Type": "application/json"},
    )
    assert response.status_code == 200


def test_a_body_over_the_limit(client: TestClient) -> None:
    response = client.post("/v1/echo", json={"a": "x" * MAX_BODY_BYTES})
    assert (response.status_code, response.json()["code"]) == (413, "too_large")


def test_a_body_over_the_limit_that_does_not_say_its_length(client: TestClient) -> None:
    pieces = (b"[" * 65536 for _ in range(MAX_BODY_BYTES // 65536 + 1))
    response = client.post("/v1/echo", content=pieces, headers={"Content-Type": "application/json"})
    assert (response.status_code, response.json()["code"]) == (413, "too_large")


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [
        ("localhost", True),
        ("localhost:8080", True),
        ("LOCALHOST:8080", True),
        ("127.0.0.1:8080", True),
        ("[::1]:8080", True),
        ("evil.example", False),
        ("evil.example:8080", False),
        ("localhost.evil.example", False),
        ("", False),
    ],
)
def test_a_service_answers_to_its_own_names_only(host: str, is_ours: bool) -> None:
    app = FastAPI()
    app.add_middleware(Gate, hosts=own_names("127.0.0.1", []))
    app.get("/")(lambda: {})
    response = TestClient(app).get("/", headers={"Host": host})
    assert response.status_code == (200 if is_ours else 421)
    if not is_ours:
        assert response.json()["code"] == "misdirected"


def test_names_are_added_and_any_name_will_do_beyond_loopback() -> None:
    assert "hpo.example" in (own_names("127.0.0.1", ["HPO.example"]) or ())
    assert own_names("0.0.0.0", []) is None
