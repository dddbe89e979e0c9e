"""Claims that wait: woken by work, holding no thread, ended by a stop or a client that left."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient

from tests.api_kit import Node, Running, await_fact, read

LONG = 60.0


def claim_of(node: Node, key: str, wait_seconds: float = LONG) -> dict[str, Any]:
    return {
        "worker_id": node.id,
        "claim_key": key,
        "device": "cpu",
        "wait_seconds": wait_seconds,
    }


@pytest.mark.parametrize("cause", ["a new study", "a release", "room after a trial ended"])
def test_a_waiting_claim_is_woken_by(node: Node, cause: str) -> None:
    if cause != "a new study":
        node.launch(n_trials=2, max_parallel_trials=1, retry_backoff_seconds=0)
        held = node.claim()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(node.claim, wait_seconds=LONG)
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.2)
        started_at = time.monotonic()
        if cause == "a new study":
            node.launch()
        elif cause == "a release":
            node.send(held, "release")
        else:
            node.send(held, "complete", value=1.0)
        claim = waiting.result(timeout=LONG)
    assert time.monotonic() - started_at < 15
    expected = {"a new study": (0, 1), "a release": (0, 2), "room after a trial ended": (1, 1)}
    assert (claim["number"], claim["attempt"]) == expected[cause]


def test_a_claim_that_finds_nothing_ends_when_its_time_is_over(node: Node) -> None:
    started_at = time.monotonic()
    assert node.ask(wait_seconds=1.5).status_code == 204
    assert time.monotonic() - started_at >= 1.5


@contextlib.asynccontextmanager
async def in_process(client: TestClient) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(client.app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as opened:
        yield opened


def test_waiting_claims_hold_no_thread(client: TestClient, node: Node) -> None:
    """Twice as many as there are threads wait, and a list is answered at once."""

    async def scenario() -> None:
        async with in_process(client) as http:
            waiting = [
                asyncio.create_task(http.post("/v1/claims", json=claim_of(node, f"w{n}", 6)))
                for n in range(80)
            ]
            await asyncio.sleep(0)  # all are on their way before the list is
            async with asyncio.timeout(5):
                assert (await http.get("/v1/studies")).status_code == 200
            assert not any(task.done() for task in waiting)
            answers = await asyncio.gather(*waiting)
            assert {answer.status_code for answer in answers} == {204}

    assert client.portal is not None
    client.portal.call(scenario)


def test_many_idle_claims_ask_the_database_as_often_as_one(
    client: TestClient, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = client.app.state.service  # type: ignore[attr-defined] # an ASGI app has no state
    looks = Counter[str]()

    def count(owner: Any, name: str) -> None:
        look = getattr(owner, name)

        def counted(asked: Any) -> Any:
            looks[name] += 1
            return look(asked)

        monkeypatch.setattr(owner, name, counted)

    count(service.store.claims, "claim")
    count(service.lookout, "_look")

    async def scenario() -> None:
        waiting: list[asyncio.Task[Any]] = []

        async def wait(n_claims: int) -> int:
            """Lets more claims wait for two looks on behalf of all; how many looked themselves."""
            before = looks.copy()
            names = [f"idle {len(waiting) + n}" for n in range(n_claims)]
            claims = [http.post("/v1/claims", json=claim_of(node, name)) for name in names]
            waiting.extend(map(asyncio.create_task, claims))
            async with asyncio.timeout(30):
                while looks["_look"] < before["_look"] + 2:
                    await asyncio.sleep(0.05)
            return looks["claim"] - before["claim"]

        async with in_process(client) as http:
            await wait(5)
            assert await wait(150) <= 15
            assert not any(task.done() for task in waiting)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    assert client.portal is not None
    client.portal.call(scenario)


def test_a_claim_that_comes_again_while_there_is_no_work_gets_its_trial(
    client: TestClient, node: Node
) -> None:
    lookout = client.app.state.service.lookout  # type: ignore[attr-defined] # as above
    node.launch(n_trials=1)
    first = node.claim(claim_key="the same")
    with ThreadPoolExecutor(1) as pool:
        idle = pool.submit(node.claim, wait_seconds=LONG)
        await_fact(lambda: lookout.has_nothing_for(uuid.UUID(node.id)))
        assert node.claim(claim_key="the same", wait_seconds=LONG) == first
        node.launch(n_trials=1)
        assert idle.result(timeout=LONG)["study"] != first["study"]


@pytest.fixture
def running(new_database: Callable[[str], str]) -> Iterator[Running]:
    service = Running(new_database("sqlite"))
    yield service
    service.stop()


def send_claim(running: Running, node: Node) -> socket.socket:
    """A claim that is on its way, on a socket that can be closed before the answer."""
    body = json.dumps(claim_of(node, "of a client that leaves")).encode()
    head = (
        f"POST /v1/claims HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    connection = socket.create_connection(("127.0.0.1", running.port))
    connection.sendall(head.encode() + body)
    return connection


def test_a_client_that_left_gets_no_trial(running: Running) -> None:
    node = Node(running.client)
    n_open = len(running.server.server_state.connections)
    connection = send_claim(running, node)
    await_fact(lambda: running.app.state.service.lookout.n_waiting > 0)
    connection.close()
    await_fact(lambda: len(running.server.server_state.connections) == n_open)
    node.launch(n_trials=1)
    claim = node.claim(wait_seconds=5)
    assert (claim["number"], claim["attempt"]) == (0, 1)


def test_a_stop_does_not_wait_for_claims(running: Running) -> None:
    node = Node(running.client)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(node.ask, wait_seconds=LONG)
        await_fact(lambda: len(running.server.server_state.tasks) > 0)
        started_at = time.monotonic()
        running.stop()
        assert waiting.result(timeout=LONG).status_code == 204
    assert time.monotonic() - started_at < 10


def test_a_body_over_the_limit_is_answered_on_a_real_socket(running: Running) -> None:
    response = running.client.post("/v1/studies", json={"name": "x" * 8_000_000})
    assert (response.status_code, read(response)["code"]) == (413, "too_large")
    assert running.client.get("/healthz").status_code == 200
