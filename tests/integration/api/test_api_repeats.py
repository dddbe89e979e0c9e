"""The column "safe to repeat" of docs/rest.md: each request is sent twice, both are compared."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx2
import optuna
import pytest
from starlette.testclient import TestClient

from hpo.access import Role
from storage.store import Store
from tests.api_kit import Node, read, serving, trial_path
from tests.integration.api.conftest import NewDatabase

REST = (Path(__file__).resolve().parents[3] / "docs/rest.md").read_text(encoding="utf-8")
ROWS = dict(
    re.findall(
        r"^\| `([A-Z]+ /[^`]+)` \| [a-z ]+ \| (yes|no|with a key) \|",
        REST.partition("## All requests")[2],
        flags=re.MULTILINE,
    )
)
STUDY, TRIAL = "/v1/studies/{study}", "/v1/studies/{study}/trials/{number}"
MODEL = b"weights"
# What differs from one answer to the next, whatever was sent.
VOLATILE = {"last_seen_at", "last_used_at", "exported_at", "ran_seconds", "request_id"}


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def client(
    request: pytest.FixtureRequest, new_database: NewDatabase, tmp_path_factory: Any
) -> Iterator[TestClient]:
    """A service that keeps models, on each database, asked with an admin's token."""
    with serving(new_database(request.param), artifacts=tmp_path_factory.mktemp("kept")) as opened:
        _, secret = store_of(opened).tokens.create("admin", Role.ADMIN)
        opened.headers["Authorization"] = f"Bearer {secret}"
        yield opened


def store_of(client: TestClient) -> Store:
    return cast(Store, client.app.state.service.store)  # type: ignore[attr-defined] # an ASGI app has no state


@dataclass
class Scene:
    """A request whose turn it is: `path` is that of its template, `options` go with it."""

    path: str
    options: dict[str, Any] = field(default_factory=dict)


class Stage:
    """Studies in the states that requests need, of one worker and without others' work."""

    def __init__(self, client: TestClient) -> None:
        self.client, self.node = client, Node(client)

    def study(self, **fields: Any) -> str:
        return str(self.node.launch(**fields)["name"])

    def running(self, **fields: Any) -> dict[str, Any]:
        self.study(**fields)
        claim = self.node.claim()
        self.node.send(claim, "report", step=0, value=0.5)
        return claim

    def ended(self, n_more: int = 0) -> dict[str, Any]:
        claim = self.running(n_trials=n_more + 5)
        self.node.send(claim, "complete", value=0.5)
        for number in range(n_more):
            self.node.send(self.node.claim(), "complete", value=float(number))
        return claim

    def of_study(self, suffix: str = "", *, before: str = "", **options: Any) -> Scene:
        name = self.ended()["study"]
        for verb in before.split():
            assert self.client.post(f"/v1/studies/{name}/{verb}").status_code == 200
        return Scene(f"/v1/studies/{name}{suffix}", options)

    def of_trial(self, suffix: str = "", *, before: str = "", **options: Any) -> Scene:
        path = trial_path(self.ended())
        if before:
            assert self.client.post(f"{path}/{before}").status_code == 200
        return Scene(f"{path}{suffix}", options)

    def of_lease(self, verb: str, **body: Any) -> Scene:
        claim = self.running(**({"space": None} if verb == "suggest" else {}))
        return Scene(f"{trial_path(claim)}/{verb}", {"json": {"token": claim["token"], **body}})

    def of_model(self) -> Scene:
        sha256 = hashlib.sha256(MODEL).hexdigest()
        return self.of_lease("model", value=0.5, sha256=sha256, size_bytes=len(MODEL))

    def of_model_file(self, *, is_over: bool) -> Scene:
        offered = self.of_model()
        token = offered.options["json"]["token"]
        assert read(self.client.post(offered.path, **offered.options))["wanted"]
        file = Scene(offered.path, {"content": MODEL, "headers": {"Lease-Token": token}})
        if is_over:
            assert self.client.put(file.path, **file.options).status_code == 204
            complete = offered.path.replace("/model", "/complete")
            assert self.client.post(complete, json={"token": token, "value": 0.5}).is_success
            return Scene(offered.path)
        return file

    def token(self) -> str:
        name = f"t-{uuid.uuid4().hex}"
        store_of(self.client).tokens.create(name, Role.READER)
        return name

    def of_optuna(self) -> Scene:
        name = f"theirs-{uuid.uuid4().hex}"
        storage = store_of(self.client).optuna_storage()
        optuna.create_study(study_name=name, storage=storage, direction="minimize")
        body = {"name": name, "n_trials": 2, "direction": "minimize"}
        return Scene("/v1/studies/adopt", {"json": body})

    def of_export(self) -> Scene:
        document = read(self.client.get(f"/v1/studies/{self.ended()['study']}/export"))
        document["study"]["name"] = f"s-{uuid.uuid4().hex}"
        return Scene("/v1/studies/import", {"json": document})

    def claim(self) -> Scene:
        self.study()
        body = {"worker_id": self.node.id, "claim_key": uuid.uuid4().hex, "device": "cpu"}
        return Scene("/v1/claims", {"json": {**body, "wait_seconds": 0}})

    def ask(self) -> Scene:
        return Scene(f"/v1/studies/{self.study(objective=None)}/ask", {"json": {}})

    def warm_start(self) -> Scene:
        body = {"from": self.ended()["study"], "k": 1}
        return Scene(f"/v1/studies/{self.study()}/warm-start", {"json": body})


