"""Optuna's own storage over our engine: what samplers, pruners and the dashboard read and write.

A subclass of RDBStorage (5.0.x, whose private parts it knows: hence the tight pin) with four
differences. It makes no engine and no tables. Reads do not take SQLite's write lock, so loading
10,000 trials stops no worker. Trials are read without the ORM. And one WAITING trial is never
handed to two: the stock storage looks first and writes later, which on SQLite gave 158 claims for
100 trials to 8 processes.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from optuna.storages import BaseStorage, RDBStorage
from optuna.storages._cached_storage import _CachedStorage
from optuna.storages._rdb import models
from optuna.storages._rdb.storage import _create_scoped_session, _VersionManager
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import orm

from storage.engine import Database, engine_beside, naive_utc
from storage.optuna_reads import frozen_trials
from storage.tables import trials

# More unfinished trials than this are read with all others: databases bound the values of an IN.
MAX_BOUND = 10_000

READS = (
    "get_study_id_from_name",
    "get_study_name_from_id",
    "get_study_directions",
    "get_study_user_attrs",
    "get_study_system_attrs",
    "get_all_studies",
    "get_trial_id_from_study_id_trial_number",
    "get_trial_param",
    "get_trial_user_attrs",
    "get_trial_system_attrs",
    "_get_best_trial_id",
)


class _Sessions:
    """In place of a scoped_session: a new session for each call, so that no thread keeps one."""

    def __init__(self, engine: sa.Engine) -> None:
        self._write = orm.sessionmaker(engine)
        self._read = orm.sessionmaker(engine.execution_options(hpo_begin="BEGIN"))
        self._thread = threading.local()

    def __call__(self) -> orm.Session:
        return self._read() if getattr(self._thread, "is_reading", False) else self._write()

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Sessions made inside only read."""
        self._thread.is_reading = True
        try:
            yield
        finally:
            self._thread.is_reading = False

    def remove(self) -> None:
        """There is nothing to remove; Optuna calls it at the end of a thread."""


class _Versions(_VersionManager):
    """Optuna's schema version, read and never written: `storage.schema` makes the schema."""

    def __init__(self, url: str, engine: sa.Engine, sessions: _Sessions) -> None:
        self.url, self.engine = url, engine
        self.scoped_session: Any = sessions


class OptunaStorage(RDBStorage):
    """Touches no database when made; the schema must be there when it is used."""

    def __init__(self, engine: sa.Engine) -> None:
        # In place of RDBStorage.__init__, which makes an engine and tables of its own.
        self.engine_kwargs: dict[str, Any] = {}
        self.url = engine.url.render_as_string(hide_password=False)
        self.skip_compatibility_check = False
        self.heartbeat_interval = self.grace_period = None
        self.heartbeat_stale_trial_callback = self.failed_trial_callback = None
        self.engine = engine
        sessions = _Sessions(engine)
        self.scoped_session: Any = sessions
        self._version_manager = _Versions(self.url, engine, sessions)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self.url,)

    def get_trial(self, trial_id: int) -> FrozenTrial:
        found = self._read(trials.c.trial_id == trial_id)
        if not found:
            raise KeyError(models.NOT_FOUND_MSG)
        return found[0]

    def _get_trials(
        self,
        study_id: int,
        states: Container[TrialState] | None,
        included_trial_ids: set[int],
        trial_id_greater_than: int,
    ) -> list[FrozenTrial]:
        chosen = trials.c.trial_id > trial_id_greater_than
        if len(included_trial_ids) > MAX_BOUND:
            chosen = sa.true()
        elif included_trial_ids:
            chosen = sa.or_(chosen, trials.c.trial_id.in_(included_trial_ids))
        found = self._read(sa.and_(trials.c.study_id == study_id, chosen))
        if not found and trial_id_greater_than < 0:
            self.get_study_name_from_id(study_id)  # raises KeyError for a study that is not there
        return [trial for trial in found if states is None or trial.state in states]

    def _read(self, chosen: sa.ColumnElement[bool]) -> list[FrozenTrial]:
        with (
            self.scoped_session.reading(),
            _create_scoped_session(self.scoped_session) as session,
        ):
            return frozen_trials(session.connection(), chosen)

    def set_trial_state_values(
        self, trial_id: int, state: TrialState, values: Sequence[float] | None = None
    ) -> bool:
        if state is not TrialState.RUNNING:
            return bool(super().set_trial_state_values(trial_id, state, values))
        claim = (
            sa.update(trials)
            .where(trials.c.trial_id == trial_id, trials.c.state == TrialState.WAITING)
            .values(state=TrialState.RUNNING, datetime_start=naive_utc())
        )
        with _create_scoped_session(self.scoped_session) as session:
            if session.connection().execute(claim).rowcount == 1:
                return True
        # Raises for a trial that is missing or finished, and answers False for a RUNNING one.
        return bool(super().set_trial_state_values(trial_id, state))


def _reading(name: str) -> Callable[..., Any]:
    stock = getattr(RDBStorage, name)

    @functools.wraps(stock)
    def read(self: OptunaStorage, *args: Any, **kwargs: Any) -> Any:
        with self.scoped_session.reading():
            return stock(self, *args, **kwargs)

    return read


for _name in READS:
    setattr(OptunaStorage, _name, _reading(_name))


def _reopened(url: str) -> OptunaStorage:
    # What Optuna pickles for its own worker processes: plain connections that nothing pools.
    return OptunaStorage(sa.create_engine(url, poolclass=sa.pool.NullPool))


def cached(database: Database) -> _CachedStorage:
    """The storage with Optuna's cache of finished trials; shared by all threads of a process."""
    return _CachedStorage(OptunaStorage(database.engine))


def cached_beside(url: str, *, writes: bool) -> BaseStorage:
    """The same for a process beside the one that owns the database, such as the dashboard's."""
    return _CachedStorage(OptunaStorage(engine_beside(url, writes=writes)))


def forget(storage: _CachedStorage, study_id: int) -> None:
    """Drops what the cache holds of a study: SQLite may give its id, and its trials', to others."""
    with storage._lock:
        storage._studies.pop(study_id, None)
        trial_ids = storage._study_id_and_number_to_trial_id
        for key in [key for key in trial_ids if key[0] == study_id]:
            storage._trial_id_to_study_id_and_number.pop(trial_ids.pop(key), None)
