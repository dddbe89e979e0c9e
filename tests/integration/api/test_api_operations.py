"""Operating the service: request ids, log lines, figures, other sites, crowds, a small pool."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import time
from collections.abc import Callable, Iterator

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

import storage.engine
from api.access import KNOWN_SECONDS
from api.app import Access
from api.entrance import Crowd, Entrance
from api.logs import FORMATTERS, set_up_logs
from tests.api_kit import Node, read, serving

OURS = "https://lab.example"


class TestRequestIds:
    @pytest.mark.parametrize("given", ["abc", "7f-00.a_b:c/d+e=@", "a" * 128])
    def test_one_that_came_is_taken_over(self, client: TestClient, given: str) -> None:
        answer = client.get("/healthz", headers={"X-Request-ID": given})
        assert answer.headers["X-Request-ID"] == given

    @pytest.mark.parametrize("given", ["", " ", "a b", "a\tb", "-a", "a" * 129, 'a"b', "é"])
    def test_others_are_replaced(self, client: TestClient, given: str) -> None:
        answer = client.get("/healthz", headers={"X-Request-ID": given.encode()})
        assert re.fullmatch(r"[0-9a-f]{32}", answer.headers["X-Request-ID"])

    @pytest.mark.parametrize(
        "path", ["/nothing", "/v1/studies/x", "/v1/studies?limit=0", "/dashboard", "/docs"]
    )
    def test_every_answer_has_one_and_so_has_its_problem(
        self, client: TestClient, path: str
    ) -> None:
        answers = [client.get(path) for _ in range(2)]
        ids = [answer.headers["X-Request-ID"] for answer in answers]
        assert ids[0] != ids[1]
        if answers[0].status_code >= 400:
            assert [read(answer)["request_id"] for answer in answers] == ids


class TestLogs:
    @pytest.fixture(autouse=True)
    def as_before(self) -> Iterator[None]:
        """Leaves the loggers of the test's process as they were."""
        root = logging.getLogger()
        handlers, level = root.handlers[:], root.level
        root.handlers.clear()
        yield
        root.handlers[:], root.level = handlers, level

    def test_json_lines_hold_the_facts_of_a_request(
        self, client: TestClient, capsys: pytest.CaptureFixture[str]
    ) -> None:
        set_up_logs("json", level=logging.INFO)
        client.get("/v1/studies/some-name/trials?limit=3", headers={"X-Request-ID": "me"})
        found = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
        (line,) = [line for line in found if line["logger"] == "hpo.access"]
        assert line["milliseconds"] >= 0
        expected = {
            "method": "GET",
            "route": "/v1/studies/{study}/trials",
            "code": 404,
            "token": None,
            "request_id": "me",
            "level": "INFO",
        }
        assert line.items() >= expected.items()
        assert line["time"].endswith("+00:00")
        assert "some-name" not in json.dumps(line)

    def test_text_lines_hold_the_id(
        self, client: TestClient, capsys: pytest.CaptureFixture[str]
    ) -> None:
        set_up_logs("text", level=logging.INFO)
        client.get("/healthz", headers={"X-Request-ID": "me"})
        assert re.search(
            r"INFO hpo\.access \[me\] GET /healthz 200 \d+\.\d ms None", capsys.readouterr().err
        )

    def test_a_traceback_is_one_line_of_json(self, capsys: pytest.CaptureFixture[str]) -> None:
        set_up_logs("json", level=logging.INFO)
        try:
            raise RuntimeError("one\ntwo")
        except RuntimeError:
            logging.getLogger("x").exception("it broke")
        (line,) = capsys.readouterr().err.splitlines()
        assert "RuntimeError: one\ntwo" in json.loads(line)["exception"]

    def test_the_formats_are_those_of_the_command(self) -> None:
        assert set(FORMATTERS) == {"text", "json"}


def figures(client: TestClient) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    answer = client.get("/metrics")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_figures_tell_what_happened(new_database: Callable[[str], str]) -> None:
    with serving(new_database("sqlite")) as client:
        node = Node(client)
        node.launch(name="a-name-that-is-no-label", n_trials=2)
        for value in (0.5, 0.25):
            claim = node.claim()
            node.send(claim, "report", step=0, value=value)
            node.send(claim, "complete", value=value)
        assert node.ask().status_code == 204
        client.request("BREW", "/some/where")
        found = figures(client)
        claims = {
            label[0][1]: value
            for (name, label), value in found.items()
            if name == "hpo_claims_total"
        }
        assert claims == {"trial": 2, "none": 1}
        assert found["hpo_verdicts_total", (("verdict", "continue"),)] == 2
        assert found["hpo_trials", (("state", "COMPLETE"),)] == 2
        assert found["hpo_studies", (("state", "completed"),)] == 1
        assert found["hpo_workers_alive", ()] == 1
        assert found["hpo_worker_slots_alive", ()] == 2
        assert found["hpo_leases_expired_total", ()] == 0
        assert found["hpo_database_up", ()] == 1
        report = "/v1/studies/{study}/trials/{number}/report"
        labels = (("code", "200"), ("method", "POST"), ("route", report))
        assert found["hpo_request_seconds_count", labels] == 2
        assert found["hpo_statement_seconds_count", (("kind", "SELECT"),)] > 0
        named = {value for _, labels in found for _, value in labels}
        assert "a-name-that-is-no-label" not in named
        assert "/some/where" not in named
        assert "BREW" not in named


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_counts_cost_a_fixed_number_of_statements_and_are_kept_a_while(
    new_database: Callable[[str], str], kind: str
) -> None:
    with serving(new_database(kind), reap_seconds=3600) as client:
        Node(client).launch()
        selects = ("hpo_statement_seconds_count", (("kind", "SELECT"),))
        began_at = time.monotonic()
        before = figures(client)
        found = [figures(client)[selects] for _ in range(3)]
        # Within a period there are four counts, and one statement that reads the tokens.
        n_periods = 1 + (time.monotonic() - began_at) // KNOWN_SECONDS
        assert found[-1] - before[selects] <= 5 * n_periods


