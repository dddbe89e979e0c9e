"""Models over HTTP: offered, streamed in, fetched, refused, shown in the dashboard."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient

from tests.api_kit import Node, read, serving, trial_path
from tests.integration.api.conftest import NewDatabase

CONTENT = b"weights" * 100
MAX_BYTES = 1000


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp(f"artifacts-{request.param}")


@pytest.fixture(scope="module")
def client(folder: Path, new_database: NewDatabase) -> Iterator[TestClient]:
    kind = folder.name.split("-")[1].rstrip("0123456789")
    url = new_database(kind)
    with serving(url, artifacts=folder, max_model_bytes=MAX_BYTES) as opened:
        yield opened


@pytest.fixture
def claim(node: Node) -> dict[str, Any]:
    node.launch()
    return node.claim()


def offer(node: Node, claim: dict[str, Any], content: bytes = CONTENT, **members: Any) -> Any:
    document = {
        "value": 0.5,
        "step": 3,
        "sha256": hashlib.sha256(content).hexdigest(),
        "size_bytes": len(content),
        **members,
    }
    return read(node.send(claim, "model", **document))


def put(node: Node, claim: dict[str, Any], content: Any = CONTENT, **headers: str) -> Any:
    return node.client.put(
        f"{trial_path(claim)}/model",
        content=content,
        headers={"Lease-Token": claim["token"], **headers},
    )


def code(response: httpx2.Response) -> tuple[int, str]:
    return response.status_code, read(response)["code"]


def test_a_model_goes_in_and_comes_out(node: Node, claim: dict[str, Any]) -> None:
    assert offer(node, claim) == {"wanted": True, "reason": None}
    assert put(node, claim).status_code == 204
    node.send(claim, "complete", value=0.5)
    model = {
        "step": 3,
        "sha256": hashlib.sha256(CONTENT).hexdigest(),
        "size_bytes": len(CONTENT),
        "file_name": f"{claim['study']}-0.pt",
        "url": f"{trial_path(claim)}/model",
    }
    study = f"/v1/studies/{claim['study']}"
    assert read(node.client.get(trial_path(claim)))["model"] == model
    assert read(node.client.get(f"{study}/best"))["model"] == model
    assert read(node.client.get(study))["best"]["model"] == model
    response = node.client.get(model["url"])
    assert response.content == CONTENT
    assert response.headers["Content-Length"] == str(len(CONTENT))
    assert response.headers["ETag"] == f'"{model["sha256"]}"'
    assert response.headers["Content-Disposition"] == f'attachment; filename="{model["file_name"]}"'
    part = node.client.get(model["url"], headers={"Range": "bytes=7-13"})
    assert (part.status_code, part.content) == (206, b"weights")


def test_the_dashboard_shows_the_model_and_hands_it_out(node: Node, claim: dict[str, Any]) -> None:
    offer(node, claim, suffix=".safetensors")
    put(node, claim)
    node.send(claim, "complete", value=0.5)
    found = node.client.get("/api/studies").json()["study_summaries"]
    number = next(s["study_id"] for s in found if s["study_name"] == claim["study"])
    assert node.client.get("/api/meta").json()["artifact_is_available"]
    (trial,) = node.client.get(f"/api/studies/{number}").json()["trials"]
    (artifact,) = trial["artifacts"]
    assert artifact["filename"] == f"{claim['study']}-0.safetensors"
    path = f"/artifacts/{number}/{trial['trial_id']}/{artifact['artifact_id']}"
    assert node.client.get(path).content == CONTENT


def test_a_model_that_is_displaced_is_gone(node: Node, claim: dict[str, Any], folder: Path) -> None:
    offer(node, claim)
    put(node, claim)
    node.send(claim, "complete", value=0.5)
    better = node.claim()
    offer(node, better, b"better", value=0.6)
    put(node, better, b"better")
    node.send(better, "complete", value=0.6)
    response = node.client.get(f"{trial_path(claim)}/model")
    assert code(response) == (404, "not_found")
    assert node.client.get(f"{trial_path(better)}/model").content == b"better"
    worse = node.claim()
    answer = offer(node, worse, b"worse", value=0.1)
    assert answer == {
        "wanted": False,
        "reason": "The study keeps 1, and trial 1 has a better one.",
    }
    assert code(put(node, worse, b"worse")) == (409, "model_refused")


def test_what_differs_from_the_offer_is_refused(
    node: Node, claim: dict[str, Any], folder: Path
) -> None:
    before = sorted(folder.iterdir())
    for content, field in ((CONTENT[::-1], "sha256"), (CONTENT[1:], "size_bytes")):
        offer(node, claim)
        response = put(node, claim, content)
        assert code(response) == (422, "invalid")
        assert [error["field"] for error in read(response)["errors"]] == [field]
    assert {path.name for path in folder.iterdir()} <= {path.name for path in before}
    assert offer(node, claim)["wanted"]
    assert put(node, claim).status_code == 204


@pytest.mark.parametrize("is_declared", [True, False])
def test_models_have_a_limit_of_their_own(
    node: Node, claim: dict[str, Any], is_declared: bool
) -> None:
    offer(node, claim)
    big = b"x" * (MAX_BYTES + 1)
    response = put(node, claim, big if is_declared else iter([big[:500], big[500:]]))
    assert code(response) == (422, "invalid")
    assert read(response)["detail"] == f"size_bytes: {len(CONTENT)} were offered, more came"
    assert "--max-model-bytes" in offer(node, claim, big)["reason"]


def test_other_bodies_keep_theirs(node: Node, claim: dict[str, Any]) -> None:
    path = f"{trial_path(claim)}/model"
    response = node.client.post(path, content=b"x", headers={"Content-Type": "text/plain"})
    assert code(response) == (415, "media_type")


def test_a_method_that_a_model_has_not_is_refused_as_such(client: TestClient) -> None:
    path = "/v1/studies/any/trials/0/model"
    headers = {"Content-Type": "application/octet-stream"}
    response = client.request("DELETE", path, content=b"weights", headers=headers)
    assert code(response) == (405, "method_not_allowed")


def test_a_wrong_token_sends_nothing(node: Node, claim: dict[str, Any]) -> None:
    offer(node, claim)
    assert code(put(node, claim, **{"Lease-Token": "0" * 32})) == (409, "lease_lost")
    missing = node.client.put(f"{trial_path(claim)}/model", content=CONTENT)
    assert missing.status_code == 422
    assert "Lease-Token" in read(missing)["detail"]


@pytest.mark.parametrize(
    "fault",
    [
        {"sha256": "x"},
        {"size_bytes": -1},
        {"step": -1},
        {"suffix": "../../etc/passwd"},
        {"suffix": "pt"},
    ],
)
def test_a_faulty_offer_names_its_field(
    node: Node, claim: dict[str, Any], fault: dict[str, Any]
) -> None:
    answer = offer(node, claim, **fault)
    assert [error["field"] for error in answer["errors"]] == list(fault)


def test_a_study_says_how_many_models_it_keeps(node: Node) -> None:
    assert node.launch()["keep_models"] == 1
    study = node.launch(keep_models=0)
    assert (study["keep_models"], study["models_blocked"]) == (0, None)
    for bad in (-1, 1001, 1.5):
        response = node.client.post(
            "/v1/studies", json={"name": "x", "objective": "x:x", "n_trials": 1, "keep_models": bad}
        )
        assert "keep_models" in [error["field"] for error in read(response)["errors"]]


def test_a_study_of_one_point_runs(node: Node) -> None:
    """What a replication is made of, and ranges of one value, which are as good."""
    space = {
        "lr": {"type": "float", "low": 0.3, "high": 0.3, "log": True},
        "width": {"type": "int", "low": 5, "high": 5},
        "kind": {"type": "categorical", "choices": [None]},
        "decay": {"type": "categorical", "choices": [0.1 + 0.2]},
    }
    study = node.launch(space=space, pruner="none", replicates="other/3", n_trials=2)
    assert study["replicates"] == "other/3"
    claims = [node.claim(), node.claim()]
    for claim in claims:
        assert claim["params"] == {"lr": 0.3, "width": 5, "kind": None, "decay": 0.1 + 0.2}
    assert claims[0]["seed"] != claims[1]["seed"]
    response = node.client.post(
        "/v1/studies",
        json={"name": "y", "objective": "x:x", "n_trials": 1, "replicates": "no number"},
    )
    assert "replicates" in [error["field"] for error in read(response)["errors"]]
