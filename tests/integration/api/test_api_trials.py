"""What users do with trials over REST, on both databases."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from starlette.testclient import TestClient

from hpo.client import ApiError, Client
from tests.api_kit import Node, read, trial_path

SPACE = {
    "x": {"type": "float", "low": 0.0, "high": 1.0},
    "kind": {"type": "categorical", "choices": ["a", "b"]},
}


@pytest.fixture
def study(node: Node) -> str:
    return str(node.launch(space=SPACE, n_trials=6)["name"])


@pytest.fixture
def caller(client: TestClient) -> Client:
    """The Python client on the same service."""
    return Client("http://testserver", transport=client._transport)


class TestEnqueue:
    def test_points_are_tried_in_their_order(
        self, client: TestClient, node: Node, study: str
    ) -> None:
        points = [{"params": {"x": 0.25}, "user_attrs": {"from": "paper"}}, {"params": {}}]
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        path = f"/v1/studies/{study}/trials"
        sent = [client.post(path, json={"points": points}, headers=headers) for _ in range(2)]
        assert [answer.status_code for answer in sent] == [201, 201]
        assert [read(answer) for answer in sent] == [{"study": study, "numbers": [0, 1]}] * 2
        other = client.post(path, json={"points": points[1:]}, headers=headers)
        assert (other.status_code, read(other)["code"]) == (409, "idempotency_key_reused")
        assert node.claim()["params"]["x"] == 0.25
        trial = read(client.get(f"{path}/0"))
        assert (trial["enqueued"], trial["user_attrs"]) == ({"x": 0.25}, {"from": "paper"})

    @pytest.mark.parametrize(
        ("body", "field"),
        [
            ({"points": []}, "points"),
            ({}, "points"),
            ({"points": [{"params": {"x": 2.0}}]}, "points.0.params.x"),
            ({"points": [{"params": {"x": 0.5}}, {"params": {"y": 0}}]}, "points.1.params.y"),
            ({"points": [{}]}, "points.0.params"),
            ({"points": [{"params": {"kind": "\ud800"}}]}, "points.0.params.kind"),
            ({"points": [{"params": {}, "user_attrs": {"a" * 600: 1}}]}, "points.0.user_attrs"),
            ({"points": [{"params": {"x": 0.5}, "value": 1}]}, "points.0.value"),
            ({"points": [{"params": {"x": 0.5}}], "extend": "yes"}, "extend"),
        ],
    )
    def test_faults_are_named(
        self, client: TestClient, study: str, body: dict[str, Any], field: str
    ) -> None:
        # The JSON of the HTTP client carries no lone surrogate.
        headers = {"Content-Type": "application/json"}
        path = f"/v1/studies/{study}/trials"
        response = client.post(path, content=json.dumps(body), headers=headers)
        assert response.status_code == 422, response.text
        assert [fault["field"] for fault in read(response)["errors"]] == [field]

    def test_a_budget_without_room_is_a_conflict_with_the_cure(
        self, client: TestClient, study: str
    ) -> None:
        path, points = f"/v1/studies/{study}/trials", [{"params": {}}] * 7
        refused = client.post(path, json={"points": points})
        assert refused.status_code == 409
        assert read(refused)["needed_n_trials"] == 7
        assert client.post(path, json={"points": points, "extend": True}).status_code == 201
        assert read(client.get(f"/v1/studies/{study}"))["budget"]["n_trials"] == 7


class TestOneTrial:
    def test_cancel_and_requeue(self, client: TestClient, node: Node, study: str) -> None:
        claim = node.claim()
        path = trial_path(claim)
        assert read(client.post(f"{path}/cancel"))["state"] == "RUNNING"
        told = read(node.send(claim, "report", step=0, value=0.5, elapsed_seconds=0.0))
        assert (told["verdict"], told["reason"]) == ("stop", "cancelled")
        node.send(claim, "prune")
        assert read(client.post(f"{path}/cancel"))["reason"] == "cancelled"
        again = client.post(f"{path}/requeue")
        assert (again.status_code, read(again)["numbers"]) == (201, [1])
        assert node.claim()["params"] == claim["params"]
        early = client.post(f"/v1/studies/{study}/trials/1/requeue", json={"extend": False})
        assert (early.status_code, read(early)["code"]) == (409, "conflict")

    def test_exclude_and_include(self, client: TestClient, node: Node, study: str) -> None:
        for value in (0.1, 0.9):
            node.send(node.claim(), "complete", value=value)
        path = f"/v1/studies/{study}/trials/1"
        excluded = read(client.post(f"{path}/exclude", json={"reason": "wrong labels"}))
        assert excluded["exclusion"]["reason"] == "wrong labels"
        assert read(client.get(f"/v1/studies/{study}/best"))["number"] == 0
        listed = read(client.get(f"/v1/studies/{study}/trials?excluded=true"))["items"]
        assert [trial["number"] for trial in listed] == [1]
        assert read(client.post(f"{path}/include"))["exclusion"] is None
        assert read(client.get(f"/v1/studies/{study}/best"))["number"] == 1
        assert client.post(f"{path}/exclude").status_code == 200
        assert client.post(f"/v1/studies/{study}/trials/5/exclude").status_code == 404


class TestVersions:
    def test_a_patch_of_what_was_seen(self, client: TestClient, node: Node, study: str) -> None:
        path = f"/v1/studies/{study}"
        etag = client.get(path).headers["ETag"]
        node.claim()  # trials come and go under the same version
        assert client.get(path).headers["ETag"] == etag
        first = client.patch(path, json={"n_trials": 9}, headers={"If-Match": etag})
        assert first.status_code == 200
        assert first.headers["ETag"] == client.get(path).headers["ETag"] != etag
        late = client.patch(path, json={"n_trials": 7}, headers={"If-Match": etag})
        assert (late.status_code, read(late)["code"]) == (412, "precondition_failed")
        assert read(client.get(path))["budget"]["n_trials"] == 9
        several = f'"other", W/{first.headers["ETag"]}'
        assert client.patch(path, json={}, headers={"If-Match": several}).status_code == 200
        assert client.patch(path, json={}, headers={"If-Match": "*"}).status_code == 200

    def test_the_state_is_part_of_it(self, client: TestClient, study: str) -> None:
        path = f"/v1/studies/{study}"
        etag = client.get(path).headers["ETag"]
        client.post(f"{path}/pause")
        assert client.get(path).headers["ETag"] != etag
        client.post(f"{path}/resume")
        assert client.get(path).headers["ETag"] == etag

    @pytest.mark.parametrize("text", ["abc", '"a', "", '"a" "b"'])
    def test_what_is_no_etag_is_refused(self, client: TestClient, study: str, text: str) -> None:
        response = client.patch(f"/v1/studies/{study}", json={}, headers={"If-Match": text})
        assert response.status_code == 422
        assert read(response)["errors"][0]["field"] == "If-Match"


class TestLists:
    def test_pages_in_another_order(self, client: TestClient, node: Node, study: str) -> None:
        for value in (0.5, 0.25, 0.75):
            node.send(node.claim(), "complete", value=value)
        path = f"/v1/studies/{study}/trials"
        query = {"sort": "value", "descending": "true", "limit": "2"}
        first = read(client.get(path, params=query))
        assert [trial["value"] for trial in first["items"]] == [0.75, 0.5]
        second = read(client.get(path, params={**query, "after": first["next"]}))
        assert [trial["value"] for trial in second["items"]] == [0.25]
        assert second["next"] is None

    @pytest.mark.parametrize(
        ("query", "field"),
        [
            ("sort=score", "sort"),
            ("after=-1", "after"),
            ("sort=value&after=3", "after"),
            ("min_value=nan", "min_value"),
            ("excluded=perhaps", "excluded"),
            ("descending=1&up=1", "up"),
        ],
    )
    def test_what_cannot_be_asked(
        self, client: TestClient, study: str, query: str, field: str
    ) -> None:
        response = client.get(f"/v1/studies/{study}/trials?{query}")
        assert response.status_code == 422
        assert [fault["field"] for fault in read(response)["errors"]] == [field]

    def test_the_end_of_a_log(self, client: TestClient, node: Node) -> None:
        node.launch()
        claim = node.claim()
        node.send(claim, "log", chunks=[{"sequence": 0, "text": "one\ntwo\nthree\n"}])
        tail = read(client.get(f"{trial_path(claim)}/log?tail=2"))
        assert [piece["text"] for piece in tail["items"]] == ["two\nthree\n"]
        assert read(client.get(f"{trial_path(claim)}/log?attempt=2"))["items"] == []


def test_the_python_client_does_all_of_it(caller: Client, node: Node, study: str) -> None:
    assert caller.enqueue(study, [{"params": {"x": 0.5}}, {"params": {"x": 0.1}}], key=study) == [
        0,
        1,
    ]
    for value in (0.1, 0.5, 0.3, 0.4, 0.2):
        node.send(node.claim(), "complete", value=value)
    assert caller.requeue(study, 0, key=f"{study}-again") == 5
    assert caller.cancel_trial(study, 5)["reason"] == "cancelled"
    assert caller.exclude_trial(study, 1, "a bug")["exclusion"]["reason"] == "a bug"
    assert caller.best(study)["number"] == 3
    with pytest.raises(ApiError, match="5 completed trials or more"):
        caller.importances(study)
    assert caller.include_trial(study, 1)["exclusion"] is None
    assert {item["parameter"] for item in caller.importances(study)["importances"]} == {"x", "kind"}
    assert [step["number"] for step in caller.history(study)["improvements"]] == [0, 1]
    assert [step["number"] for step in caller.history(study, by="time")["improvements"]] == [0, 1]
    assert caller.pareto(study)["trials"][0]["values"] == [0.5]
    assert caller.pruning(study)["n_complete"] == 5
    ordered = caller.trials(study, sort="value", descending=True, state="COMPLETE", min_value=0.25)
    assert [trial["value"] for trial in ordered] == [0.5, 0.4, 0.3]
    assert list(caller.log(study, 0, tail=3)) == []
    found, etag = caller.study_and_etag(study)
    assert caller.amend_study(study, {"priority": found["priority"] + 1}, etag=etag)
    with pytest.raises(ApiError) as refused:
        caller.amend_study(study, {"priority": 0}, etag=etag)
    assert refused.value.code == "precondition_failed"
