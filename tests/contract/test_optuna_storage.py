"""Optuna's own promises on storages hold for ours, on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import math
import multiprocessing
import random
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy as sa
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, RDBStorage
from optuna.storages._rdb import models
from optuna.study import StudyDirection
from optuna.testing.pytest_storages import StorageTestCase
from optuna.trial import TrialState, create_trial

from hpo.errors import Unavailable
from storage import schema
from storage.engine import Database, outages
from storage.optuna_cache import cached, cached_beside
from storage.optuna_storage import READS, OptunaStorage
from storage.store import Store
from tests.builders import definition

optuna.logging.set_verbosity(optuna.logging.WARNING)

N_WAITING, N_PROCESSES = 100, 4


def prepared(url: str) -> Database:
    database = Database(url)
    schema.upgrade(database)
    return database


@pytest.fixture(scope="module")
def sqlite_database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    database = prepared(f"sqlite:///{tmp_path_factory.mktemp('optuna') / 'hpo.db'}")
    yield database
    database.close()


@pytest.fixture(scope="module")
def postgres_database(postgres_server: str) -> Iterator[Database]:
    """One database for the module: a study more costs less than a database more."""
    url = sa.make_url(postgres_server).set(database="optuna_contract")
    admin = sa.create_engine(
        postgres_server, isolation_level="AUTOCOMMIT", poolclass=sa.pool.NullPool
    )
    with admin.connect() as connection:
        connection.exec_driver_sql("CREATE DATABASE optuna_contract")
    database = prepared(url.render_as_string(hide_password=False))
    yield database
    database.close()


def emptied(database: Database) -> Database:
    """The database without studies, as each test of Optuna's expects it."""
    keep = {"alembic_version", models.VersionInfoModel.__tablename__}
    with database.engine.begin() as connection:
        for table in reversed(models.BaseModel.metadata.sorted_tables):
            if table.name not in keep:
                connection.execute(table.delete())
    return database


class TestSqliteStorageTestCase(StorageTestCase):
    @pytest.fixture
    def storage(self, sqlite_database: Database) -> BaseStorage:
        return OptunaStorage(emptied(sqlite_database).engine)


class TestSqliteCachedStorageTestCase(StorageTestCase):
    @pytest.fixture
    def storage(self, sqlite_database: Database) -> BaseStorage:
        return cached(emptied(sqlite_database))


class TestPostgresStorageTestCase(StorageTestCase):
    @pytest.fixture
    def storage(self, postgres_database: Database) -> BaseStorage:
        return OptunaStorage(emptied(postgres_database).engine)


class TestPostgresCachedStorageTestCase(StorageTestCase):
    @pytest.fixture
    def storage(self, postgres_database: Database) -> BaseStorage:
        return cached(emptied(postgres_database))


def _pop_all(url: str, start: threading.Barrier, popped: multiprocessing.Queue[list[int]]) -> None:
    """One process that takes WAITING trials until none is left."""
    engine = sa.create_engine(url, connect_args={"timeout": 60} if "sqlite" in url else {})
    storage = OptunaStorage(engine)
    study = optuna.load_study(study_name="queue", storage=storage)
    start.wait(timeout=60)
    mine: list[int] = []
    while (trial_id := study._pop_waiting_trial_id()) is not None:
        mine.append(trial_id)
    popped.put(mine)
    engine.dispose()


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> Database:
    return emptied(request.getfixturevalue(f"{request.param}_database"))


def test_each_waiting_trial_is_popped_once_by_four_processes(database: Database) -> None:
    storage = OptunaStorage(database.engine)
    study_id = storage.create_new_study([StudyDirection.MINIMIZE], "queue")
    waiting = create_trial(state=TrialState.WAITING)
    queued = [storage.create_new_trial(study_id, waiting) for _ in range(N_WAITING)]
    spawn = multiprocessing.get_context("spawn")
    start, popped = spawn.Barrier(N_PROCESSES), spawn.Queue()
    processes = [
        spawn.Process(target=_pop_all, args=(storage.url, start, popped))
        for _ in range(N_PROCESSES)
    ]
    for process in processes:
        process.start()
    claims = Counter(trial_id for _ in processes for trial_id in popped.get(timeout=120))
    for process in processes:
        process.join(timeout=60)
        assert process.exitcode == 0
    assert claims == Counter(queued)


