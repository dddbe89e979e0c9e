"""Studies over REST, on both databases."""

from __future__ import annotations

import json
import math
import uuid
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.api_kit import Node, read


def document(**fields: Any) -> dict[str, Any]:
    return {
        "name": f"s-{uuid.uuid4().hex}",
        "objective": "nobody.offers:this",
        "direction": "minimize",
        "space": {"x": {"type": "int", "low": 0, "high": 10, "step": 3}},
        "n_trials": 5,
        **fields,
    }


def test_a_study_is_created_and_shown(client: TestClient) -> None:
    sent = document(pruner={"name": "median", "n_warmup_steps": 2}, settings={"a": [None, 1.5]})
    response = client.post("/v1/studies", json=sent)
    assert response.status_code == 201
    assert response.headers["Location"] == f"/v1/studies/{sent['name']}"
    study = read(response)
    assert study == read(client.get(response.headers["Location"]))
    assert study.items() >= {"name": sent["name"], "state": "running", "best": None}.items()
    assert study["counts"] == dict.fromkeys(["WAITING", "RUNNING", "COMPLETE", "PRUNED", "FAIL"], 0)
    assert study["budget"] == {
        "n_trials": 5,
        "max_parallel_trials": None,
        "max_failed_trials": None,
        "timeout_seconds": None,
        "trial_timeout_seconds": None,
        "no_progress_seconds": None,
    }
    assert study["pruner"] == {"name": "median", "n_warmup_steps": 2}
    assert study["settings"] == {"a": [None, 1.5]}
    assert study["space"]["x"]["effective_high"] == 9
    assert study["blocked"]
    assert study["created_at"].endswith("Z")
    assert study["uuid"] == str(uuid.UUID(study["uuid"]))


def test_a_seed_is_drawn_and_shown(client: TestClient) -> None:
    seeds = {read(client.post("/v1/studies", json=document()))["seed"] for _ in range(5)}
    assert len(seeds) == 5


def test_the_same_study_again_is_found(client: TestClient) -> None:
    sent = document(settings={"a": 1}, seed=3)
    first = client.post("/v1/studies", json=sent)
    again = client.post("/v1/studies", json={**sent, "max_steps": None})
    assert (first.status_code, again.status_code) == (201, 200)
    assert read(again)["uuid"] == read(first)["uuid"]
    assert again.headers["Location"] == first.headers["Location"]


def test_fields_that_are_left_out_are_not_compared(client: TestClient) -> None:
    sent = document(sampler="random", pruner="none", priority=4, seed=1)
    client.post("/v1/studies", json=sent)
    short = {name: sent[name] for name in ("name", "objective", "direction", "n_trials")}
    assert client.post("/v1/studies", json=short).status_code == 200


def test_another_study_of_the_same_name_is_refused_with_the_difference(
    client: TestClient,
) -> None:
    sent = document()
    client.post("/v1/studies", json=sent)
    space = {"x": {"type": "int", "low": 0, "high": 11, "step": 3}}
    response = client.post("/v1/studies", json={**sent, "n_trials": 6, "space": space})
    problem = read(response)
    assert (response.status_code, problem["code"]) == (409, "study_exists")
    assert problem["difference"].keys() == {"n_trials", "space"}
    assert problem["difference"]["n_trials"] == {"existing": 5, "requested": 6}
    assert read(client.get(f"/v1/studies/{sent['name']}"))["budget"]["n_trials"] == 5


def test_an_invalid_study_creates_nothing(client: TestClient) -> None:
    sent = document(space={"x": {"type": "float", "low": 2, "high": 1}}, sampler="nope")
    response = client.post("/v1/studies", json=sent)
    assert response.status_code == 422
    assert response.headers["content-type"] == "application/problem+json"
    assert [fault["field"] for fault in read(response)["errors"]] == ["space.x.low", "sampler"]
    assert client.get(f"/v1/studies/{sent['name']}").status_code == 404


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_literals_that_json_does_not_have_are_refused(client: TestClient, number: float) -> None:
    sent = document(settings={"x": number})
    response = client.post(
        "/v1/studies",
        content=json.dumps(sent).encode(),
        headers={"Content-Type": "application/json"},
    )
    assert response.status_code == 422
    assert [fault["field"] for fault in read(response)["errors"]] == ["settings.x"]


