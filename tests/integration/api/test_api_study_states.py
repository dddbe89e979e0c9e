"""Labels, lists, the archive and deleting over REST and by our client, on both databases."""

from __future__ import annotations

import uuid
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient

from hpo.client import ApiError, Client
from tests.api_kit import Node, await_fact, read


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


def errors(response: httpx2.Response) -> dict[str, str]:
    assert response.status_code == 422, response.text
    return {fault["field"]: fault["message"] for fault in read(response)["errors"]}


def test_studies_are_listed_by_label_and_archive(node: Node, service: Client) -> None:
    tag, prefix = uuid.uuid4().hex, f"l{uuid.uuid4().hex}"
    names = [node.launch(name=f"{prefix}-{n}", tags=[tag, f"n{n}"])["name"] for n in range(3)]
    service.pause_study(names[0])
    assert service.archive_study(names[0])["archived_at"] is not None

    def listed(**query: Any) -> list[str]:
        return [study["name"] for study in service.studies(**query)]

    assert listed(tag=tag) == [names[2], names[1]]
    assert listed(tag=[tag, "n2"]) == [names[2]]
    assert listed(name_prefix=prefix, archived="any", limit=1) == names[::-1]
    assert listed(name_prefix=prefix, archived="true") == [names[0]]
    with pytest.raises(ApiError, match="is archived; unarchive it first"):
        service.resume_study(names[0])
    assert service.unarchive_study(names[0])["archived_at"] is None
    assert service.resume_study(names[0])["state"] == "running"


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("archived=yes", "archived"),
        ("tag=", "tag.0"),
        ("tag=%00", "tag.0"),
        ("name_prefix=%00", "name_prefix"),
        ("prefix=a", "prefix"),
    ],
)
def test_a_list_by_what_is_not_known_is_refused(client: TestClient, query: str, field: str) -> None:
    assert set(errors(client.get(f"/v1/studies?{query}"))) == {field}


def test_labels_change_and_what_is_fixed_does_not(node: Node, client: TestClient) -> None:
    study = node.launch(tags=["a"], notes="why")
    assert (study["tags"], study["notes"]) == (["a"], "why")
    path = f"/v1/studies/{study['name']}"
    etag = client.get(path).headers["ETag"]
    amended = client.patch(path, json={"tags": ["b", "c"], "notes": ""})
    assert (read(amended)["tags"], read(amended)["notes"]) == (["b", "c"], "")
    assert amended.headers["ETag"] != etag
    stale = client.patch(path, json={"tags": []}, headers={"If-Match": etag})
    assert stale.status_code == 412
    wrong = {"space": {}, "seed": 3, "name": "x", "n_trials": 0}
    fixed = errors(client.patch(path, json=wrong))
    assert fixed.pop("n_trials") == "must be 1 or more, got 0"
    assert fixed == dict.fromkeys(["name", "seed", "space"], "cannot be changed; clone the study")
    assert "correct its spelling" in errors(client.patch(path, json={"tag": ["a"]}))["tag"]
    for document in ({"tags": ["a", "a"]}, {"tags": [""]}, {"tags": None}, {"notes": None}):
        assert set(errors(client.patch(path, json=document))) <= {"tags", "tags.0", "notes"}
    assert read(client.get(path))["budget"]["n_trials"] == 5


def test_a_taken_name_tells_which_fields_differ(node: Node, client: TestClient) -> None:
    study = node.launch(tags=["a"])
    changed = {"n_trials": 6, "tags": ["b"]}
    kept = {name: study[name] for name in ("name", "objective", "direction", "space")}
    taken = client.post("/v1/studies", json={**kept, **changed})
    assert (taken.status_code, read(taken)["code"]) == (409, "study_exists")
    assert set(read(taken)["difference"]) == {"n_trials", "tags"}


def test_cancelling_now_ends_trials_without_a_report(node: Node, service: Client) -> None:
    name = node.launch()["name"]
    claim = node.claim()
    study = service.cancel_study(name, now=True)
    assert (study["state"], study["counts"]["FAIL"]) == ("stopped", 1)
    beat = node.client.post(f"/v1/workers/{node.id}/heartbeat", json={"tokens": [claim["token"]]})
    assert read(beat)["lost"] == [claim["token"]]
    late = node.send(claim, "complete", value=0.5)
    assert (late.status_code, read(late)["code"]) == (409, "trial_finished")


def test_a_running_study_is_deleted_by_force_only(node: Node, client: TestClient) -> None:
    study = node.launch()
    claim = node.claim()
    path = f"/v1/studies/{study['name']}"
    refused = client.delete(path)
    assert (refused.status_code, read(refused)["code"]) == (409, "conflict")
    assert "send force=true" in read(refused)["detail"]
    deleted = client.delete(f"{path}?force=true")
    assert deleted.status_code == 202
    assert (read(deleted)["state"], read(deleted)["uuid"]) == ("deleting", study["uuid"])
    await_fact(lambda: client.get(path).status_code == 404)
    beat = client.post(f"/v1/workers/{node.id}/heartbeat", json={"tokens": [claim["token"]]})
    assert read(beat)["lost"] == [claim["token"]]
    assert study["uuid"] in read(beat)["deleted"]
    late = node.send(claim, "report", step=0, value=0.5)
    assert (late.status_code, read(late)["code"]) == (404, "not_found")
    assert client.delete(path).status_code == 404
    assert node.launch(name=study["name"])["uuid"] != study["uuid"]
    assert errors(client.delete(f"{path}?force=perhaps")).keys() == {"force"}


def test_the_client_waits_until_the_name_is_free(node: Node, service: Client) -> None:
    study = node.launch()
    service.stop_study(study["name"])
    assert service.delete_study(study["name"])["state"] == "deleting"
    with pytest.raises(ApiError, match="There is no study"):
        service.study(study["name"])


@pytest.mark.parametrize(
    ("length", "status"), [(0, 422), (1, 201), (200, 201), (201, 422), (600, 422)]
)
def test_names_have_one_limit_on_every_database(
    node: Node, client: TestClient, length: int, status: int
) -> None:
    name = "n" * length
    document = {"name": name, "objective": node.objective, "direction": "minimize", "n_trials": 1}
    assert client.post("/v1/studies", json=document).status_code == status
    if status == 201:
        assert read(client.get(f"/v1/studies/{name}"))["name"] == name
