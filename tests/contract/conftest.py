"""What the tests of the store share: a worker, studies, claims."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from optuna.storages import RDBStorage

from hpo.study import StudyDefinition
from storage.records import Claimed
from storage.store import Store
from tests.builders import definition, register, request


@pytest.fixture
def stock(database_url: str) -> Iterator[RDBStorage]:
    """Optuna's own storage on the same database, as any other program would open it."""
    opened = RDBStorage(database_url)
    yield opened
    opened.remove_session()
    opened.engine.dispose()


@pytest.fixture
def worker_id(store: Store) -> uuid.UUID:
    return register(store)


@pytest.fixture
def create(store: Store) -> Callable[..., StudyDefinition]:
    """Creates a study from fields of its definition."""

    def create(**fields: Any) -> StudyDefinition:
        made = definition(**fields)
        store.studies.create(made, given=frozenset(fields))
        return made

    return create


@pytest.fixture
def claim(store: Store, worker_id: uuid.UUID) -> Callable[[], Claimed]:
    """Claims a trial for `worker_id`; there must be one."""

    def claim() -> Claimed:
        claimed = store.claims.claim(request(worker_id))
        assert claimed is not None
        return claimed

    return claim
