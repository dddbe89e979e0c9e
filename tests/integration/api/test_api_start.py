"""The service and its database may start in any order."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from api.app import create_app
from hpo.errors import DatabaseInUse
from storage.store import open_store
from tests.api_kit import await_ready, create_database, read, serving


def test_a_database_that_comes_later_is_taken_up(postgres_server: str) -> None:
    name = f"late_{uuid.uuid4().hex}"
    url = sa.make_url(postgres_server).set(database=name).render_as_string(hide_password=False)
    with TestClient(create_app(open_store(url))) as client:
        for path in (
            "/readyz",
            "/v1/studies",
            "/v1/studies/x/trials",
            "/dashboard",
            "/api/studies",
        ):
            response = client.get(path)
            assert (response.status_code, read(response)["code"]) == (503, "unavailable")
            assert response.headers["Retry-After"]
            assert name not in response.text
        assert read(client.get("/healthz")) == {"state": "ok"}
        create_database(postgres_server, name)
        await_ready(client)
        assert read(client.get("/v1/studies")) == {"items": [], "next": None}
        assert client.get("/dashboard").status_code == 200


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_an_empty_and_a_current_database_are_ready(
    new_database: Callable[[str], str], kind: str
) -> None:
    url = new_database(kind)
    for _ in range(2):
        with serving(url) as client:
            assert read(client.get("/readyz")) == {"state": "ready"}


def test_a_database_of_another_release_is_not_touched(new_database: Callable[[str], str]) -> None:
    url = new_database("sqlite")
    with serving(url):
        pass
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE hpo_alembic_version SET version_num = 'of tomorrow'")
    engine.dispose()
    with TestClient(create_app(open_store(url))) as client:
        give_up_at = time.monotonic() + 30
        while read(response := client.get("/readyz"))["code"] == "unavailable":
            assert time.monotonic() < give_up_at
        problem = read(response)
        assert (response.status_code, problem["code"]) == (503, "schema_mismatch")
        assert problem["found"] == "of tomorrow"
        assert problem["needed"]
        assert "hpo db" in problem["command"]
        assert read(client.get("/v1/studies"))["code"] == "schema_mismatch"
        assert client.get("/healthz").status_code == 200


def test_the_end_of_the_service_gives_up_the_database(new_database: Callable[[str], str]) -> None:
    url = new_database("sqlite")
    with serving(url), pytest.raises(DatabaseInUse):
        open_store(url)
    with serving(url) as client:
        assert client.get("/v1/studies").status_code == 200