POINTS = {"points": [{"params": {"x": 0.25}}], "extend": True}
NEW = {"n_trials": 3, "direction": "minimize"}
PARAMETER = {"name": "y", "parameter": {"type": "int", "low": 0, "high": 1000}}
SCENES: dict[str, Callable[[Stage], Scene]] = {
    "POST /v1/studies": lambda s: Scene("/v1/studies", {"json": {"name": s.node.id, **NEW}}),
    "POST /v1/studies/check": lambda s: Scene("/v1/studies/check", {"json": {"n_trials": 0}}),
    **{
        f"GET {path}": lambda _, path=path: Scene(path)  # type: ignore[misc] # mypy on defaults
        for path in (
            *("/v1/studies", "/v1/objectives", "/v1/workers", "/v1/tokens", "/v1/session"),
            *("/healthz", "/readyz", "/metrics"),
        )
    },
    "GET /v1/events": lambda _: Scene("/v1/events?until=now&after=0"),
    f"GET {STUDY}/events": lambda s: s.of_study("/events?until=now&after=0"),
    f"GET {STUDY}": lambda s: s.of_study(),
    f"PATCH {STUDY}": lambda s: s.of_study(json={"n_trials": 9, "tags": ["a"], "priority": 2}),
    f"DELETE {STUDY}": lambda s: s.of_study("?force=true"),
    **{
        f"GET {STUDY}/{look}": lambda s, look=look: s.of_study(f"/{look}")  # type: ignore[misc] # mypy on defaults
        for look in (
            *("best", "trials", "history", "pareto", "pruning", "export", "columns", "curves"),
        )
    },
    f"GET {STUDY}/importances": lambda s: Scene(f"/v1/studies/{s.ended(4)['study']}/importances"),
    f"POST {STUDY}/pause": lambda s: s.of_study("/pause"),
    f"POST {STUDY}/resume": lambda s: s.of_study("/resume", before="pause"),
    f"POST {STUDY}/stop": lambda s: s.of_study("/stop"),
    f"POST {STUDY}/cancel": lambda s: s.of_study("/cancel"),
    f"POST {STUDY}/archive": lambda s: s.of_study("/archive", before="stop"),
    f"POST {STUDY}/unarchive": lambda s: s.of_study("/unarchive", before="stop archive"),
    f"POST {STUDY}/trials": lambda s: s.of_study("/trials", json=POINTS),
    f"POST {STUDY}/clone": lambda s: s.of_study("/clone", json={"name": s.node.id}),
    f"POST {STUDY}/warm-start": lambda s: s.warm_start(),
    f"POST {STUDY}/ask": lambda s: s.ask(),
    "POST /v1/studies/adopt": lambda s: s.of_optuna(),
    "POST /v1/studies/import": lambda s: s.of_export(),
    f"GET {TRIAL}": lambda s: s.of_trial(),
    f"GET {TRIAL}/log": lambda s: s.of_trial("/log"),
    f"POST {TRIAL}/cancel": lambda s: Scene(f"{trial_path(s.running())}/cancel"),
    f"POST {TRIAL}/requeue": lambda s: s.of_trial("/requeue"),
    f"POST {TRIAL}/exclude": lambda s: s.of_trial("/exclude", json={"reason": "wrong"}),
    f"POST {TRIAL}/include": lambda s: s.of_trial("/include", before="exclude"),
    f"GET {TRIAL}/model": lambda s: s.of_model_file(is_over=True),
    f"POST {TRIAL}/model": lambda s: s.of_model(),
    f"PUT {TRIAL}/model": lambda s: s.of_model_file(is_over=False),
    "POST /v1/tokens": lambda s: Scene("/v1/tokens", {"json": {"name": "t", "role": "reader"}}),
    "DELETE /v1/tokens/{name}": lambda s: Scene(f"/v1/tokens/{s.token()}"),
    "POST /v1/workers": lambda s: Scene("/v1/workers", {"json": s.node.document}),
    "POST /v1/workers/{id}/heartbeat": lambda s: Scene(
        f"/v1/workers/{s.node.id}/heartbeat", {"json": {"tokens": [s.running()["token"], "gone"]}}
    ),
    "POST /v1/claims": lambda s: s.claim(),
    f"POST {TRIAL}/start": lambda s: s.of_lease("start"),
    f"POST {TRIAL}/renew": lambda s: s.of_lease("renew"),
    f"POST {TRIAL}/suggest": lambda s: s.of_lease("suggest", **PARAMETER),
    f"POST {TRIAL}/report": lambda s: s.of_lease("report", step=1, value=0.25),
    f"POST {TRIAL}/complete": lambda s: s.of_lease("complete", value=0.5),
    f"POST {TRIAL}/prune": lambda s: s.of_lease("prune"),
    f"POST {TRIAL}/fail": lambda s: s.of_lease("fail", reason="lost", message="gone"),
    f"POST {TRIAL}/release": lambda s: s.of_lease("release"),
    f"POST {TRIAL}/log": lambda s: s.of_lease("log", chunks=[{"sequence": 0, "text": "a"}]),
}


