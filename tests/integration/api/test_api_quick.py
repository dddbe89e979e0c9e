"""An ordinary request of a worker skips FastAPI's work; its answer is the same as the usual one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from api import quick
from tests.api_kit import Node, serving

PATH = "/v1/studies/demo/trials/0"
REPORT = {"token": "stale", "step": 0, "value": 0.5}


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A service that takes the usual way for all."""

    async def never(_: Any) -> None:
        return None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quick, "_quick", lambda _: never)
        with serving(f"sqlite:///{tmp_path_factory.mktemp('usual') / 'hpo.db'}") as opened:
            yield opened


@pytest.mark.parametrize("client", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (f"{PATH}/report", "{"),
        (f"{PATH}/report", ""),
        (f"{PATH}/report", "[]"),
        (f"{PATH}/report", {}),
        (f"{PATH}/report", REPORT),
        (f"{PATH}/report", {**REPORT, "more": 1}),
        (f"{PATH}/report", {**REPORT, "step": 1.5}),
        (f"{PATH}/report", {**REPORT, "step": 1.0}),
        (f"{PATH}/report", {**REPORT, "value": "0.5"}),
        (f"{PATH}/report", {**REPORT, "value": "NaN", "metrics": {"a": "Infinity"}}),
        (f"{PATH}/report", '{"token": "stale", "step": 0, "value": NaN}'),
        (f"{PATH}/report", json.dumps({**REPORT, "user_attrs": {"a": "\ud800"}})),
        (f"{PATH}/report", "[" * 100_000),
        (f"{PATH}/report?more=1", REPORT),
        ("/v1/studies/demo/trials/-1/report", REPORT),
        ("/v1/studies/demo/trials/+0/report", REPORT),
        ("/v1/studies/demo/trials/0.0/report", REPORT),
        ("/v1/studies/demo/trials/1_0/report", REPORT),
        ("/v1/studies/demo/trials/\N{ARABIC-INDIC DIGIT ZERO}/report", REPORT),
        ("/v1/studies/demo/trials/99999999999/report", REPORT),
        ("/v1/studies/demo/trials/007/report", REPORT),
        ("/v1/studies/de mo/trials/0/report", REPORT),
        (f"{PATH}/complete", {"token": "stale", "value": 1}),
        (f"{PATH}/complete", {"token": "stale", "values": []}),
        (f"{PATH}/fail", {"token": "stale", "reason": "tired"}),
        (f"{PATH}/start", {"token": "stale", "resumed_from_step": -1}),
        (f"{PATH}/log", {"token": "stale", "chunks": [{"sequence": 0, "text": "a\0b"}]}),
    ],
)
def test_what_is_refused(client: TestClient, usual: TestClient, path: str, body: Any) -> None:
    answers = []
    for service in (client, usual):
        content = {"content": body} if isinstance(body, str) else {"json": body}
        response = service.post(path, **content, headers={"Content-Type": "application/json"})
        document = response.json()
        del document["request_id"]
        answers.append((response.status_code, response.headers["content-type"], document))
    assert answers[0] == answers[1]
    assert answers[0][0] >= 400


@pytest.mark.parametrize("client", ["sqlite"], indirect=True)
def test_what_is_answered(client: TestClient, usual: TestClient) -> None:
    answers = []
    for service in (client, usual):
        node = Node(service)
        node.launch(name="same", n_trials=1, pruner={"name": "none"})
        claim = node.claim()
        at, token = f"/v1/studies/same/trials/{claim['number']}", {"token": claim["token"]}
        bodies = {
            "start": token,
            "report": {**token, "step": 0, "value": "Infinity"},
            "renew": token,
            "log": {**token, "chunks": [{"sequence": 0, "text": "line"}]},
            "prune": token,
        }
        for name, body in bodies.items():
            response = service.post(f"{at}/{name}", json=body)
            media_type = response.headers["content-type"] if response.content else None
            answers.append((name, response.status_code, media_type, response.text))
    assert answers[:5] == answers[5:]
