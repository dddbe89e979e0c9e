"""A running service on either database, and a worker as its protocol sees it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from tests.api_kit import Node, create_database, serving

NewDatabase = Callable[[str], str]


@pytest.fixture(scope="session")
def new_database(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> NewDatabase:
    """Makes the URL of a fresh database of a kind."""

    def make(kind: str) -> str:
        if kind == "sqlite":
            return f"sqlite:///{tmp_path_factory.mktemp('api') / 'hpo.db'}"
        server: str = request.getfixturevalue("postgres_server")
        name = f"api_{uuid.uuid4().hex}"
        create_database(server, name)
        return sa.make_url(server).set(database=name).render_as_string(hide_password=False)

    return make


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def client(request: pytest.FixtureRequest, new_database: NewDatabase) -> Iterator[TestClient]:
    """A service on each database; tests of a module share it and use names of their own."""
    with serving(new_database(request.param)) as opened:
        yield opened


@pytest.fixture
def node(client: TestClient) -> Node:
    return Node(client)
