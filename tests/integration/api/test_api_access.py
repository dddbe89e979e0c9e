"""Who may do what: every route and page against every role, none, a wrong and a revoked token."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from uuid import uuid4

import httpx2
import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from api.access import COOKIE, KNOWN_SECONDS, Guard, rule_of
from api.app import Access, create_app
from api.routes import Routes, routes_of
from hpo.access import PREFIX, Role
from storage.store import open_store
from tests.api_kit import Node, await_ready, read, serving

ROLES = [role.value for role in Role]
DASHBOARD = ["/dashboard", "/dashboard/studies/1", "/api/studies", "/api/meta", "/csv/1"]
PAGES = [
    "/",
    "/console/js/main.js",
    "/console/dashboard/x",
    "/docs",
    "/openapi.json",
    "/docs-files/swagger-ui.css",
]
OPEN = {"/healthz", "/readyz"}


def bearer(token: str | None) -> dict[str, str]:
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def make(client: TestClient, admin: str | None, name: str, role: str) -> str:
    answer = client.post("/v1/tokens", json={"name": name, "role": role}, headers=bearer(admin))
    assert answer.status_code == 201, answer.text
    return str(read(answer)["token"])


class Doors:
    """A service with a token of each role, one that was revoked and one that never was."""

    def __init__(self, client: TestClient) -> None:
        self.client = client
        admin = make(client, None, "admin", "admin")
        self.tokens: dict[str, str | None] = {"admin": admin, "none": None, "wrong": "hpo_wrong"}
        for role in ROLES[:-1]:
            self.tokens[role] = make(client, admin, role, role)
        self.tokens["revoked"] = make(client, admin, "former", "admin")
        self.send("DELETE", "/v1/tokens/former", "admin")

    def send(self, method: str, path: str, who: str, **options: Any) -> httpx2.Response:
        headers = {**bearer(self.tokens[who]), **options.pop("headers", {})}
        return self.client.request(method, path, headers=headers, follow_redirects=False, **options)


@pytest.fixture(scope="module")
def doors(new_database: Callable[[str], str]) -> Iterator[Doors]:
    with serving(new_database("sqlite")) as client:
        yield Doors(client)


def allowed(method: str, path: str, tags: set[str]) -> set[str]:
    """The rule once more, in the words of the README and not in those of the code."""
    if path.startswith("/v1/tokens") or (method, path) == ("DELETE", "/v1/studies/{study}"):
        return {"admin"}
    is_reading = method == "GET"
    roles = {"operator", "admin"} | ({"reader"} if is_reading else set())
    swept = ("/v1/session", "/v1/workers", "/v1/studies", "/v1/studies/{study}/trials")
    if "worker protocol" in tags or (is_reading and path in (*swept, f"{swept[-1]}/{{number}}")):
        roles.add("worker")
    return roles


def is_stream(operation: Mapping[str, Any]) -> bool:
    """Whether the answer has no end that one could wait for."""
    answers = operation["responses"].values()
    return any("text/event-stream" in answer.get("content", ()) for answer in answers)


def test_every_route_of_the_document_is_for_its_roles_only(doors: Doors) -> None:
    document = read(doors.send("GET", "/openapi.json", "reader"))
    n_checked = 0
    for template, methods in document["paths"].items():
        path = re.sub(r"{(\w+)}", lambda found: "7" if found[1] == "number" else "x-y", template)
        path = path.replace("/v1/workers/x-y", f"/v1/workers/{uuid4()}")
        for method, operation in methods.items():
            if template in OPEN:
                assert doors.send(method.upper(), path, "none").status_code == 200
                continue
            may = allowed(method.upper(), template, set(operation["tags"]))
            refused = [who for who in doors.tokens if who not in may]
            for who in refused if is_stream(operation) else doors.tokens:
                answer = doors.send(method.upper(), path, who)
                label = f"{method} {template} by {who}: {answer.text[:200]}"
                if who in may:
                    # No such study, an empty body: whatever it is, it is the route's own answer.
                    assert answer.status_code not in (401, 403), label
                elif who in ROLES:
                    assert (answer.status_code, read(answer)["code"]) == (403, "forbidden"), label
                    assert set(read(answer)["needed"]) <= may, label
                else:
                    assert (answer.status_code, read(answer)["code"]) == (401, "unauthorized")
                    assert answer.headers["WWW-Authenticate"].startswith('Bearer realm="hpo"')
                n_checked += 1
            assert operation["security"] == [
                {"token": operation["x-roles"]},
                {"session": operation["x-roles"]},
            ]
            assert {"401", "403"} <= operation["responses"].keys(), template
    assert n_checked > 7 * 25


@pytest.mark.parametrize("path", [*DASHBOARD, *PAGES])
def test_pages_are_for_readers(doors: Doors, path: str) -> None:
    for who, status in {
        **{"none": 401, "wrong": 401, "revoked": 401, "worker": 403},
        **dict.fromkeys(["reader", "operator", "admin"]),
    }.items():
        answer = doors.send("GET", path, who)
        if status is None:
            assert answer.status_code in (200, 404), (who, answer.text)
        else:
            assert answer.status_code == status, who


def test_a_route_without_a_rule_is_found_out(doors: Doors) -> None:
    routes = list(routes_of(doors.client.app.routes))  # type: ignore[attr-defined]  # it is an App
    assert len(routes) > 25
    for route in routes:
        for method in route.methods or {"GET"}:
            assert rule_of(route, method, route.template) is not None, (method, route.template)
    app = create_app(open_store_that_is_never_used())
    app.get("/secrets")(lambda: {})
    (stray,) = [route for route in Routes(app.routes).all if route.template == "/secrets"]
    assert rule_of(stray, "GET", "/secrets") is None
    with pytest.raises(AssertionError, match="GET /secrets has no rule"):
        app.openapi()


def open_store_that_is_never_used() -> Any:
    return None


class TestDashboard:
    """Case R75: whoever reaches the dashboard could delete studies."""

    DELETE = "/api/studies/1"

    def test_without_a_token(self, doors: Doors) -> None:
        assert doors.send("GET", "/dashboard", "none").status_code == 401
        assert doors.send("DELETE", self.DELETE, "none").status_code == 401

    def test_a_reader_looks(self, doors: Doors) -> None:
        page = doors.send("GET", "/dashboard", "reader")
        assert (page.status_code, "Optuna Dashboard" in page.text) == (200, True)
        answer = doors.send("DELETE", self.DELETE, "reader")
        assert (answer.status_code, read(answer)["code"]) == (403, "forbidden")

    def test_nobody_writes_unless_the_service_was_started_so(self, doors: Doors) -> None:
        answer = doors.send("POST", "/api/studies/1/rename", "operator")
        assert (answer.status_code, read(answer)["code"]) == (403, "read_only")

    def test_with_writes_the_roles_still_count(self, new_database: Callable[[str], str]) -> None:
        with serving(new_database("sqlite"), dashboard_writes=True) as client:
            node = Node(client)
            node.launch()
            doors = Doors(client)
            note = {"version": 1, "body": "x"}
            statuses = {
                who: doors.send("PUT", "/api/studies/1/note", who, json=note).status_code
                for who in ("none", "worker", "reader", "operator")
            }
            assert statuses == {"none": 401, "worker": 403, "reader": 403, "operator": 204}
            assert doors.send("DELETE", self.DELETE, "operator", json={}).status_code == 403
            assert doors.send("DELETE", self.DELETE, "admin", json={}).status_code == 204


class TestTokens:
    def test_the_service_is_open_until_the_first_token_which_is_an_admins(
        self, client: TestClient
    ) -> None:
        """And it stays closed when the last one was revoked."""
        assert client.get("/v1/studies").status_code == 200
        refused = client.post("/v1/tokens", json={"name": "x", "role": "reader"})
        assert (refused.status_code, read(refused)["code"]) == (409, "conflict")
        made = client.post("/v1/tokens", json={"name": "me", "role": "admin"})
        assert made.status_code == 201
        assert made.headers["Cache-Control"] == "no-store"
        token = read(made)["token"]
        assert re.fullmatch(r"hpo_[\w-]{43}", token)
        assert client.get("/v1/studies").status_code == 401
        me = bearer(token)
        node = make(client, token, "node", "worker")
        taken = client.post("/v1/tokens", json={"name": "node", "role": "reader"}, headers=me)
        assert (taken.status_code, "revoke it first" in read(taken)["detail"]) == (409, True)
        for _ in range(2):
            assert client.delete("/v1/tokens/node", headers=me).status_code == 204
            assert client.get("/v1/studies", headers=bearer(node)).status_code == 401
        assert client.delete("/v1/tokens/nobody", headers=me).status_code == 404
        again = make(client, token, "node", "reader")
        assert again != node
        assert client.get("/v1/studies", headers=bearer(again)).status_code == 200
        assert client.get("/v1/studies", headers=bearer(node)).status_code == 401
        listed = {
            item["name"]: item for item in read(client.get("/v1/tokens", headers=me))["items"]
        }
        assert {name: item["role"] for name, item in listed.items()} == {
            "me": "admin",
            "node": "reader",
        }
        assert token not in str(listed)
        for name in ("node", "me"):
            client.delete(f"/v1/tokens/{name}", headers=me)
        assert client.get("/v1/studies", headers=me).status_code == 401
        assert client.get("/v1/studies").status_code == 401

    @pytest.mark.parametrize(
        ("field", "body"),
        [
            ("name", {"name": "a b", "role": "reader"}),
            ("name", {"name": "x" * 65, "role": "reader"}),
            ("role", {"name": "a", "role": "king"}),
            ("token", {"name": "a", "role": "reader", "token": "mine"}),
        ],
    )
    def test_what_cannot_be_made(self, doors: Doors, field: str, body: Mapping[str, str]) -> None:
        answer = doors.send("POST", "/v1/tokens", "admin", json=body)
        assert answer.status_code == 422
        assert [fault["field"] for fault in read(answer)["errors"]] == [field]

    def test_only_digests_are_stored(self, new_database: Callable[[str], str]) -> None:
        url = new_database("sqlite")
        with serving(url) as client:
            token = make(client, None, "me", "admin")
            client.post("/login", content=f"token={token}")
            session = client.cookies["hpo_session"]
        engine = sa.create_engine(url)
        with engine.connect() as connection:
            stored = [
                *connection.exec_driver_sql("SELECT * FROM hpo_token").all(),
                *connection.exec_driver_sql("SELECT * FROM hpo_session").all(),
            ]
        engine.dispose()
        assert len(stored) == 2
        assert token not in str(stored)
        assert session not in str(stored)
        # The service noted the use when it stopped, at the latest.
        assert stored[0].last_used_at is not None

    def test_tokens_are_never_logged(self, doors: Doors, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.DEBUG):
            doors.send("GET", "/v1/studies?token=hpo_in_the_query", "admin")
            doors.send("POST", "/v1/tokens", "admin", json={"name": "t", "role": "reader"})
            doors.send("GET", "/v1/studies", "wrong")
        # The test's own client logs what it asks for.
        said = [record.getMessage() for record in caplog.records if record.name != "httpx2"]
        assert any(line.startswith("GET /v1/studies") for line in said)
        assert PREFIX not in str(said)


def test_a_token_that_another_process_revoked_is_refused_in_time(postgres_url: str) -> None:
    times = Clock()
    with serving(postgres_url) as client:
        token = make(client, None, "me", "admin")
        guard: Guard = client.app.state.service.guard  # type: ignore[attr-defined]  # it is an App
        guard._clock = times
        guard.forget()
        assert client.get("/v1/studies", headers=bearer(token)).status_code == 200
        other = open_store(postgres_url)
        other.tokens.revoke("me")
        other.close()
        assert client.get("/v1/studies", headers=bearer(token)).status_code == 200
        times.now += KNOWN_SECONDS
        assert KNOWN_SECONDS <= 5
        assert client.get("/v1/studies", headers=bearer(token)).status_code == 401


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_tokens_are_read_once_and_their_use_is_written_once_a_minute(
    database_url: str,
) -> None:
    times = Clock()
    with serving(database_url, reap_seconds=3600) as client:
        token = make(client, None, "me", "admin")
        service = client.app.state.service  # type: ignore[attr-defined]  # it is an App
        service.guard._clock = times
        service.guard.forget()
        client.get("/v1/studies", headers=bearer(token))
        statements: list[str] = []
        engine = service.store._database.engine
        sa.event.listen(engine, "before_cursor_execute", lambda *facts: statements.append(facts[2]))
        for _ in range(10):
            client.get("/v1/studies", headers=bearer(token))
        assert not any("hpo_token" in statement for statement in statements)
        for seconds, n_writes in ((0, 1), (59, 1), (60, 2)):
            times.now = 1000.0 + seconds
            client.get("/v1/studies", headers=bearer(token))
            service.guard.note_uses()
            n_found = sum(found.startswith("UPDATE hpo_token") for found in statements)
            assert n_found == n_writes, seconds


def test_a_database_that_is_away_is_no_wrong_token() -> None:
    url = "postgresql+psycopg://hpo@127.0.0.1:9/hpo"
    with TestClient(create_app(open_store(url))) as client:
        for path in ("/v1/studies", "/dashboard", "/metrics", "/nothing"):
            answer = client.get(path, headers=bearer("hpo_x"))
            assert (answer.status_code, read(answer)["code"]) == (503, "unavailable")
        assert client.get("/healthz").status_code == 200


def test_an_address_that_others_reach_is_closed_before_the_first_token(
    new_database: Callable[[str], str],
) -> None:
    app = create_app(open_store(new_database("sqlite")), access=Access(may_be_open=False))
    with TestClient(app) as client:
        await_ready(client)
        assert client.get("/v1/studies").status_code == 401
        body = {"name": "me", "role": "admin"}
        assert client.post("/v1/tokens", json=body).status_code == 401


def test_the_worker_beside_has_a_token_that_is_in_no_database(
    new_database: Callable[[str], str],
) -> None:
    with serving(new_database("sqlite"), access=Access(own_token="hpo_own")) as client:
        token = make(client, None, "me", "admin")
        for path, status in (("/v1/workers", 200), ("/v1/objectives", 403)):
            assert client.get(path, headers=bearer("hpo_own")).status_code == status
        listed = read(client.get("/v1/tokens", headers=bearer(token)))["items"]
        assert [item["name"] for item in listed] == ["me"]


def test_a_worker_does_its_whole_work_with_its_token(doors: Doors) -> None:
    client = doors.client
    client.headers["Authorization"] = f"Bearer {doors.tokens['worker']}"
    try:
        node = Node(client)
        body = {
            "name": "by-a-worker",
            "objective": node.objective,
            "direction": "maximize",
            "space": {"x": {"type": "float", "low": 0, "high": 1}},
            "n_trials": 1,
        }
        assert doors.send("POST", "/v1/studies", "worker", json=body).status_code == 403
        assert doors.send("POST", "/v1/studies", "operator", json=body).status_code == 201
        claim = node.claim()
        assert node.send(claim, "report", step=0, value=0.5).status_code == 200
        assert node.send(claim, "complete", value=0.5).status_code == 200
        beat = client.post(f"/v1/workers/{node.id}/heartbeat", json={"tokens": []})
        assert beat.status_code == 200
    finally:
        del client.headers["Authorization"]


@pytest.mark.parametrize(
    ("headers", "is_ours"),
    [
        ({}, True),
        ({"Sec-Fetch-Site": "same-origin"}, True),
        ({"Sec-Fetch-Site": "none"}, True),
        ({"Sec-Fetch-Site": "cross-site"}, False),
        ({"Sec-Fetch-Site": "same-site"}, False),
        ({"Origin": "http://testserver"}, True),
        ({"Origin": "http://evil.example"}, False),
        ({"Origin": "null"}, False),
    ],
)
def test_pages_of_other_sites_change_nothing_with_a_browsers_session(
    doors: Doors, headers: dict[str, str], is_ours: bool
) -> None:
    browser = doors.client
    entered = browser.post(
        "/login", content=f"token={doors.tokens['admin']}", follow_redirects=False
    )
    assert entered.status_code == 303
    session = {"Cookie": f"{COOKIE}={entered.cookies[COOKIE]}"}
    browser.cookies.clear()  # it is that of other tests, too
    answer = browser.request("DELETE", "/v1/tokens/nobody", headers={**session, **headers})
    assert answer.status_code == (404 if is_ours else 403)
    if not is_ours:
        assert read(answer)["code"] == "cross_site"
        # A token in a header was put there on purpose.
        own = {**session, **headers, **bearer(doors.tokens["admin"])}
        assert browser.delete("/v1/tokens/nobody", headers=own).status_code == 404