def test_a_running_trial_is_not_claimed_again(database: Database) -> None:
    storage = cached(database)
    study_id = storage.create_new_study([StudyDirection.MINIMIZE], "s")
    trial_id = storage.create_new_trial(study_id, create_trial(state=TrialState.WAITING))
    assert storage.set_trial_state_values(trial_id, TrialState.RUNNING) is True
    started = storage.get_trial(trial_id).datetime_start
    assert started is not None
    assert storage.set_trial_state_values(trial_id, TrialState.RUNNING) is False
    assert storage.get_trial(trial_id).datetime_start == started


def test_a_read_waits_for_no_writer(sqlite_database: Database) -> None:
    storage = OptunaStorage(emptied(sqlite_database).engine)
    study_id = storage.create_new_study([StudyDirection.MINIMIZE], "s")
    trial_id = storage.create_new_trial(study_id)
    with sqlite_database.engine.begin():  # holds SQLite's write lock
        assert storage.get_trial(trial_id).number == 0
        assert len(storage.get_all_trials(study_id)) == 1
        assert storage.get_study_id_from_name("s") == study_id


def test_all_ways_to_read_trials_read_alike(database: Database) -> None:
    ours = cached(database)
    study_id = ours.create_new_study([StudyDirection.MINIMIZE], "s")
    drawn = optuna.distributions.FloatDistribution(0, 1)
    for value in range(6):
        trial_id = ours.create_new_trial(study_id)
        ours.set_trial_param(trial_id, "x", value / 8, drawn)
        ours.set_trial_intermediate_value(trial_id, 0, [0.5, math.inf, math.nan][value % 3])
        ours.set_trial_system_attr(trial_id, "a", {"b": [value]})
        assert ours.get_all_trials(study_id)[-1].number == value  # what is new
        if value % 2:
            ours.set_trial_state_values(trial_id, TrialState.COMPLETE, [float(value)])
    changed = ours.get_all_trials(study_id)
    at_once = cached(database).get_all_trials(study_id)
    one_by_one = [ours._backend.get_trial(trial._trial_id) for trial in changed]
    stock = RDBStorage(ours._backend.url, engine_kwargs={"poolclass": sa.pool.NullPool})
    expected = [repr(trial.__dict__) for trial in stock.get_all_trials(study_id)]
    stock.engine.dispose()
    for found in (changed, at_once, one_by_one):
        assert [repr(trial.__dict__) for trial in found] == expected


def test_lists_by_state_follow_the_trials(database: Database) -> None:
    ours, other = cached(database), cached(database)
    study_id = ours.create_new_study([StudyDirection.MINIMIZE], "s")
    states = [None, (TrialState.COMPLETE,), [TrialState.COMPLETE, TrialState.RUNNING]]
    draw, running = random.Random(5), []
    for _ in range(40):
        if running and draw.random() < 0.5:
            ended = running.pop(draw.randrange(len(running)))
            other.set_trial_state_values(ended, TrialState.COMPLETE, [1.0])
        else:
            running.append(other.create_new_trial(study_id))
        for chosen in states:
            expected = OptunaStorage(database.engine).get_all_trials(study_id, states=chosen)
            assert ours.get_all_trials(study_id, states=chosen) == expected


def test_trials_that_run_have_spaces_of_their_own(database: Database) -> None:
    """Optuna adds to the one of its running trial as parameters are suggested."""
    study = optuna.create_study(storage=cached(database))
    for _ in range(3):
        study.tell(study.ask({"x": optuna.distributions.FloatDistribution(0, 1)}), 1.0)
    assert [list(trial.params) for trial in study.trials] == [["x"]] * 3


