"""The worker protocol over REST, on both databases."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.api_kit import Node, read, trial_path

VERBS: dict[str, dict[str, Any]] = {
    "start": {},
    "suggest": {"name": "y", "parameter": {"type": "int", "low": 0, "high": 1}},
    "report": {"step": 0, "value": 1.0},
    "complete": {"value": 1.0},
    "prune": {},
    "fail": {"reason": "objective_error"},
    "release": {},
}


def code_of(response: Any) -> tuple[int, str]:
    return response.status_code, read(response)["code"]


def test_a_trial_from_claim_to_completion(client: TestClient, node: Node) -> None:
    study = node.launch(settings={"epochs": 2}, seed=5)
    claim = node.claim(device="cuda:0")
    assert claim.keys() == {
        "study",
        "study_uuid",
        "objective",
        "direction",
        "number",
        "attempt",
        "token",
        "params",
        "space_declared",
        "settings",
        "seed",
        "max_steps",
        "value_rule",
        "keep_models",
        "lease_seconds",
        "seconds_left",
        "no_progress_seconds",
    }
    assert (claim["study"], claim["study_uuid"]) == (study["name"], study["uuid"])
    assert (claim["number"], claim["attempt"], claim["space_declared"]) == (0, 1, True)
    assert 0 <= claim["params"]["x"] <= 1
    assert node.send(claim, "start", resumed_from_step=None).status_code == 204
    for step, value in enumerate((0.25, 0.1 + 0.2)):
        decision = read(
            node.send(
                claim,
                "report",
                step=step,
                value=value,
                elapsed_seconds=1.5,
                metrics={"loss": "Infinity"},
                user_attrs={"note": [step, "é", None]},
            )
        )
        assert decision["verdict"] == "continue"
    settled = node.send(claim, "complete", value=0.3, user_attrs={"last": True})
    assert read(settled) == {"state": "COMPLETE", "awaiting_attempt": False, "reason": None}

    trial = read(client.get(trial_path(claim)))
    assert (trial["state"], trial["value"], trial["params"]) == ("COMPLETE", 0.3, claim["params"])
    assert trial["user_attrs"] == {"note": [1, "é", None], "last": True}
    assert (trial["worker"], trial["device"]) == ("node:1", "cuda:0")
    assert [(point["step"], point["value"]) for point in trial["curve"]] == [
        (0, 0.25),
        (1, 0.1 + 0.2),
    ]
    assert trial["curve"][0]["metrics"] == {"loss": "Infinity"}
    assert [attempt["outcome"] for attempt in trial["attempts"]] == ["complete"]
    assert trial["started_at"] < trial["ended_at"]


def test_the_same_claim_again_gets_the_same_trial(node: Node) -> None:
    node.launch()
    key = uuid.uuid4().hex
    assert node.claim(claim_key=key) == node.claim(claim_key=key)


def test_no_work_is_204(node: Node) -> None:
    response = node.ask()
    assert (response.status_code, response.content) == (204, b"")


def test_a_worker_that_never_registered_is_told(client: TestClient, node: Node) -> None:
    stranger = str(uuid.uuid4())
    assert code_of(node.ask(worker_id=stranger)) == (404, "not_found")
    beat = client.post(f"/v1/workers/{stranger}/heartbeat", json={"tokens": []})
    assert code_of(beat) == (404, "not_found")


def test_a_heartbeat_names_the_tokens_that_are_lost(client: TestClient, node: Node) -> None:
    node.launch()
    claim = node.claim()
    path = f"/v1/workers/{node.id}/heartbeat"
    response = client.post(path, json={"tokens": [claim["token"], "gone"]})
    assert read(response) == {"lost": ["gone"], "deleted": []}


def test_registering_again_is_the_same_worker(client: TestClient, node: Node) -> None:
    assert node.times["lease_seconds"] >= 3 * node.times["heartbeat_seconds"]
    again = client.post("/v1/workers", json={**node.document, "slots": 7})
    assert again.status_code == 200
    mine = [w for w in read(client.get("/v1/workers"))["items"] if w["id"] == node.id]
    assert [(worker["slots"], worker["is_alive"]) for worker in mine] == [(7, True)]


def test_another_protocol_is_refused(client: TestClient, node: Node) -> None:
    response = client.post("/v1/workers", json={**node.document, "protocol": 99, "new": 1})
    assert code_of(response) == (409, "version_mismatch")
    assert read(response)["worker_protocol"] == 99


@pytest.mark.parametrize("verb", VERBS)
def test_a_stale_token_writes_nothing(client: TestClient, node: Node, verb: str) -> None:
    node.launch()
    claim = node.claim()
    before = read(client.get(trial_path(claim)))
    response = node.send({**claim, "token": "stale"}, verb, **VERBS[verb])
    assert code_of(response) == (409, "lease_lost")
    assert read(client.get(trial_path(claim))) == before


@pytest.mark.parametrize("verb", VERBS)
def test_a_trial_that_is_not_there(node: Node, verb: str) -> None:
    study = node.launch()
    claim = {"study": study["name"], "number": 77, "token": "x"}
    response = node.send(claim, verb, **VERBS[verb])
    assert code_of(response) in {(404, "not_found"), (409, "lease_lost")}
    response = node.send({**claim, "study": "nothing-here"}, verb, **VERBS[verb])
    assert code_of(response) == (404, "not_found")


def test_a_finished_trial_takes_no_report(node: Node) -> None:
    node.launch()
    claim = node.claim()
    node.send(claim, "complete", value=1.0)
    assert code_of(node.send(claim, "report", step=0, value=1.0)) == (409, "trial_finished")


@pytest.mark.parametrize("verb", ["complete", "prune", "fail", "release"])
def test_an_outcome_sent_twice_gets_the_same_answer(node: Node, verb: str) -> None:
    node.launch()
    claim = node.claim()
    first = node.send(claim, verb, **VERBS[verb])
    assert first.status_code == 200
    assert read(node.send(claim, verb, **VERBS[verb])) == read(first)


def test_a_step_again(node: Node) -> None:
    node.launch()
    claim = node.claim()
    first = read(node.send(claim, "report", step=0, value=0.5))
    assert read(node.send(claim, "report", step=0, value=0.5)) == first
    other = node.send(claim, "report", step=0, value=0.6)
    assert code_of(other) == (409, "step_reported")


@pytest.mark.parametrize("step", [-1, 3, 0.5, "0", True])
def test_a_step_that_cannot_be(client: TestClient, node: Node, step: Any) -> None:
    node.launch(max_steps=3)
    claim = node.claim()
    response = node.send(claim, "report", step=step, value=0.5)
    assert code_of(response) == (422, "invalid")
    assert [fault["field"] for fault in read(response)["errors"]] == ["step"]
    assert read(client.get(trial_path(claim)))["curve"] == []


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_a_value_that_is_not_finite_stays_strict_json(
    client: TestClient, node: Node, value: str
) -> None:
    study = node.launch()
    claim = node.claim()
    decision = read(node.send(claim, "report", step=0, value=value, user_attrs={"v": value}))
    assert (decision["verdict"], decision["reason"]) == ("prune", "diverged")
    assert decision["evidence"]["value"] == value
    settled = read(node.send(claim, "prune"))
    assert settled["state"] == "PRUNED"
    trial = read(client.get(trial_path(claim)))
    assert trial["curve"][0]["value"] == value
    assert trial["last_value"] == value
    assert trial["user_attrs"] == {"v": value}
    page = read(client.get(f"/v1/studies/{study['name']}/trials", params={"curves": True}))
    assert page["items"][0]["curve"] == trial["curve"]


def test_a_pruned_trial_shows_why(client: TestClient, node: Node) -> None:
    study = node.launch(pruner={"name": "median", "n_startup_trials": 2}, n_trials=3)
    for value in (0.8, 0.9):
        claim = node.claim()
        node.send(claim, "report", step=0, value=value)
        node.send(claim, "complete", value=value)
    claim = node.claim()
    decision = read(node.send(claim, "report", step=0, value=0.1))
    assert decision["verdict"] == "prune"
    assert read(node.send(claim, "prune"))["state"] == "PRUNED"
    trial = read(client.get(trial_path(claim)))
    assert trial["prune"].items() >= {"step": 0, "value": 0.1}.items()
    assert read(client.get(f"/v1/studies/{study['name']}"))["state"] == "completed"


def test_a_failure_keeps_its_words(client: TestClient, node: Node) -> None:
    node.launch()
    claim = node.claim()
    response = node.send(
        claim,
        "fail",
        reason="objective_error",
        message="no \0 data",
        traceback="Traceback …\n",
    )
    assert read(response)["state"] == "FAIL"
    trial = read(client.get(trial_path(claim)))
    assert (trial["reason"], trial["message"]) == ("objective_error", "no \ufffd data")
    assert trial["attempts"][0]["traceback"] == "Traceback …\n"


def test_a_released_trial_is_claimed_again_under_its_number(client: TestClient, node: Node) -> None:
    node.launch(retry_backoff_seconds=0)
    claim = node.claim()
    assert read(node.send(claim, "release"))["awaiting_attempt"] is True
    assert read(client.get(trial_path(claim)))["awaiting_attempt"] is True
    again = node.claim(wait_seconds=30)
    assert (again["number"], again["attempt"], again["params"]) == (0, 2, claim["params"])


def test_a_parameter_that_the_study_does_not_declare(node: Node) -> None:
    node.launch(space=...)
    claim = node.claim()
    assert (claim["space_declared"], claim["params"]) == (False, {})
    asked = {"name": "layers", "parameter": {"type": "int", "low": 1, "high": 4}}
    value = read(node.send(claim, "suggest", **asked))["value"]
    assert value in range(1, 5)
    assert type(value) is int
    assert read(node.send(claim, "suggest", **asked))["value"] == value
    faulty = {"name": "layers", "parameter": {"type": "int", "low": 4, "high": 1}}
    response = node.send(claim, "suggest", **faulty)
    assert [fault["field"] for fault in read(response)["errors"]] == ["parameter.low"]


def test_categorical_choices_keep_their_types(client: TestClient, node: Node) -> None:
    choices = [None, False, 3, 1.5, "é"]
    node.launch(
        space={"c": {"type": "categorical", "choices": choices}}, sampler="grid", n_trials=5
    )
    claims = [node.claim() for _ in choices]
    drawn = [claim["params"]["c"] for claim in claims]
    assert sorted(map(repr, drawn)) == sorted(map(repr, choices))
    shown = [read(client.get(trial_path(claim)))["params"]["c"] for claim in claims]
    assert list(map(repr, shown)) == list(map(repr, drawn))


def test_logs_are_kept_in_order_and_read_in_pages(client: TestClient, node: Node) -> None:
    node.launch()
    claim = node.claim()
    chunks = [{"sequence": n, "text": f"line {n}\n"} for n in range(3)]
    assert node.send(claim, "log", chunks=chunks[:2]).status_code == 204
    assert node.send(claim, "log", chunks=chunks[:2]).status_code == 204
    node.send(claim, "complete", value=1.0)
    assert node.send(claim, "log", chunks=chunks[2:]).status_code == 204
    path = f"{trial_path(claim)}/log"
    first = read(client.get(path, params={"limit": 2}))
    rest = read(client.get(path, params={"limit": 2, "after": first["next"]}))
    found = [(item["sequence"], item["text"]) for item in first["items"] + rest["items"]]
    assert found == [(n, f"line {n}\n") for n in range(3)]
    assert rest["next"] is None


def test_a_log_takes_whatever_a_child_prints(client: TestClient, node: Node) -> None:
    node.launch()
    claim = node.claim()
    chunk = {"sequence": 0, "text": "a\0\udcffé"}
    body = json.dumps({"token": claim["token"], "chunks": [chunk]})
    response = client.post(
        f"{trial_path(claim)}/log",
        content=body.encode(),
        headers={"Content-Type": "application/json"},
    )
    assert response.status_code == 204
    items = read(client.get(f"{trial_path(claim)}/log"))["items"]
    assert [item["text"] for item in items] == ["a\ufffd?é"]


def test_trials_are_listed_by_state_and_page(client: TestClient, node: Node) -> None:
    study = node.launch()
    claims = [node.claim() for _ in range(3)]
    node.send(claims[1], "complete", value=0.5)
    path = f"/v1/studies/{study['name']}/trials"
    running = read(client.get(path, params={"state": "RUNNING"}))
    assert [trial["number"] for trial in running["items"]] == [0, 2]
    first = read(client.get(path, params={"limit": 2}))
    assert [trial["number"] for trial in first["items"]] == [0, 1]
    rest = read(client.get(path, params={"limit": 2, "after": first["next"]}))
    assert ([trial["number"] for trial in rest["items"]], rest["next"]) == ([2], None)
    response = client.get(path, params={"state": "running"})
    assert code_of(response) == (422, "invalid")
    assert "'WAITING', 'RUNNING'" in read(response)["errors"][0]["message"]


@pytest.mark.parametrize("number", ["one", "-1", "99999999999"])
def test_a_number_that_is_none(client: TestClient, node: Node, number: str) -> None:
    study = node.launch()
    response = client.get(f"/v1/studies/{study['name']}/trials/{number}")
    assert code_of(response) == (422, "invalid")
    assert [fault["field"] for fault in read(response)["errors"]] == ["number"]