class TestOtherSites:
    def test_none_may_read_by_default(self, client: TestClient) -> None:
        answer = client.get("/v1/studies", headers={"Origin": OURS})
        assert not any(name.startswith("access-control") for name in answer.headers)

    def test_those_that_were_named_may(self, new_database: Callable[[str], str]) -> None:
        access = Access(origins=frozenset({OURS}))
        with serving(new_database("sqlite"), access=access) as client:
            asked = {
                "Origin": OURS,
                "Access-Control-Request-Method": "PATCH",
                "Access-Control-Request-Headers": "authorization,content-type,if-match",
            }
            preflight = client.options("/v1/studies/x", headers=asked)
            assert preflight.status_code == 200
            assert preflight.headers["access-control-allow-origin"] == OURS
            assert "access-control-allow-credentials" not in preflight.headers
            sent = {"Origin": OURS, "Sec-Fetch-Site": "cross-site"}
            answer = client.post("/v1/studies/x/pause", headers=sent)
            assert (answer.status_code, read(answer)["code"]) == (404, "not_found")
            assert answer.headers["access-control-allow-origin"] == OURS
            assert "X-Request-ID" in answer.headers["access-control-expose-headers"]
            evil = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
            refused = client.post("/v1/studies/x/pause", headers=evil)
            assert (refused.status_code, read(refused)["code"]) == (403, "cross_site")
            assert "access-control-allow-origin" not in refused.headers


def layer_of(client: TestClient, kind: type[Entrance]) -> Entrance:
    layer = client.app.middleware_stack  # type: ignore[attr-defined]  # it is an App
    while not isinstance(layer, kind):
        layer = getattr(layer, "_app", None) or layer.app
    return layer


def test_no_more_requests_wait_than_there_is_room_for(new_database: Callable[[str], str]) -> None:
    with serving(new_database("sqlite")) as client:
        node = Node(client)
        crowd = layer_of(client, Entrance)._crowd
        crowd.max_waiting = 1
        with crowd.one_more():
            refused = node.ask()
            assert (refused.status_code, read(refused)["code"]) == (429, "too_many")
            assert refused.headers["Retry-After"]
            assert client.get("/v1/studies").status_code == 200
        assert node.ask().status_code == 204
        assert crowd.n_waiting == 0


def test_a_crowd_counts_those_that_failed_too() -> None:
    crowd = Crowd(max_waiting=1)
    with contextlib.suppress(RuntimeError), crowd.one_more():
        assert crowd.is_full
        raise RuntimeError
    assert not crowd.is_full


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_pool_of_five_answers_a_hundred_at_once(
    new_database: Callable[[str], str], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case R37: all are answered, and the next request is fast."""
    monkeypatch.setattr(storage.engine, "POOL_SIZE", 5)
    monkeypatch.setattr(storage.engine, "POOL_OVERFLOW", 0)
    with serving(new_database(kind)) as client:
        admin = read(client.post("/v1/tokens", json={"name": "me", "role": "admin"}))["token"]
        client.headers["Authorization"] = f"Bearer {admin}"
        study = Node(client).launch()["name"]

        async def scenario() -> None:
            transport = httpx2.ASGITransport(client.app)
            async with httpx2.AsyncClient(
                transport=transport, base_url="http://test", headers=client.headers
            ) as http:
                async with asyncio.timeout(15):
                    answers = await asyncio.gather(
                        *(http.get(f"/v1/studies/{study}/trials") for _ in range(100))
                    )
                assert {answer.status_code for answer in answers} <= {200, 503}
                assert sum(answer.status_code == 200 for answer in answers) >= 5
                began_at = time.monotonic()
                assert (await http.get(f"/v1/studies/{study}/trials")).status_code == 200
                assert time.monotonic() - began_at < 2

        assert client.portal is not None
        client.portal.call(scenario)
