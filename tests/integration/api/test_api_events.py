"""Streams of events on real sockets: each event once, nothing left behind, an end at once."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import httpx2
import pytest
from starlette.testclient import TestClient

from api import events
from hpo.access import Role
from hpo.client import Client
from hpo.events import Event, EventKind
from tests.api_kit import Node, Running, await_fact, read

ASK = {"direction": "minimize", "space": {"x": {"type": "float", "low": 0, "high": 1}}}


@pytest.fixture
def running(new_database: Callable[[str], str]) -> Iterator[Running]:
    service = Running(new_database("sqlite"))
    yield service
    service.stop()


def create(http: httpx2.Client, **fields: Any) -> str:
    """A study for ask and tell."""
    name = f"s-{uuid.uuid4().hex}"
    document = {"name": name, "n_trials": 5, "sampler": "random", **ASK, **fields}
    assert http.post("/v1/studies", json=document).status_code == 201
    return name


def play(http: httpx2.Client, name: str) -> int:
    """Asks for one trial, reports and completes it."""
    (trial,) = read(http.post(f"/v1/studies/{name}/ask", json={}))["trials"]
    at = f"/v1/studies/{name}/trials/{trial['number']}"
    token = {"token": trial["token"]}
    for step in range(2):
        report = {**token, "step": step, "value": 1.0}
        assert http.post(f"{at}/report", json=report).status_code == 200
    assert http.post(f"{at}/complete", json={**token, "value": 1.0}).status_code == 200
    return int(trial["number"])


def past(http: httpx2.Client, path: str, **query: Any) -> list[dict[str, Any]]:
    """What a stream tells up to now, its end apart."""
    answer = http.get(path, params={"after": "0", "until": "now", **query})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    *told, end = list(httpx2.EventSource(answer))
    assert end.event == "end"
    return [
        {"id": sent.id, "event": sent.event, **json.loads(sent.data)} for sent in told if sent.data
    ]


def test_the_past_is_told_and_filtered(client: TestClient) -> None:
    name = create(client)
    play(client, name)
    path = f"/v1/studies/{name}/events"
    kinds = [event["kind"] for event in past(client, path)]
    assert kinds == ["study_created", "trial_started", "report", "report", "trial_ended"]
    reports = past(client, path, kinds=["report", "study_created"])
    assert [event["kind"] for event in reports] == ["study_created", "report", "report"]
    assert reports[1]["data"] == {"attempt": 1, "step": 0, "value": 1.0, "verdict": "continue"}
    assert [event["id"] for event in past(client, path, after=reports[1]["id"])] == [
        event["id"] for event in past(client, path)[3:]
    ]
    assert past(client, "/v1/events")[-1]["study"] == name


@pytest.mark.parametrize("place", ["999999999-1", "1-999999999"])
def test_an_unknown_place_begins_with_a_reset(client: TestClient, place: str) -> None:
    name = create(client)
    (reset,) = past(client, f"/v1/studies/{name}/events", after=place)
    assert reset["event"] == "reset"
    assert past(client, f"/v1/studies/{name}/events", after=reset["id"]) == []
    headers = {"Last-Event-ID": "made up"}
    answer = client.get("/v1/events?until=now", headers=headers)
    assert [sent.event for sent in httpx2.EventSource(answer)] == ["reset", "end"]


def test_what_a_stream_is_not_asked(client: TestClient) -> None:
    assert client.get("/v1/studies/nobody/events").status_code == 404
    for query in ("after=x", "kinds=none", "until=ended", "until=never"):
        assert client.get(f"/v1/events?{query}").status_code == 422, query


def test_a_stream_of_an_ended_study_ends_when_that_is_asked(client: TestClient) -> None:
    name = create(client, n_trials=1)
    play(client, name)
    assert past(client, f"/v1/studies/{name}/events", until="ended")[-1]["kind"] == "study_state"


class Listeners:
    """Many streams on one event loop of their own."""

    def __init__(self, running: Running, path: str) -> None:
        self._url, self._path = str(running.client.base_url), path
        self.n_told = 0

    async def _listen(self, http: httpx2.AsyncClient) -> None:
        async with http.stream("GET", self._path) as response:
            async for sent in httpx2.EventSource(response):
                self.n_told += bool(sent.data)

    async def hold(self, n_streams: int, until: Callable[[], bool], act: Callable[[], Any]) -> None:
        """Opens streams, acts once all listen, and drops them when `until` holds."""
        limits = httpx2.Limits(max_connections=None)
        async with httpx2.AsyncClient(base_url=self._url, timeout=60, limits=limits) as http:
            streams = [asyncio.create_task(self._listen(http)) for _ in range(n_streams)]
            await anyio.to_thread.run_sync(act)
            while not until():
                await asyncio.sleep(0.05)
            for stream in streams:
                stream.cancel()
            await asyncio.gather(*streams, return_exceptions=True)


def test_of_200_streams_that_are_dropped_none_is_left(running: Running) -> None:
    feed, n_streams = running.app.state.service.feed, 200
    name = create(running.client)
    listeners = Listeners(running, f"/v1/studies/{name}/events")

    def act() -> None:
        await_fact(lambda: feed.n_listeners == n_streams)
        play(running.client, name)

    is_told = lambda: listeners.n_told >= 4 * n_streams  # noqa: E731
    asyncio.run(listeners.hold(n_streams, is_told, act))
    await_fact(lambda: feed.n_listeners == 0 and not feed.is_reading, seconds=10)
    assert listeners.n_told == 4 * n_streams


def test_a_stop_ends_the_streams(running: Running) -> None:
    name = create(running.client)
    feed = running.app.state.service.feed
    with ThreadPoolExecutor(2) as pool:
        path = f"/v1/studies/{name}"
        stream = pool.submit(running.client.get, f"{path}/events")
        waiting = pool.submit(running.client.get, path, params={"wait_seconds": 60})
        await_fact(lambda: feed.n_listeners == 2)
        started_at = time.monotonic()
        running.stop()
        assert "event: end" not in stream.result(timeout=30).text
        assert read(waiting.result(timeout=30))["state"] == "running"
    assert time.monotonic() - started_at < 10


def test_a_quiet_stream_says_that_it_is_alive(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "KEEP_ALIVE_SECONDS", 0.1)
    with running.client.stream("GET", "/v1/events") as response:
        lines = response.iter_lines()
        assert ": still here" in (next(lines) for _ in range(6))


def test_a_stream_breaks_off_when_its_token_is_revoked(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "KEEP_ALIVE_SECONDS", 0.1)
    tokens = running.app.state.service.store.tokens
    admin, reader = (bearer(tokens.create(role, role)[1]) for role in (Role.ADMIN, Role.READER))
    with running.client.stream("GET", "/v1/events", headers=reader) as response:
        lines = response.iter_lines()
        assert ": still here" in (next(lines) for _ in range(6))
        assert running.client.delete("/v1/tokens/reader", headers=admin).is_success
        assert "event: end" not in list(lines)
    assert running.client.get("/v1/events", headers=reader).status_code == 401


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def test_a_listener_that_is_far_behind_reads_on_from_the_database(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.feed.KEPT_EVENTS", 2)
    monkeypatch.setattr("api.feed.PAGE", 3)
    name = create(running.client, n_trials=6)
    with Client(str(running.client.base_url)) as client:
        found = client.events(name, after="0")
        first = next(found)  # the others are not read until all has happened
        numbers = [play(running.client, name) for _ in range(6)]
        rest = [next(found) for _ in range(4 * 6 + 1)]
    assert first.kind == EventKind.STUDY_CREATED
    ended = [event.number for event in rest if event.kind == EventKind.TRIAL_ENDED]
    assert ended == numbers
    assert rest[-1].kind == EventKind.STUDY_STATE
    assert len({event.id for event in rest}) == len(rest)


@pytest.mark.parametrize("query", [{}, {"state": ["failed", "stopped"]}])
def test_a_study_is_waited_for(client: TestClient, query: dict[str, Any]) -> None:
    name = create(client)
    with ThreadPoolExecutor(1) as pool:
        params = {"wait_seconds": 60, **query}
        waiting = pool.submit(client.get, f"/v1/studies/{name}", params=params)
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.3)
        assert client.post(f"/v1/studies/{name}/stop").status_code == 200
        assert read(waiting.result(timeout=15))["state"] == "stopped"


def test_a_wait_ends_when_its_time_is_over(client: TestClient) -> None:
    name = create(client)
    answer = client.get(f"/v1/studies/{name}?wait_seconds=0.5&state=paused")
    assert read(answer)["state"] == "running"
    assert client.get(f"/v1/studies/{name}?wait_seconds=61").status_code == 422
    assert client.get("/v1/studies/nobody?wait_seconds=5").status_code == 404


def test_two_services_on_one_database_and_a_restart_tell_each_event_once(
    new_database: Callable[[str], str],
) -> None:
    """A listener at the one, writers at both; the one is stopped and started again meanwhile."""
    url = new_database("postgresql")
    first, second = Running(url), Running(url)
    name = create(first.client, n_trials=24)
    found: list[Event] = []

    def listen() -> None:
        with Client(str(first.client.base_url)) as client:
            found.extend(client.events(name, after="0", until="ended"))

    listening = threading.Thread(target=listen, daemon=True)
    listening.start()
    with ThreadPoolExecutor(4) as pool:
        playing = [
            pool.submit(play, service.client, name) for _ in range(6) for service in (first, second)
        ]
        assert sorted(one.result(timeout=60) for one in playing) == list(range(12))
        port = first.port
        first.stop()
        playing = [pool.submit(play, second.client, name) for _ in range(4)]
        first = Running(url, port=port)
        playing += [
            pool.submit(play, service.client, name) for _ in range(4) for service in (first, second)
        ]
        assert sorted(one.result(timeout=60) for one in playing) == list(range(12, 24))
    listening.join(timeout=30)
    assert not listening.is_alive()
    first.stop()
    second.stop()
    assert len({event.id for event in found}) == len(found)
    told = [(event.number, event.kind, event.data.get("step")) for event in found]
    assert sorted(told, key=str) == sorted(
        [
            (None, "study_created", None),
            *(fact for n in range(24) for fact in facts_of(n)),
            (None, "study_state", None),
        ],
        key=str,
    )
    assert told[-1] == (None, "study_state", None)


def facts_of(number: int) -> list[tuple[int, str, int | None]]:
    return [
        (number, "trial_started", None),
        (number, "report", 0),
        (number, "report", 1),
        (number, "trial_ended", None),
    ]


def test_workers_are_told_of(client: TestClient) -> None:
    node = Node(client)
    registered = past(client, "/v1/events", kinds=["worker_registered"])
    assert registered[-1]["data"] == {"worker": node.id, "name": "node:1"}
