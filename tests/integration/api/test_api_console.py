"""What the console is made of: its page and files, and the requests that were made for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from api.figures import KEPT_SAMPLES
from api.pages import FILES
from hpo.access import Role
from tests.api_kit import Node, read, serving

SCRIPTS = sorted(FILES.glob("js/*.js"))


@pytest.fixture(scope="module")
def pages(new_database: Callable[[str], str]) -> Iterator[TestClient]:
    """The page asks no database, so one kind will do."""
    with serving(new_database("sqlite")) as opened:
        yield opened


class TestPage:
    def test_nothing_comes_from_elsewhere_and_nothing_stands_within(
        self, pages: TestClient
    ) -> None:
        page = pages.get("/")
        assert page.status_code == 200
        policy = page.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "://" not in page.text
        assert not re.search(r"<script(?![^>]*src=)|<style|style=| on\w+=", page.text)
        for file in re.findall(r'(?:src|href)="(console/[^"]+)"', page.text):
            answer = pages.get(f"/{file}")
            assert answer.status_code == 200
            assert answer.headers["X-Content-Type-Options"] == "nosniff"

    def test_scripts_name_files_that_are_there(self, pages: TestClient) -> None:
        texts = [script.read_text(encoding="utf-8") for script in SCRIPTS]
        for named in {name for text in texts for name in re.findall(r'from "([^"]+)"', text)}:
            found = (FILES / "js" / named).resolve().relative_to(FILES)
            answer = pages.get(f"/console/{found}")
            assert answer.status_code == 200, named
            assert answer.headers["Content-Type"].startswith("text/javascript")

    def test_scripts_are_short_and_put_no_text_into_the_page_as_html(self) -> None:
        for script in SCRIPTS:
            text = script.read_text(encoding="utf-8")
            assert len(text.splitlines()) < 300, script.name
            assert not re.search(r"innerHTML|outerHTML|insertAdjacent|eval\(|document.write", text)

    def test_what_came_from_others_names_its_version_and_license(self) -> None:
        vendor = FILES / "vendor"
        told = (vendor / "README.md").read_text(encoding="utf-8")
        for file in vendor.iterdir():
            assert file.name == "README.md" or f"`{file.name}`" in told, file.name
        assert "v1.6.32" in (vendor / "uplot.js").read_text(encoding="utf-8")[:200]

    def test_nothing_else_is_served(self, pages: TestClient) -> None:
        for path in ("/console", "/console/", "/console/nothing", "/console/../app.py"):
            assert read(pages.get(path))["code"] == "not_found"


class TestCheck:
    def test_every_fault_is_named_and_nothing_is_created(
        self, client: TestClient, node: Node
    ) -> None:
        body = {
            "name": "a b",
            "objective": node.objective,
            "direction": "up",
            "n_trials": 0,
            "space": {"x": {"type": "float", "low": 2, "high": 1}},
            "pruner": {"name": "median", "n_startup_trials": -1},
        }
        found = read(client.post("/v1/studies/check", json=body))
        refused = client.post("/v1/studies", json=body)
        assert refused.status_code == 422
        assert found["errors"] == read(refused)["errors"]
        fields = {"name", "direction", "n_trials", "space.x.low", "pruner.n_startup_trials"}
        assert {fault["field"] for fault in found["errors"]} == fields
        assert (found["study"], found["exists"]) == (None, False)

    def test_a_sound_document_becomes_what_creating_it_makes(
        self, client: TestClient, node: Node
    ) -> None:
        body: dict[str, Any] = {
            "name": f"sound-{node.id}",
            "objective": node.objective,
            "direction": "maximize",
            "space": {"x": {"type": "float", "low": 0, "high": 1}},
            "n_trials": 3,
        }
        found = read(client.post("/v1/studies/check", json=body))
        assert (found["errors"], found["exists"]) == ([], False)
        assert client.get(f"/v1/studies/{body['name']}").status_code == 404
        made = read(client.post("/v1/studies", json=body))
        assert found["study"] == {
            **{name: made[name] for name in found["study"] if name != "n_trials"},
            "n_trials": made["budget"]["n_trials"],
        }
        assert read(client.post("/v1/studies/check", json=body))["exists"] is True
        taken = read(client.post("/v1/studies/check", json={**body, "n_trials": 4}))
        assert [fault["field"] for fault in taken["errors"]] == ["name"]

    def test_what_is_no_document(self, client: TestClient) -> None:
        assert client.post("/v1/studies/check", json=[]).status_code == 422


class TestSession:
    def test_nobody_in_particular_while_there_are_no_tokens(self, client: TestClient) -> None:
        found = read(client.get("/v1/session"))
        assert (found["name"], found["role"], found["is_session"]) == (None, "admin", False)

    def test_a_login_and_a_token(self, new_database: Callable[[str], str]) -> None:
        with serving(new_database("sqlite")) as client:
            tokens = client.app.state.service.store.tokens  # type: ignore[attr-defined]  # an App
            tokens.create("me", Role.ADMIN)
            _, secret = tokens.create("guest", Role.READER)
            client.app.state.service.guard.forget()  # type: ignore[attr-defined]  # an App
            assert client.get("/v1/session").status_code == 401
            own = {"Authorization": f"Bearer {secret}"}
            found = read(client.get("/v1/session", headers=own))
            assert (found["name"], found["role"], found["is_session"]) == ("guest", "reader", False)
            client.post("/login", content=f"token={secret}")
            assert read(client.get("/v1/session"))["is_session"] is True


class TestWorkers:
    @staticmethod
    def look(client: TestClient, node: Node) -> dict[str, Any]:
        workers = read(client.get("/v1/workers"))["items"]
        return next(worker for worker in workers if worker["id"] == node.id)

    def test_what_it_runs(self, client: TestClient, node: Node) -> None:
        study = node.launch()
        claim = node.claim()
        (held,) = self.look(client, node)["trials"]
        assert (held["study"], held["number"], held["attempt"], held["device"]) == (
            study["name"],
            claim["number"],
            1,
            "cpu",
        )
        node.send(claim, "complete", value=1.0)
        assert self.look(client, node)["trials"] == []

    def test_its_devices_over_the_last_heartbeats(self, client: TestClient, node: Node) -> None:
        def beat(*devices: dict[str, Any]) -> int:
            body = {"tokens": [], "devices": list(devices)}
            return client.post(f"/v1/workers/{node.id}/heartbeat", json=body).status_code

        assert self.look(client, node)["figures"] == []
        gpu = {"device": "GPU-1", "name": "H200", "memory_used_bytes": 7, "memory_total_bytes": 9}
        for share in (0.25, None):
            assert beat({**gpu, "utilization": share}) == 200
        (found,) = self.look(client, node)["figures"]
        assert (found["utilization"], found["memory_used_bytes"]) == ([0.25, None], [7, 7])
        assert (found["name"], found["memory_total_bytes"]) == ("H200", 9)
        assert found["at"] == sorted(found["at"])
        for _ in range(KEPT_SAMPLES):
            beat(gpu)
        assert len(self.look(client, node)["figures"][0]["at"]) == KEPT_SAMPLES
        assert beat({**gpu, "utilization": 1.5}) == 422
        assert beat() == 200
        assert self.look(client, node)["figures"] == []


def test_columns_and_curves_travel_as_strict_json(client: TestClient, node: Node) -> None:
    study = node.launch(space={"x": {"type": "categorical", "choices": [1, "a", [2]]}})
    claim = node.claim()
    node.send(claim, "report", step=0, value="Infinity")  # diverged
    path = f"/v1/studies/{study['name']}"
    columns = read(client.get(f"{path}/columns"))
    assert (columns["numbers"], columns["values"]) == ([0], [[None]])
    assert columns["params"] == {"x": [claim["params"]["x"]]}
    curves = read(client.get(f"{path}/curves"))
    assert curves["trials"][0]["values"] == ["Infinity"]
    refused = client.get(f"{path}/columns", params={"limit": 0})
    assert [fault["field"] for fault in read(refused)["errors"]] == ["limit"]


@pytest.mark.parametrize(
    "text",
    [
        rb'{"\ud800": 1}',
        rb'{"name": "\ud800"}',
        rb'{"space": {"\ud800": {"type": "float", "low": 0, "high": 1}}}',
        rb'{"settings": {"a": "\ud800"}, "tags": ["\ud800"]}',
    ],
)
def test_text_that_is_no_unicode_is_a_fault_like_others(client: TestClient, text: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    answer = client.post("/v1/studies/check", content=text, headers=headers)
    assert answer.status_code == 200
    assert read(answer)["errors"]
