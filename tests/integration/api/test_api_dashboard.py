"""optuna-dashboard behind the service: whole pages, and no writes unless they are allowed."""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from tests.api_kit import Node, await_fact, read, serving


def dashboard_id(client: TestClient, name: str) -> int:
    """The number by which the dashboard knows a study."""
    found = client.get("/api/studies").json()["study_summaries"]
    return next(int(study["study_id"]) for study in found if study["study_name"] == name)


@pytest.mark.parametrize("path", ["/dashboard", "/dashboard/", "/dashboard/studies/1"])
def test_the_page_is_served(client: TestClient, path: str) -> None:
    response = client.get(path)
    assert response.status_code == 200
    assert "<title>Optuna Dashboard</title>" in response.text
    assert response.url.path.rstrip("/") == path.rstrip("/")


def test_the_console_leads_to_the_page_of_a_study(client: TestClient, node: Node) -> None:
    """Case R35: within one redirect, and every script of the page is there (below)."""
    study = node.launch()
    page = client.get(f"/console/dashboard/{study['name']}")
    assert (page.status_code, len(page.history)) == (200, 1)
    assert page.url.path == f"/dashboard/studies/{dashboard_id(client, study['name'])}"
    assert "<title>Optuna Dashboard</title>" in page.text
    assert read(client.get("/console/dashboard/nobody"))["code"] == "not_found"


@pytest.mark.parametrize("encoding", ["gzip", "identity", None])
def test_every_script_of_the_page_is_served(client: TestClient, encoding: str | None) -> None:
    scripts = re.findall(r'<script[^>]*\ssrc="([^"]+)"', client.get("/dashboard/").text)
    assert scripts
    for path in [*scripts, "/favicon.ico"]:
        request = client.build_request("GET", path, headers={"Accept-Encoding": encoding or ""})
        if encoding is None:
            del request.headers["Accept-Encoding"]
        response = client.send(request)
        assert response.status_code == 200
        assert response.content


def test_what_the_page_reads_is_there(client: TestClient, node: Node) -> None:
    study = node.launch()
    claim = node.claim()
    node.send(claim, "report", step=0, value=0.5)
    node.send(claim, "complete", value=0.5)
    number = dashboard_id(client, study["name"])
    detail = client.get(f"/api/studies/{number}", params={"after": 0})
    assert detail.status_code == 200
    assert [trial["state"] for trial in detail.json()["trials"]] == ["Complete"]
    assert client.get("/api/meta").status_code == 200
    assert "Number,State" in client.get(f"/csv/{number}").text


def test_trials_that_hold_no_finite_number_can_be_read(client: TestClient, node: Node) -> None:
    study = node.launch()
    claim = node.claim()
    node.send(claim, "report", step=0, value="NaN")
    node.send(claim, "prune")
    number = dashboard_id(client, study["name"])
    assert read(client.get(f"/api/studies/{number}"))["trials"]


WRITES = [
    ("DELETE", "/api/studies/{id}"),
    ("POST", "/api/studies"),
    ("POST", "/api/studies/{id}/rename"),
    ("PUT", "/api/studies/{id}/note"),
    ("POST", "/api/trials/1/tell"),
    ("POST", "/api/trials/1/user-attrs"),
    ("POST", "/incompatible-rdb-schema"),
    ("PATCH", "/dashboard"),
    ("BREW", "/api/studies/{id}"),
]


@pytest.mark.parametrize(("method", "path"), WRITES)
def test_writes_are_refused(client: TestClient, node: Node, method: str, path: str) -> None:
    study = node.launch()
    number = dashboard_id(client, study["name"])
    response = client.request(method, path.format(id=number))
    assert (response.status_code, read(response)["code"]) == (403, "read_only")
    assert read(client.get(f"/v1/studies/{study['name']}"))["uuid"] == study["uuid"]
    assert dashboard_id(client, study["name"]) == number


def test_the_service_answers_for_its_own_paths(client: TestClient) -> None:
    for path in ("/v1", "/v1/", "/v1/nothing", "/v1/nothing/at/all"):
        response = client.get(path)
        assert (response.status_code, read(response)["code"]) == (404, "not_found")
    response = client.put("/v1/studies/x")
    assert (response.status_code, read(response)["code"]) == (405, "method_not_allowed")
    for path in ("/nothing", "/docs/nothing", "/dashboards"):
        assert read(client.get(path))["code"] == "not_found"


@contextlib.contextmanager
def watching(url: str) -> Iterator[sa.Connection]:
    engine = sa.create_engine(url, poolclass=sa.pool.NullPool)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def test_reading_leaves_the_database_as_it_is(new_database: Callable[[str], str]) -> None:
    url = new_database("sqlite")
    # No reaping meanwhile: what changes would be the dashboard's doing.
    with serving(url, reap_seconds=3600) as client, watching(url) as watcher:
        node = Node(client)
        study = node.launch()
        for value in (0.1, 0.2):
            claim = node.claim()
            node.send(claim, "report", step=0, value=value)
            node.send(claim, "complete", value=value)
        number = dashboard_id(client, study["name"])
        before = watcher.exec_driver_sql("PRAGMA data_version").scalar_one()
        for path in (
            "/dashboard",
            "/api/studies",
            f"/api/studies/{number}",
            f"/api/studies/{number}/param_importances",
            f"/csv/{number}",
            "/incompatible-rdb-schema",
        ):
            assert client.get(path).status_code == 200, path
        assert watcher.exec_driver_sql("PRAGMA data_version").scalar_one() == before
        node.launch()
        assert watcher.exec_driver_sql("PRAGMA data_version").scalar_one() != before
        watcher.engine.dispose()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_writes_go_through_when_they_are_allowed(
    new_database: Callable[[str], str], kind: str
) -> None:
    with serving(new_database(kind), dashboard_writes=True) as client:
        node = Node(client)
        doomed, kept = node.launch(), node.launch()
        number = dashboard_id(client, doomed["name"])
        note = client.put(f"/api/studies/{number}/note", json={"version": 1, "body": "é"})
        assert note.status_code == 204
        assert client.get(f"/api/studies/{number}").json()["note"]["body"] == "é"
        response = client.request("DELETE", f"/api/studies/{number}", json={})
        assert response.status_code == 204
        names = {
            study["study_name"] for study in client.get("/api/studies").json()["study_summaries"]
        }
        assert names == {kept["name"]}
        named = client.post(
            "/api/studies", json={"study_name": uuid.uuid4().hex, "directions": ["minimize"]}
        )
        assert named.status_code == 201


def test_a_study_with_a_deleted_ones_id_is_shown_as_it_is(
    new_database: Callable[[str], str],
) -> None:
    def shown(client: TestClient, node: Node, parameter: str) -> tuple[int, list[str]]:
        space = {parameter: {"type": "float", "low": 0.0, "high": 1.0}}
        node.launch(name="demo", space=space, n_trials=1)
        node.send(node.claim(), "complete", value=0.5)
        number = dashboard_id(client, "demo")
        detail = client.get(f"/api/studies/{number}", params={"after": 0}).json()
        return number, [found["name"] for found in detail["union_search_space"]]

    with serving(new_database("sqlite")) as client:
        node = Node(client)
        first, names = shown(client, node, "x")
        assert names == ["x"]
        assert client.delete("/v1/studies/demo").status_code == 202
        await_fact(lambda: client.get("/v1/studies/demo").status_code == 404)
        assert shown(client, node, "y") == (first, ["y"])
