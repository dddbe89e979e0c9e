"""A running service for tests, and a worker as its protocol sees it."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import httpx2
import sqlalchemy as sa
import uvicorn
from starlette.testclient import TestClient

from api.app import create_app
from api.server import Server
from storage.store import open_store


def no_literal(literal: str) -> NoReturn:
    """Refuses NaN and infinities, which Python writes and JSON does not know."""
    raise AssertionError(f"{literal} is not JSON")


def read(response: httpx2.Response) -> Any:
    """The body of a response, read strictly."""
    return json.loads(response.content, parse_constant=no_literal)


class Node:
    """A registered worker that can run one objective, which no other test uses."""

    def __init__(self, client: httpx2.Client, **descriptor: Any) -> None:
        self.client = client
        self.id = str(uuid.uuid4())
        module = f"m{uuid.uuid4().hex}"
        self.objective = f"{module}:f"
        self.document = {
            "id": self.id,
            "name": "node:1",
            "version": "0.1.0",
            "protocol": 1,
            "slots": 2,
            "devices": ["cpu", "cpu"],
            "allow": [module],
            "objectives": [{"objective": self.objective, **descriptor}],
        }
        response = client.post("/v1/workers", json=self.document)
        assert response.status_code == 200, response.text
        self.times = read(response)

    def launch(self, **document: Any) -> dict[str, Any]:
        """A study that only this worker can serve."""
        defaults = {
            "name": f"s-{uuid.uuid4().hex}",
            "objective": self.objective,
            "direction": "maximize",
            "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
            "n_trials": 5,
            "sampler": "random",
        }
        sent = {k: v for k, v in {**defaults, **document}.items() if v is not ...}
        response = self.client.post("/v1/studies", json=sent)
        assert response.status_code == 201, response.text
        return dict(read(response))

    def ask(self, **document: Any) -> httpx2.Response:
        defaults = {
            "worker_id": self.id,
            "claim_key": uuid.uuid4().hex,
            "device": "cpu",
            "wait_seconds": 0,
        }
        return self.client.post("/v1/claims", json={**defaults, **document})

    def claim(self, **document: Any) -> dict[str, Any]:
        response = self.ask(**document)
        assert response.status_code == 200, response.text
        return dict(read(response))

    def send(self, claim: dict[str, Any], verb: str, **document: Any) -> httpx2.Response:
        return self.client.post(
            f"{trial_path(claim)}/{verb}", json={"token": claim["token"], **document}
        )


def trial_path(claim: dict[str, Any]) -> str:
    return f"/v1/studies/{claim['study']}/trials/{claim['number']}"


@contextlib.contextmanager
def serving(
    url: str, *, artifacts: Path | None = None, max_model_bytes: int = 1000, **options: Any
) -> Iterator[TestClient]:
    """A client of a service on this database, once the database is prepared."""
    store = open_store(url, artifacts=artifacts, max_model_bytes=max_model_bytes)
    with TestClient(create_app(store, **options)) as client:
        await_ready(client)
        yield client


def await_ready(client: TestClient, seconds: float = 30.0) -> None:
    give_up_at = time.monotonic() + seconds
    while (response := client.get("/readyz")).status_code != 200:
        assert time.monotonic() < give_up_at, response.text
        time.sleep(0.05)


def create_database(server: str, name: str) -> None:
    admin = sa.create_engine(server, isolation_level="AUTOCOMMIT", poolclass=sa.pool.NullPool)
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    admin.dispose()


class Running:
    """A service on a real socket."""

    def __init__(self, url: str, *, port: int = 0) -> None:
        self.app = create_app(open_store(url))
        config = uvicorn.Config(
            self.app, port=port, log_level="critical", lifespan="on", timeout_graceful_shutdown=30
        )
        self.server = Server(config)
        self._thread = threading.Thread(target=self.server.run)
        self._thread.start()
        await_fact(lambda: self.server.started)
        self.port: int = self.server.servers[0].sockets[0].getsockname()[1]
        self.client = httpx2.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=90)
        await_fact(lambda: self.client.get("/readyz").status_code == 200)

    def stop(self) -> None:
        self.server.should_exit = True
        self._thread.join()
        self.client.close()


def await_fact(is_so: Callable[[], bool], seconds: float = 30.0) -> None:
    give_up_at = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < give_up_at
        time.sleep(0.02)