def test_a_sampler_sees_parameters_and_ends_of_others(database: Database) -> None:
    ours, other = cached(database), cached(database)
    study_id = ours.create_new_study([StudyDirection.MINIMIZE], "s")
    trial_id = other.create_new_trial(study_id)
    other.set_trial_param(trial_id, "x", 0.5, optuna.distributions.FloatDistribution(0, 1))

    def seen() -> tuple[dict[str, Any], dict[int, float], TrialState]:
        ours.refresh(study_id, is_for_sampling=True)
        (trial,) = ours.in_states(study_id)
        return trial.params, trial.intermediate_values, trial.state

    assert seen() == ({"x": 0.5}, {}, TrialState.RUNNING)
    other.set_trial_intermediate_value(trial_id, 0, 3.0)
    assert seen() == ({"x": 0.5}, {}, TrialState.RUNNING)
    assert ours.get_all_trials(study_id)[0].intermediate_values == {0: 3.0}
    other.set_trial_state_values(trial_id, TrialState.COMPLETE, [1.0])
    assert seen() == ({"x": 0.5}, {0: 3.0}, TrialState.COMPLETE)


def test_the_reads_are_methods_of_optuna() -> None:
    assert all(callable(getattr(RDBStorage, name)) for name in READS)


def test_no_connection_stays_with_a_thread(database: Database) -> None:
    storage = cached(database)
    study_id = storage.create_new_study([StudyDirection.MINIMIZE], "s")
    threads = [
        threading.Thread(target=storage.create_new_trial, args=(study_id,)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {trial.number for trial in storage.get_all_trials(study_id)} == set(range(8))
    pool = database.engine.pool
    assert isinstance(pool, sa.pool.QueuePool)
    assert pool.checkedout() == 0


def test_stock_optuna_works_on_the_same_study(sqlite_database: Database) -> None:
    ours = cached(emptied(sqlite_database))
    study_id = ours.create_new_study([StudyDirection.MINIMIZE], "shared")
    trial_id = ours.create_new_trial(study_id)
    distribution = optuna.distributions.FloatDistribution(0, 1)
    ours.set_trial_param(trial_id, "x", 0.5, distribution)
    ours.set_trial_state_values(trial_id, TrialState.COMPLETE, [0.25])
    url = sqlite_database.url.render_as_string(hide_password=False)
    stock = RDBStorage(url, engine_kwargs={"poolclass": sa.pool.NullPool})
    study = optuna.load_study(study_name="shared", storage=stock)
    assert study.best_params == {"x": 0.5}
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=3)
    assert [trial.number for trial in ours.get_all_trials(study_id)] == [0, 1, 2, 3]
    stock.engine.dispose()


def test_it_knows_its_schema_and_makes_none(database: Database, tmp_path: Path) -> None:
    storage = OptunaStorage(database.engine)
    assert storage.get_current_version() == storage.get_head_version()
    empty = sa.create_engine(f"sqlite:///{tmp_path / 'empty.db'}", poolclass=sa.pool.NullPool)
    OptunaStorage(empty)
    with empty.connect() as connection:
        assert sa.inspect(connection).get_table_names() == []


def test_a_process_beside_the_service_reads_and_cannot_write(store: Store) -> None:
    store.studies.create(definition(), given=frozenset())
    beside = cached_beside(store.url, writes=False)
    (study,) = beside.get_all_studies()
    assert beside.get_all_trials(study._study_id) == []
    for write in (
        lambda: beside.create_new_trial(study._study_id),
        lambda: beside.set_study_user_attr(study._study_id, "key", 1),
        lambda: beside.delete_study(study._study_id),
    ):
        with pytest.raises((StorageInternalError, sa.exc.DBAPIError)):
            write()
    assert [found.study_name for found in beside.get_all_studies()] == ["demo"]
    writing = cached_beside(store.url, writes=True)
    writing.set_study_user_attr(study._study_id, "key", 1)
    assert beside.get_study_user_attrs(study._study_id) == {"key": 1}
    for opened in (beside, writing):
        opened._backend.engine.dispose()


def test_a_database_that_is_away_is_unavailable(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'no' / 'folder.db'}")
    with pytest.raises(Unavailable), outages():
        OptunaStorage(engine).get_trial(1)