def test_a_descriptor_fills_the_study(client: TestClient) -> None:
    node = Node(
        client,
        direction="maximize",
        metric="accuracy",
        max_steps=10,
        settings={"epochs": 10},
        space={"lr": {"type": "float", "low": 0.1, "high": 1.0, "log": True}},
        summary="Digits",
    )
    study = node.launch(direction=..., space=..., settings={"epochs": 3})
    assert (study["direction"], study["metric"], study["max_steps"]) == ("maximize", "accuracy", 3)
    assert study["space"]["lr"]["log"] is True
    assert study["blocked"] is None
    offers = {offer["objective"]: offer for offer in read(client.get("/v1/objectives"))["items"]}
    assert offers[node.objective]["summary"] == "Digits"
    assert offers[node.objective]["n_workers"] == 1
    assert offers[node.objective]["settings"] == {"epochs": 10}
    assert offers[node.objective]["setting_rules"] == {}


def test_settings_are_held_to_the_rules_that_a_worker_registered(client: TestClient) -> None:
    rules = {
        "precision": {"type": "str", "choices": ["auto", "bf16"]},
        "clip": {"type": "float", "optional": True, "above": 0},
    }
    node = Node(client, settings={"precision": "auto", "clip": None}, setting_rules=rules)
    offers = {offer["objective"]: offer for offer in read(client.get("/v1/objectives"))["items"]}
    assert offers[node.objective]["setting_rules"] == rules
    sent = document(objective=node.objective, settings={"precision": "fp8", "clip": 0})
    response = client.post("/v1/studies", json=sent)
    assert response.status_code == 422
    assert {fault["field"]: fault["message"] for fault in read(response)["errors"]} == {
        "settings.precision": "must be one of auto, bf16, got 'fp8'",
        "settings.clip": "must be a number above 0 or null, got 0",
    }
    assert node.launch(settings={"clip": 0.5})["settings"] == {"precision": "auto", "clip": 0.5}


def test_studies_are_listed_newest_first_page_by_page(client: TestClient) -> None:
    names = [read(client.post("/v1/studies", json=document()))["name"] for _ in range(3)]
    first = read(client.get("/v1/studies", params={"limit": 2}))
    assert [study["name"] for study in first["items"]] == names[:0:-1]
    second = read(client.get("/v1/studies", params={"limit": 1, "after": first["next"]}))
    assert [study["name"] for study in second["items"]] == names[:1]


def test_studies_are_listed_by_state(client: TestClient) -> None:
    name = read(client.post("/v1/studies", json=document()))["name"]
    running = read(client.get("/v1/studies?state=running&state=paused&limit=500"))["items"]
    assert name in [study["name"] for study in running]
    stopped = read(client.get("/v1/studies", params={"state": "stopped"}))
    assert stopped == {"items": [], "next": None}


@pytest.mark.parametrize(
    ("query", "field", "words"),
    [
        ("state=sleeping", "state.0", "'running', 'paused'"),
        ("limit=0", "limit", "1 or more"),
        ("limit=501", "limit", "500 or less"),
        ("limit=ten", "limit", "whole number"),
        ("after=-1", "after", "0 or more"),
        ("after=99999999999", "after", "or less"),
        ("stat=running", "stat", "not known"),
    ],
)
def test_a_faulty_query_names_its_parameter(
    client: TestClient, query: str, field: str, words: str
) -> None:
    response = client.get(f"/v1/studies?{query}")
    assert response.status_code == 422
    (fault,) = read(response)["errors"]
    assert fault["field"] == field
    assert words in fault["message"]


@pytest.mark.parametrize("name", ["nothing-here", "a%00b", "a%20b", "%ED%A0%80", "x" * 300])
@pytest.mark.parametrize("rest", ["", "/best", "/trials", "/trials/0", "/trials/0/log"])
def test_a_study_that_is_not_there(client: TestClient, name: str, rest: str) -> None:
    response = client.get(f"/v1/studies/{name}{rest}")
    assert (response.status_code, read(response)["code"]) == (404, "not_found")


