"""Databases with a study of many stored trials: made once for each size, then copied."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import random
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import sqlalchemy as sa
from optuna.distributions import FloatDistribution, distribution_to_json

from hpo.space import FloatRange
from hpo.study import Algorithm, Budget, Direction, StudyDefinition, StudyState
from hpo.trial import TrialState, Verdict
from storage.records import AttemptRecord, CurvePoint
from storage.store import open_store
from storage.transfer import StudyCopy, TrialCopy
from tests.acceptance.faults import OwnPostgres, own_postgres
from tests.conftest import PostgresDatabases

N_PARAMS, N_REPORTS = 5, 10
STUDY = "bench"
MODULE = "bench"
SHARE_PRUNED = 0.2
# Trials of a benchmark report less than any stored one: nothing is pruned, all do the same work.
LOWEST_STORED = 1.0
PARAMS = tuple(f"x{index}" for index in range(N_PARAMS))
DISTRIBUTION = json.loads(distribution_to_json(FloatDistribution(0.0, 1.0)))
BEGIN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def definition(sampler: str = "random") -> StudyDefinition:
    """A study that does not end by itself."""
    return StudyDefinition(
        name=STUDY,
        objective=f"{MODULE}:nothing",
        direction=Direction.MINIMIZE,
        space={name: FloatRange(low=0.0, high=1.0) for name in PARAMS},
        sampler=Algorithm(name=sampler),
        seed=1,
        budget=Budget(n_trials=1_000_000),
    )


def stored_trials(n_trials: int) -> list[TrialCopy]:
    """Trials as the service leaves them behind: a fifth pruned, each with all its reports."""
    rng = random.Random(1)
    worker_id = uuid.UUID(int=1)
    return [_stored_trial(number, rng, worker_id) for number in range(n_trials)]


def _stored_trial(number: int, rng: random.Random, worker_id: uuid.UUID) -> TrialCopy:
    is_pruned = rng.random() < SHARE_PRUNED
    value = LOWEST_STORED + rng.random()
    begin = BEGIN + dt.timedelta(seconds=number)
    end = begin + dt.timedelta(seconds=5)
    curve = [
        CurvePoint(
            step=step,
            value=value + 1 / (step + 1),
            attempt=1,
            elapsed_seconds=0.1 * step,
            verdict=Verdict.CONTINUE,
        )
        for step in range(N_REPORTS)
    ]
    attempt = AttemptRecord(
        attempt=1,
        worker_id=worker_id,
        worker_name="bench:0",
        device="cpu",
        started_at=begin,
        ended_at=end,
        resumed_from_step=None,
        outcome="pruned" if is_pruned else "complete",
        reason=None,
        message="",
        traceback="",
    )
    return TrialCopy(
        number=number,
        state=TrialState.PRUNED if is_pruned else TrialState.COMPLETE,
        params={name: rng.random() for name in PARAMS},
        distributions=dict.fromkeys(PARAMS, DISTRIBUTION),
        values=(value,),
        curve=curve,
        is_counted=True,
        attempt=1,
        attempts=(attempt,),
        started_at=begin,
        ended_at=end,
    )


def fill(url: str, n_trials: int, sampler: str) -> None:
    """Makes the schema and a running study with so many trials."""
    store = open_store(url)
    try:
        store.prepare()
        copy = StudyCopy(
            definition=definition(sampler),
            state=StudyState.PAUSED,
            reason=None,
            created_at=BEGIN,
            ended_at=None,
            ran_seconds=0.0,
        )
        store.importing.write(copy, stored_trials(n_trials), key=None, fingerprint="bench")
        store.lifecycle.resume(STUDY)
    finally:
        store.close()


class Databases(Protocol):
    """Copies of filled databases, of one kind."""

    kind: str
    pid: int | None  # of the server, where there is one

    def stored(
        self, n_trials: int, sampler: str = "random"
    ) -> contextlib.AbstractContextManager[str]:
        """The URL of a database of one's own; a study of so many trials is in it."""


class SqliteDatabases:
    """Files in a folder. They are in WAL mode, for whoever opens them."""

    kind = "SQLite"
    pid = None

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextlib.contextmanager
    def stored(self, n_trials: int, sampler: str = "random") -> Iterator[str]:
        template = self._folder / f"{sampler}-{n_trials}.db"
        if not template.exists():
            fill(f"sqlite:///{template}", n_trials, sampler)
        folder = self._folder / uuid.uuid4().hex
        folder.mkdir()
        shutil.copy(template, folder / "hpo.db")
        try:
            yield f"sqlite:///{folder / 'hpo.db'}"
        finally:
            shutil.rmtree(folder)


class ServerDatabases:
    """Databases on one PostgreSQL server."""

    kind = "PostgreSQL"

    def __init__(self, server: OwnPostgres) -> None:
        self.server = server
        self.pid = server.pid
        self._databases = PostgresDatabases(server.url)
        self._templates: dict[tuple[int, str], str] = {}

    @contextlib.contextmanager
    def stored(self, n_trials: int, sampler: str = "random") -> Iterator[str]:
        if (n_trials, sampler) not in self._templates:
            filled = self._databases.create()
            fill(filled, n_trials, sampler)
            self._templates[n_trials, sampler] = sa.make_url(filled).database or ""
        url = self._databases.create(self._templates[n_trials, sampler])
        try:
            yield url
        finally:
            self._databases.drop(url)


KINDS = ("postgresql", "sqlite")


@contextlib.contextmanager
def databases(kind: str, folder: Path, **settings: str) -> Iterator[Databases]:
    """Databases of a kind; `settings` are those of a PostgreSQL server."""
    if kind == "sqlite":
        own = folder / "databases"
        own.mkdir()
        yield SqliteDatabases(own)
        return
    with own_postgres(**settings) as server:
        yield ServerDatabases(server)