def test_every_row_is_tried() -> None:
    assert SCENES.keys() == ROWS.keys()


@pytest.mark.parametrize("name", [name for name, safe in ROWS.items() if safe == "yes"])
def test_a_request_again_changes_nothing_more(client: TestClient, name: str) -> None:
    scene = SCENES[name](Stage(client))
    first, second, before, after = twice(client, name, scene)
    if name == f"DELETE {STUDY}":  # until it is gone
        assert (first.status_code, second.status_code) in {(202, 202), (202, 404)}
        return
    assert after == before
    assert first.is_success, first.text
    assert second.status_code == first.status_code
    if name != "GET /metrics":
        assert answer_of(second) == answer_of(first)


@pytest.mark.parametrize("name", [name for name, safe in ROWS.items() if safe == "with a key"])
def test_a_request_again_with_its_key_is_the_same_one(client: TestClient, name: str) -> None:
    scene = SCENES[name](Stage(client))
    scene.options["headers"] = {"Idempotency-Key": uuid.uuid4().hex}
    first, second, before, after = twice(client, name, scene)
    assert after == before
    assert first.is_success, first.text
    assert second.is_success
    assert answer_of(second) == answer_of(first)


@pytest.mark.parametrize("name", [name for name, safe in ROWS.items() if safe != "yes"])
def test_a_request_again_without_a_key_is_another_one(client: TestClient, name: str) -> None:
    first, second, before, after = twice(client, name, SCENES[name](Stage(client)))
    assert first.is_success, first.text
    if name == "POST /v1/studies":  # the name of the study does as well
        assert after == before
        assert (second.status_code, answer_of(second)) == (200, answer_of(first))
    else:
        assert after != before or second.status_code == 409


def twice(
    client: TestClient, name: str, scene: Scene
) -> tuple[httpx2.Response, httpx2.Response, dict[str, Any], dict[str, Any]]:
    """Both answers, and what the service tells after either."""
    method = name.partition(" ")[0]
    first = client.request(method, scene.path, **scene.options)
    if method == "GET":  # answers are all there is to compare
        return first, client.get(scene.path), {}, {}
    if name == f"DELETE {STUDY}":  # its rows go meanwhile, under the eyes of whoever reads them
        return first, client.request(method, scene.path, **scene.options), {}, {}
    before = snapshot(client, scene, first)
    second = client.request(method, scene.path, **scene.options)
    return first, second, before, snapshot(client, scene, second)


def snapshot(client: TestClient, scene: Scene, answer: httpx2.Response) -> dict[str, Any]:
    """What the service tells of the studies that a request could touch, and what else is new."""
    paths = ["/v1/tokens"]
    names = set(re.findall(r"/studies/([\w-]+)", scene.path)) - {"adopt", "import"}
    names |= set(re.findall(r'"name": ?"([\w-]+)"', answer.text))
    names |= {str((scene.options.get("json") or {}).get("name", ""))} - {""}
    for study in sorted(names):
        path = f"/v1/studies/{study}"
        paths += [path, f"{path}/events?after=0&until=now", f"{path}/export"]
        paths += [f"{path}/trials/{number}/log" for number in range(2)]
    studies = read(client.get("/v1/studies?archived=any&limit=500"))["items"]
    workers = read(client.get("/v1/workers"))["items"]
    return {
        **{path: answer_of(client.get(path)) for path in paths},
        "studies": [study["name"] for study in studies],
        "workers": sorted((worker["registered_at"], worker["id"]) for worker in workers),
    }


def answer_of(answer: httpx2.Response) -> Any:
    """A body without what differs each time."""
    if not answer.content or "json" not in answer.headers.get("content-type", ""):
        return re.sub(r"id: \S+\n: listening", "", answer.text)
    return _settled(read(answer))


def _settled(part: Any) -> Any:
    if isinstance(part, dict):
        return {name: _settled(item) for name, item in part.items() if name not in VOLATILE}
    return [_settled(item) for item in part] if isinstance(part, list) else part
