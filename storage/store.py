"""The store: all that the API asks of a database, behind one object.

Opening it touches nothing but the lock of a SQLite file, so that API and database may start in
any order; `prepare` makes or checks the schema.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias
from uuid import UUID

import sqlalchemy as sa
from optuna.storages import BaseStorage

from hpo.space import Choice, Parameter
from hpo.trial import Decision, Failure, Measurement
from storage import leases, schema, workers
from storage.adoption import Adoption
from storage.analysis import Analysis
from storage.artifacts import Artifacts
from storage.asks import Asks
from storage.census import Census, count
from storage.claims import Claims
from storage.cloning import Cloning
from storage.deleting import Deleting
from storage.engine import Database
from storage.enqueueing import Enqueueing
from storage.events import EventRetention, Events
from storage.importing import Importing
from storage.lifecycle import Lifecycle
from storage.logs import Logs
from storage.models import Models
from storage.optuna_storage import cached
from storage.reaper import Reaper
from storage.records import (
    Asked,
    AskRequest,
    Claimed,
    ClaimRequest,
    Lease,
    LeaseTimes,
    Remarks,
    Settled,
)
from storage.reports import Reports
from storage.schema import SchemaVersion
from storage.search import Search
from storage.settling import Settling
from storage.studies import Studies
from storage.timing import watch
from storage.tokens import Tokens
from storage.transfer import Transfer
from storage.trial_changes import TrialChanges
from storage.trials import Trials
from storage.workers import Workers

Attrs: TypeAlias = Mapping[str, object]
Constraints: TypeAlias = Mapping[str, float]
NOTHING: Mapping[str, Any] = MappingProxyType({})
MAX_MODEL_BYTES = 2 * 1024**3


class Leased:
    """What workers do: claim a trial, write to it while they hold its lease, end it."""

    def __init__(self, database: Database, search: Search, times: LeaseTimes) -> None:
        self._database, self._times = database, times
        seconds = times.lease_seconds
        self._claims = Claims(database, search, lease_seconds=seconds)
        self._asks = Asks(database, self._claims)
        self._reports = Reports(database, search, lease_seconds=seconds)
        self._settling = Settling(database)
        self._reaper = Reaper(database, self._settling, lease_seconds=seconds)

    def claim(self, request: ClaimRequest) -> Claimed | None:
        return self._claims.claim(request)

    def ask(self, study_name: str, request: AskRequest) -> Asked:
        return self._asks.ask(study_name, request)

    def keep(self, lease: Lease) -> None:
        """Lengthens one lease, for whoever holds it."""
        seconds = self._times.lease_seconds
        self._database.write(lambda c: leases.hold(c, lease, lease_seconds=seconds))

    def renew(self, worker_id: UUID, tokens: Sequence[str]) -> list[str]:
        """Lengthens the leases a worker holds; answers the tokens it has lost."""

        def transaction(connection: sa.Connection) -> list[str]:
            workers.seen(connection, worker_id)
            seconds = self._times.lease_seconds
            return leases.renew(connection, str(worker_id), tokens, lease_seconds=seconds)

        return self._database.write(transaction)

    def start(self, lease: Lease, resumed_from_step: int | None) -> None:
        self._reports.start(lease, resumed_from_step)

    def suggest(self, lease: Lease, name: str, parameter: Parameter) -> Choice:
        return self._reports.suggest(lease, name, parameter)

    def report(
        self,
        lease: Lease,
        measurement: Measurement,
        user_attrs: Attrs = NOTHING,
        constraints: Constraints = NOTHING,
    ) -> Decision:
        remarks = Remarks(user_attrs=user_attrs, constraints=constraints)
        return self._reports.report(lease, measurement, remarks)

    def complete(
        self,
        lease: Lease,
        value: float | Sequence[float] | None = None,
        user_attrs: Attrs = NOTHING,
        constraints: Constraints = NOTHING,
    ) -> Settled:
        """Several values where the study has several directions; None: a report is the value."""
        values = () if value is None else (value,) if isinstance(value, float | int) else value
        remarks = Remarks(user_attrs=user_attrs, constraints=constraints)
        return self._settling.complete(lease, values, remarks)

    def prune(
        self, lease: Lease, user_attrs: Attrs = NOTHING, constraints: Constraints = NOTHING
    ) -> Settled:
        remarks = Remarks(user_attrs=user_attrs, constraints=constraints)
        return self._settling.prune(lease, remarks)

    def fail(
        self,
        lease: Lease,
        failure: Failure,
        user_attrs: Attrs = NOTHING,
        constraints: Constraints = NOTHING,
    ) -> Settled:
        remarks = Remarks(user_attrs=user_attrs, constraints=constraints)
        return self._settling.fail(lease, failure, remarks)

    def release(self, lease: Lease) -> Settled:
        return self._settling.release(lease)

    def reap(self) -> int:
        """Ends leases that ran out; answers how many trials changed."""
        return self._reaper.reap()

    @property
    def n_expired(self) -> int:
        """Leases that ran out and that this process has ended."""
        return self._reaper.n_expired


class Store:
    """Everything in one database; every method may be called from any thread."""

    def __init__(
        self,
        url: str,
        times: LeaseTimes,
        *,
        retention: EventRetention,
        artifacts: Path | None,
        max_model_bytes: int,
    ) -> None:
        self.times = times
        self._database = Database(url)
        self._optuna = cached(self._database)
        self._is_prepared = False
        search = Search(self._database, self._optuna)
        self.workers = Workers(self._database, times)
        self.artifacts = None if artifacts is None else Artifacts(artifacts)
        self.models = Models(
            self._database,
            self.artifacts,
            max_bytes=max_model_bytes,
            lease_seconds=times.lease_seconds,
        )
        self.studies = Studies(self._database, self.workers, models_blocked=self.models.obstacle)
        self.lifecycle = Lifecycle(self._database, self.studies)
        self.deleting = Deleting(self._database, self.studies, search)
        self.trials = Trials(self._database)
        self.logs = Logs(self._database)
        self.enqueueing = Enqueueing(self._database)
        self.trial_changes = TrialChanges(self._database)
        self.analysis = Analysis(self._database, self.studies, search)
        self.cloning = Cloning(self._database)
        self.adoption = Adoption(self._database, self.studies)
        self.transfer = Transfer(self._database, self.trials)
        self.importing = Importing(self._database, self.studies)
        self.tokens = Tokens(self._database)
        self.events = Events(self._database, retention)
        self.claims = Leased(self._database, search, times)

    def prepare(self) -> None:
        """Makes or upgrades the schema. Raises Unavailable, or SchemaMismatch with the cure."""
        if not self._is_prepared:
            schema.upgrade(self._database)
            schema.check(self._database)
            self._is_prepared = True

    def upgrade(self) -> tuple[SchemaVersion, SchemaVersion]:
        """Brings Optuna's schema and ours up to date; answers the versions before and after."""
        return schema.upgrade(self._database, optuna=True)

    def check(self) -> None:
        """Raises Unavailable or SchemaMismatch when requests cannot be served."""
        schema.check(self._database)

    def census(self) -> Census:
        """How much of everything there is."""
        return self._database.read(lambda connection: count(connection, self.workers.is_alive()))

    def watch_statements(self, note: Callable[[str, float], None]) -> None:
        """Calls `note` with the kind and the seconds of each statement from now on."""
        watch(self._database.engine, note)

    @property
    def url(self) -> str:
        """The URL of the database with its password: for processes of our own."""
        return self._database.url.render_as_string(hide_password=False)

    def optuna_storage(self) -> BaseStorage:
        """The Optuna storage by which samplers and pruners see this database."""
        return self._optuna

    def close(self) -> None:
        self._database.close()


def open_store(
    url: str,
    times: LeaseTimes | None = None,
    *,
    retention: EventRetention | None = None,
    artifacts: Path | None = None,
    max_model_bytes: int = MAX_MODEL_BYTES,
) -> Store:
    """Opens a database by its URL. Raises InvalidField("url", …) or DatabaseInUse.

    Models are stored in the folder `artifacts`; without one, none are.
    """
    # Optuna 5 stores naive UTC and shows local time: one zone, and nothing shifts.
    os.environ["TZ"] = "UTC"
    time.tzset()
    return Store(
        url,
        times or LeaseTimes(),
        retention=retention or EventRetention(),
        artifacts=artifacts,
        max_model_bytes=max_model_bytes,
    )