def test_best_before_anything_completed_comes_with_counts(client: TestClient, node: Node) -> None:
    study = node.launch(n_trials=4, on_diverged="fail")

    def counts() -> dict[str, int]:
        response = client.get(f"/v1/studies/{study['name']}/best")
        problem = read(response)
        assert (response.status_code, problem["code"]) == (404, "no_completed_trial")
        assert read(client.get(f"/v1/studies/{study['name']}"))["best"] is None
        return {state: n for state, n in problem["counts"].items() if n}

    assert counts() == {}
    claims = [node.claim() for _ in range(4)]
    assert counts() == {"RUNNING": 4}
    node.send(claims[0], "fail", reason="objective_error")
    node.send(claims[1], "report", step=0, value=0.5)
    node.send(claims[1], "prune")
    node.send(claims[2], "complete", value="Infinity")
    assert counts() == {"FAIL": 2, "PRUNED": 1, "RUNNING": 1}
    node.send(claims[3], "complete", value=0.5)
    excluded = f"/v1/studies/{study['name']}/trials/{claims[3]['number']}/exclude"
    assert client.post(excluded).status_code == 200
    assert counts() == {"COMPLETE": 1, "FAIL": 2, "PRUNED": 1}


@pytest.mark.parametrize(
    ("name", "status"),
    [("", 422), ("x", 201), ("x" * 200, 201), ("x" * 201, 422), ("x" * 600, 422), ("ä", 422)],
)
def test_a_name_is_judged_alike_by_every_database(
    client: TestClient, name: str, status: int
) -> None:
    response = client.post("/v1/studies", json=document(name=name))
    assert response.status_code == status, response.text
    if status == 201:
        assert read(client.get(f"/v1/studies/{name}"))["name"] == name
    else:
        assert [fault["field"] for fault in read(response)["errors"]] == ["name"]


@pytest.mark.parametrize(
    "changed",
    [
        {"type": "categorical", "choices": [64, 128, 256]},
        {"type": "categorical", "choices": [128, 64]},
        {"type": "int", "low": 64, "high": 128},
    ],
)
def test_a_space_stands_and_a_change_of_it_names_the_parameter(
    client: TestClient, changed: dict[str, Any]
) -> None:
    space = {"batch": {"type": "categorical", "choices": [64, 128]}}
    sent = document(space=space)
    before = read(client.post("/v1/studies", json=sent))
    refused = client.post("/v1/studies", json={**sent, "space": {"batch": changed}})
    assert (refused.status_code, read(refused)["code"]) == (409, "study_exists")
    assert "batch" in str(read(refused)["difference"])
    amended = client.patch(f"/v1/studies/{sent['name']}", json={"space": {"batch": changed}})
    assert "clone the study" in read(amended)["detail"]
    assert read(client.get(f"/v1/studies/{sent['name']}"))["space"] == before["space"]


def test_best_is_the_best_finite_value(client: TestClient, node: Node) -> None:
    study = node.launch()
    for value in (0.5, 0.7, 0.1 + 0.2):
        node.send(node.claim(), "complete", value=value)
    best = read(client.get(f"/v1/studies/{study['name']}/best"))
    assert (best["study"], best["number"], best["value"]) == (study["name"], 1, 0.7)
    assert best["params"].keys() == {"x"}
    assert (best["step"], best["value_rule"], best["best_pruned"]) == (None, "last", None)
    pruned = node.claim()
    node.send(pruned, "report", step=4, value=0.9, elapsed_seconds=1.0)
    node.send(pruned, "prune")
    apart = read(client.get(f"/v1/studies/{study['name']}/best"))["best_pruned"]
    assert (apart["number"], apart["value"], apart["step"]) == (3, 0.9, 4)
    assert read(client.get(f"/v1/studies/{study['name']}"))["best"]["value"] == 0.7


def test_a_creation_sent_again_with_its_key_is_answered_as_the_first_time(
    client: TestClient,
) -> None:
    headers = {"Idempotency-Key": uuid.uuid4().hex}
    sent = document()
    first = client.post("/v1/studies", json=sent, headers=headers)
    again = client.post("/v1/studies", json=dict(reversed(sent.items())), headers=headers)
    assert (first.status_code, again.status_code) == (201, 201)
    assert read(again) == read(first)
    other = client.post("/v1/studies", json=document(), headers=headers)
    assert (other.status_code, read(other)["code"]) == (409, "idempotency_key_reused")


@pytest.mark.parametrize("key", ["", "x" * 201, "a\tb"])
def test_a_key_that_is_none_is_refused(client: TestClient, key: str) -> None:
    response = client.post("/v1/studies", json=document(), headers={"Idempotency-Key": key})
    assert response.status_code == 422
    assert read(response)["errors"][0]["field"] == "Idempotency-Key"
