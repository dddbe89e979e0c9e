"""The service behind a real reverse proxy that has a prefix for it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

import httpx2
import pytest

from api.app import Access, create_app
from api.prefix import IN_PAGE, IN_SCRIPT, script_for
from hpo.access import Role
from hpo.client import Client
from storage.store import open_store
from tests.api_kit import Node, read
from tests.proxy_kit import await_fact, proxied, served

ROOT = "/hpo"


@pytest.fixture(scope="module")
def outside(new_database: Callable[[str], str]) -> Iterator[httpx2.Client]:
    """A client of the proxy, which speaks TLS to it, as the proxy says."""
    app = create_app(open_store(new_database("sqlite")), access=Access(root_path=ROOT))
    with (
        served(app) as target,
        proxied(target, ROOT, scheme="https") as url,
        httpx2.Client(base_url=url, trust_env=False, timeout=30) as client,
    ):
        await_fact(lambda: client.get("/readyz").status_code == 200)
        yield client


def inside(location: str) -> str:
    """The path of a location, which must be one that the proxy has."""
    assert location.startswith(f"{ROOT}/"), location
    return location.removeprefix(ROOT)


def test_a_study_is_where_its_location_says(outside: httpx2.Client) -> None:
    node = Node(outside)
    body = {
        "name": "behind",
        "objective": node.objective,
        "direction": "maximize",
        "space": {"x": {"type": "float", "low": 0, "high": 1}},
        "n_trials": 1,
    }
    made = outside.post("/v1/studies", json=body)
    assert made.status_code == 201
    assert read(outside.get(inside(made.headers["location"])))["name"] == "behind"
    with Client(str(outside.base_url)) as client:
        assert [study["name"] for study in client.studies()] == ["behind"]


def test_the_docs_find_their_files_and_the_document(outside: httpx2.Client) -> None:
    page = outside.get("/docs").text
    named = re.findall(r'(?:src|href)="([^"]+)"', page) + re.findall(r"url: '([^']+)'", page)
    assert len(named) >= 4
    for path in named:
        assert outside.get(inside(path)).status_code == 200, path
    document = read(outside.get("/openapi.json"))
    assert document["servers"] == [{"url": ROOT}]
    assert f"({ROOT}/dashboard)" in document["info"]["description"]


def test_the_dashboard_stays_under_the_prefix(outside: httpx2.Client) -> None:
    page = outside.get("/dashboard")
    scripts = re.findall(r'<script[^>]*\ssrc="([^"]+)"', page.text)
    assert scripts
    for encoding in ("gzip", "identity"):
        for script in scripts:
            found = outside.get(inside(script), headers={"Accept-Encoding": encoding})
            assert found.status_code == 200
            assert f'url_prefix:"{ROOT}/dashboard"' in found.text
    assert outside.get("/api/studies").status_code == 200
    assert outside.get("/dashboard/studies/1").text == page.text


@pytest.mark.parametrize("path", ["/", ""])
def test_the_console_and_its_files_are_under_the_prefix(outside: httpx2.Client, path: str) -> None:
    """Also at the prefix without a slash behind it, where relative addresses would lead astray."""
    page = outside.get(path).text
    (base,) = re.findall(r'<base href="([^"]+)">', page)
    files = re.findall(r'(?:src|href)="(console/[^"]+)"', page)
    assert (base, len(files) > 4) == (f"{ROOT}/", True)
    for file in files:
        assert outside.get(inside(base + file)).status_code == 200, file
    node = Node(outside)
    study = node.launch()
    sent = outside.get(f"/console/dashboard/{study['name']}")
    assert inside(sent.headers["location"]).startswith("/dashboard/studies/")


def test_every_path_in_the_script_is_one_that_gets_the_prefix() -> None:
    """A release of optuna-dashboard that writes them in another way is found out here."""
    plain, script = script_for(""), script_for(ROOT)
    assert all(found in plain for found in IN_SCRIPT)
    named = re.findall(r'["`}](/(?:api|static|csv|artifacts|dashboard)/?)(?=["`$\w])', plain)
    assert len(named) > 20
    assert re.findall(r'["`}](/(?:api|static|csv|artifacts|dashboard)/?)(?=["`$\w])', script) == []
    assert IN_PAGE == '="/static/'


def test_the_login_leads_back_and_its_cookie_is_for_the_prefix(outside: httpx2.Client) -> None:
    with Client(str(outside.base_url)) as client:
        token = client.create_token("me", Role.ADMIN)["token"]
    page = {"Accept": "text/html"}
    sent = outside.get("/dashboard/studies/1", headers=page)
    assert sent.status_code == 303
    login = inside(sent.headers["location"])
    assert '<form method="post">' in outside.get(login).text  # which goes to the page's own address
    entered = outside.post(login, data={"token": token})
    assert inside(entered.headers["location"]) == "/dashboard/studies/1"
    cookie = entered.headers["set-cookie"]
    assert f"Path={ROOT};" in cookie
    assert "Secure" in cookie
    session = {"Cookie": cookie.partition(";")[0]}
    assert outside.get("/dashboard", headers=session).status_code == 200
    assert inside(outside.post("/logout", headers=session).headers["location"]) == "/login"
    assert json.loads(outside.get("/api/studies", headers=session).text)["code"] == "unauthorized"
