"""The life of a study over REST, on both databases."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient

from hpo.client import ApiError, Client
from tests.api_kit import Node, read


@pytest.fixture
def service(client: TestClient) -> Client:
    """Our own client on the same service."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        path = request.url.raw_path.decode()
        headers = {"Content-Type": "application/json"} if request.content else {}
        answered = client.request(request.method, path, content=request.content, headers=headers)
        return httpx2.Response(
            answered.status_code, content=answered.content, headers=answered.headers
        )

    return Client("http://hpo.test", transport=httpx2.MockTransport(answer))


def test_a_study_is_paused_and_resumed(node: Node, service: Client) -> None:
    name = node.launch(n_trials=1)["name"]
    claim = node.claim()
    for _ in range(2):
        paused = service.pause_study(name)
        assert (paused["state"], paused["reason"]) == ("paused", "Paused on request.")
    answer = read(node.send(claim, "report", step=0, value=0.5))
    assert (answer["verdict"], answer["reason"]) == ("pause", "preempted")
    assert read(node.send(claim, "release"))["awaiting_attempt"] is True
    assert node.ask().status_code == 204
    for _ in range(2):
        assert service.resume_study(name)["state"] == "running"
    again = node.claim()
    assert (again["number"], again["attempt"]) == (0, 2)


def test_a_study_is_stopped(node: Node, service: Client) -> None:
    name = node.launch()["name"]
    claim = node.claim()
    assert service.stop_study(name)["state"] == "stopping"
    assert read(node.send(claim, "report", step=0, value=0.5))["verdict"] == "continue"
    node.send(claim, "complete", value=0.5)
    assert service.stop_study(name)["state"] == "stopped"


def test_a_study_is_cancelled(node: Node, service: Client) -> None:
    name = node.launch()["name"]
    claim = node.claim()
    assert service.cancel_study(name)["state"] == "stopping"
    answer = read(node.send(claim, "report", step=0, value=0.5))
    assert (answer["verdict"], answer["reason"]) == ("stop", "cancelled")
    assert answer["evidence"] == {"message": "Cancelled on request."}
    settled = read(node.send(claim, "prune"))
    assert (settled["state"], settled["reason"]) == ("FAIL", "cancelled")
    study = service.cancel_study(name)
    assert (study["state"], study["reason"]) == ("stopped", "Cancelled on request.")
    assert service.trial(name, 0)["attempts"][0]["outcome"] == "stopped"


def test_a_completed_study_goes_on_with_more_trials(node: Node, service: Client) -> None:
    name = node.launch(n_trials=1)["name"]
    node.send(node.claim(), "complete", value=0.5)
    ended = service.study(name)
    assert (ended["state"], ended["reason"]) == ("completed", "All 1 trials have ended.")
    amended = service.amend_study(name, {"n_trials": 2, "priority": 3, "timeout_seconds": 60})
    assert (amended["state"], amended["priority"], amended["ended_at"]) == ("running", 3, None)
    assert amended["budget"] == {**ended["budget"], "n_trials": 2, "timeout_seconds": 60}
    assert service.amend_study(name, {"timeout_seconds": None})["budget"]["timeout_seconds"] is None
    node.send(node.claim(), "complete", value=0.5)
    assert node.ask().status_code == 204
    assert service.study(name)["state"] == "completed"


@pytest.mark.parametrize("verb", ["pause", "resume", "stop", "cancel"])
def test_a_state_that_forbids_a_change_is_named(node: Node, service: Client, verb: str) -> None:
    name = node.launch(n_trials=1)["name"]
    node.send(node.claim(), "complete", value=0.5)
    change: Callable[[str], Any] = getattr(service, f"{verb}_study")
    with pytest.raises(ApiError, match="is completed and cannot become") as refused:
        change(name)
    assert (refused.value.status, refused.value.code) == (409, "conflict")
    assert refused.value.problem["state"] == "completed"
    with pytest.raises(ApiError) as missing:
        change("nothing-here")
    assert (missing.value.status, missing.value.code) == (404, "not_found")


def test_a_stopped_study_is_not_extended(node: Node, service: Client) -> None:
    name = node.launch()["name"]
    service.stop_study(name)
    with pytest.raises(ApiError, match="cannot go on") as refused:
        service.amend_study(name, {"n_trials": 50})
    assert (refused.value.status, refused.value.code) == (409, "conflict")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"n_trials": 1}, "n_trials"),
        ({"n_trials": None}, "n_trials"),
        ({"n_trials": 0}, "n_trials"),
        ({"priority": None}, "priority"),
        ({"timeout_seconds": 0}, "timeout_seconds"),
        ({"no_progress_seconds": math.inf}, "no_progress_seconds"),
        ({"seed": 3}, "seed"),
    ],
)
def test_a_faulty_change_names_its_field(
    node: Node, service: Client, changes: dict[str, Any], field: str
) -> None:
    name = node.launch()["name"]
    held = [node.claim(), node.claim()]
    before = service.study(name)
    with pytest.raises(ApiError) as refused:
        service.amend_study(name, changes)
    assert refused.value.status == 422
    assert [fault["field"] for fault in refused.value.problem["errors"]] == [field]
    assert service.study(name) == before
    for claim in held:
        node.send(claim, "complete", value=1.0)
    service.cancel_study(name)


def test_a_claim_says_how_long_the_worker_may_take(node: Node) -> None:
    node.launch(n_trials=1, trial_timeout_seconds=90.0, no_progress_seconds=30.0)
    claim = node.claim()
    assert (claim["seconds_left"], claim["no_progress_seconds"]) == (90.0, 30.0)
    failed = node.send(claim, "fail", reason="no_progress", message="no report for 30 s")
    assert read(failed) == {"state": "FAIL", "awaiting_attempt": False, "reason": "no_progress"}
    node.launch(n_trials=1)
    claim = node.claim()
    assert (claim["seconds_left"], claim["no_progress_seconds"]) == (None, None)
