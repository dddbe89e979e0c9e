"""Several directions and constraints over REST, on both databases."""

from __future__ import annotations

from starlette.testclient import TestClient

from tests.api_kit import Node, read, trial_path


def test_a_study_of_two_directions(client: TestClient, node: Node) -> None:
    study = node.launch(
        direction=..., directions=["minimize", "maximize"], metrics=["loss", "speed"], n_trials=2
    )
    assert study["direction"] is None
    assert study["directions"] == ["minimize", "maximize"]
    assert study["metrics"] == ["loss", "speed"]
    assert study["pruner"] == {"name": "none"}
    first = node.claim()
    decision = node.send(first, "report", step=0, value=1.0, constraints={"size": 1.0})
    assert read(decision)["verdict"] == "continue"
    assert read(node.send(first, "complete", values=[1.0, 2.0]))["state"] == "COMPLETE"
    second = node.claim()
    refused = node.send(second, "complete", value=1.0)
    assert (refused.status_code, read(refused)["code"]) == (422, "invalid_result")
    assert [fault["field"] for fault in read(refused)["errors"]] == ["values"]
    assert read(client.get(trial_path(second)))["state"] == "RUNNING"
    failed = node.send(second, "fail", reason="invalid_result", message=read(refused)["detail"])
    assert read(failed) == {"state": "FAIL", "awaiting_attempt": False, "reason": "invalid_result"}
    path = f"/v1/studies/{study['name']}"
    shown = read(client.get(f"{path}/trials/0"))
    assert (shown["value"], shown["values"], shown["constraints"]) == (
        None,
        [1.0, 2.0],
        {"size": 1.0},
    )
    assert read(client.get(path))["best"] is None
    refused = client.get(f"{path}/best")
    assert (refused.status_code, read(refused)["code"]) == (409, "conflict")
    again = {**study, "n_trials": 2}
    for answer in ("direction", "metric"):
        assert again[answer] is None
    sent = {field: study[field] for field in ("name", "objective", "directions", "metrics")}
    assert client.post("/v1/studies", json={**sent, "n_trials": 2}).status_code == 200


def test_each_fault_of_directions_names_its_field(client: TestClient, node: Node) -> None:
    base = {"name": "x", "objective": node.objective, "n_trials": 1}
    two = {**base, "directions": ["minimize", "maximize"]}
    faulty = {
        "direction": {**two, "direction": "minimize"},
        "metrics": {**two, "metrics": ["loss"]},
        "metric": {**two, "metric": "loss"},
        "pruner": {**two, "pruner": "median"},
        "sampler": {**two, "sampler": "cmaes"},
        "directions.0": {**base, "directions": ["down"]},
        "directions": {**base, "directions": []},
    }
    for field, document in faulty.items():
        response = client.post("/v1/studies", json=document)
        assert response.status_code == 422, document
        assert [fault["field"] for fault in read(response)["errors"]] == [field]


def test_constraints_must_be_finite(client: TestClient, node: Node) -> None:
    node.launch()
    claim = node.claim()
    refused = node.send(claim, "complete", value=1.0, constraints={"size": "NaN"})
    assert refused.status_code == 422
    assert read(refused)["errors"][0]["field"] == "constraints.size"
    assert node.send(claim, "complete", value=1.0).status_code == 200
