"""Studies are deleted whole, whatever they hold and whoever dies meanwhile, and nothing else is."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import optuna
import pytest
import sqlalchemy as sa
from optuna.storages import RDBStorage

from hpo.errors import Conflict, HpoError, NotFound, StudyExists, Unavailable
from hpo.events import EventKind
from hpo.study import StudyDefinition, StudyState
from hpo.trial import Measurement, TrialState
from storage import deleting
from storage import tables as t
from storage.deleting import tables_of_study
from storage.records import Claimed, LogChunk
from storage.store import Store
from tests.builders import definition, lease_of, request
from tests.clock import Clock

Create = Callable[..., StudyDefinition]
Claim = Callable[[], Claimed]
Change = Callable[[str], object]

# What holds rows of no study alone.
SERVICE_WIDE = {
    "hpo_worker",
    "hpo_arrival",
    "hpo_reaper",
    "hpo_request",
    "hpo_token",
    "hpo_session",
}


@pytest.fixture
def clock(database_url: str) -> Iterator[Clock]:
    made = Clock(database_url)
    yield made
    made.engine.dispose()


def n_rows(clock: Clock) -> dict[str, int]:
    """The rows of every table, of Optuna's and of ours."""
    tables = [*t.metadata.sorted_tables, *t.trials.metadata.sorted_tables]
    with clock.engine.connect() as connection:
        return {
            table.name: connection.execute(
                sa.select(sa.func.count()).select_from(table)
            ).scalar_one()
            for table in tables
        }


def fill(store: Store, claim: Claim, stock: RDBStorage) -> Claimed:
    """Lets the study `demo` have a row in every table that may hold one; answers what runs."""
    claimed = claim()
    lease = lease_of(claimed)
    store.claims.report(lease, Measurement(step=0, value=0.5), {"note": 1}, {"limit": -1.0})
    store.logs.append(lease, [LogChunk(sequence=0, text="a line\n")])
    store.claims.complete(lease, 0.5, {})
    store.trial_changes.exclude("demo", 0, "wrong")
    study_id = stock.get_study_id_from_name("demo")
    stock.set_study_user_attr(study_id, "note", 1)
    heartbeats = t.trials.metadata.tables["trial_heartbeats"]
    with stock.engine.begin() as connection:
        first = sa.select(t.trials.c.trial_id).where(t.trials.c.study_id == study_id)
        trial_id = connection.execute(first).scalars().first()
        connection.execute(heartbeats.insert().values(trial_id=trial_id))
    return claim()


def test_a_deleted_study_leaves_nothing_behind_and_others_whole(
    store: Store, create: Create, claim: Claim, stock: RDBStorage, clock: Clock
) -> None:
    create(name="other", n_trials=1)
    store.claims.complete(lease_of(claim()), 1.0, {})
    before = n_rows(clock)
    create(metric="loss")
    held = fill(store, claim, stock)
    filled = n_rows(clock)
    grown = {name for name in filled if filled[name] > before[name]}
    # A new table with a study's rows has to be filled above, and is deleted from by itself.
    ours = {table.name for table in tables_of_study()}
    assert ours == {name for name in t.metadata.tables if name not in SERVICE_WIDE} - {
        "hpo_study",
        "hpo_deleted_study",
        "hpo_model",
    }
    optunas = set(t.trials.metadata.tables) - {"version_info"}
    assert grown == ours | optunas | {"hpo_study"}
    marked = store.deleting.mark("demo", force=True)
    assert (marked.state, marked.reason) == (StudyState.DELETING, "Deleted on request.")
    with pytest.raises(HpoError):
        store.claims.report(lease_of(held), Measurement(step=0, value=0.1), {})
    assert store.deleting.purge() == 1
    after = n_rows(clock)
    assert after.pop("hpo_deleted_study") == 1
    assert after == {
        **{name: n for name, n in before.items() if name != "hpo_deleted_study"},
        "hpo_event": before["hpo_event"] + 1,
    }
    (event,) = [e for e in store.events.after((0, 0)) if e.study_name == "demo"]  # type: ignore[arg-type]  # a cursor is a tuple
    assert event.kind == EventKind.STUDY_DELETED
    assert store.studies.get("other").counts[TrialState.COMPLETE] == 1
    assert store.deleting.purge() == 0


@pytest.mark.parametrize("verb", [None, "pause", "stop"])
def test_a_study_that_lives_is_deleted_by_force_only(
    store: Store, create: Create, claim: Claim, verb: str | None
) -> None:
    create()
    claim()
    if verb:
        getattr(store.lifecycle, verb)("demo")
    state = store.studies.get("demo").state
    with pytest.raises(Conflict, match=f"is {state} and 1 of its trials run; stop or cancel it"):
        store.deleting.mark("demo")
    assert store.studies.get("demo").state is state
    assert store.deleting.lately() == []
    assert store.deleting.mark("demo", force=True).state is StudyState.DELETING


def test_an_ended_study_is_deleted_and_its_name_is_free(
    store: Store, create: Create, claim: Claim, worker_id: uuid.UUID
) -> None:
    create(n_trials=1)
    store.claims.complete(lease_of(claim()), 1.0, {})
    first = store.deleting.mark("demo")
    assert store.deleting.mark("demo").uuid == first.uuid, "it is safe to repeat"
    with pytest.raises(StudyExists, match="is being deleted; try again"):
        store.studies.create(definition(n_trials=1), given=frozenset())
    assert store.claims.claim(request(worker_id)) is None
    assert store.deleting.purge() == 1
    for call in (store.studies.get, store.deleting.mark):
        with pytest.raises(NotFound):
            call("demo")
    create(n_trials=1)
    again = store.studies.get("demo")
    assert (again.uuid != first.uuid, again.n_started) == (True, 0)
    assert claim().number == 0


def test_nothing_changes_a_study_that_is_being_deleted(store: Store, create: Create) -> None:
    create()
    store.deleting.mark("demo", force=True)
    before = store.studies.get("demo")
    changes: Sequence[Change] = (
        store.lifecycle.archive,
        store.lifecycle.resume,
        lambda name: store.lifecycle.cancel(name, now=True),
        lambda name: store.lifecycle.amend(name, {"n_trials": 9}),
        lambda name: store.lifecycle.amend(name, {"tags": ["a"]}),
    )
    for change in changes:
        with pytest.raises(Conflict):
            change("demo")
    store.claims.reap()
    assert store.studies.get("demo") == before


def test_its_workers_learn_that_their_leases_are_gone(
    store: Store, create: Create, claim: Claim, worker_id: uuid.UUID
) -> None:
    create()
    tokens = [claim().token, claim().token]
    study_uuid = str(store.studies.get("demo").uuid)
    assert store.claims.renew(worker_id, tokens) == []
    store.deleting.mark("demo", force=True)
    assert store.claims.renew(worker_id, tokens) == tokens
    assert list(store.deleting.lately()) == [study_uuid]


def test_deleted_studies_are_told_for_a_week(
    store: Store, create: Create, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuids = []
    for name in ("first", "second", "third"):
        create(name=name)
        uuids.append(str(store.deleting.mark(name, force=True).uuid))
        store.deleting.purge()
    monkeypatch.setattr(deleting, "MAX_TOLD", 2)
    assert list(store.deleting.lately()) == uuids[:0:-1], "the newest first, and no more than that"
    clock.advance(deleting.KEPT_SECONDS + 1)
    assert store.deleting.purge() == 0
    assert store.deleting.lately() == []


def test_what_a_crash_leaves_is_purged_by_the_next(
    store: Store,
    create: Create,
    claim: Claim,
    stock: RDBStorage,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = n_rows(clock)
    create(metric="loss")
    fill(store, claim, stock)
    store.deleting.mark("demo", force=True)
    execute, n_allowed = deleting._execute, 0

    def execute_some(statement: sa.Delete, connection: sa.Connection) -> None:
        nonlocal n_left
        if n_left == 0:
            raise Unavailable("The database has gone.")
        n_left -= 1
        execute(statement, connection)

    monkeypatch.setattr(deleting, "_execute", execute_some)
    while True:
        n_left = n_allowed
        if store.deleting.purge():
            break
        assert store.studies.get("demo").state is StudyState.DELETING
        n_allowed += 1
    assert n_allowed > 10
    kept = ("hpo_event", "hpo_deleted_study", "hpo_worker", "hpo_reaper")
    after = n_rows(clock)
    assert {k: n for k, n in after.items() if k not in kept} == {
        k: n for k, n in before.items() if k not in kept
    }


def test_as_many_statements_for_a_thousand_trials_as_for_ten(
    store: Store, create: Create, stock: RDBStorage
) -> None:
    counts = []
    for n_trials in (10, 1000):
        create(name="large", n_trials=n_trials)
        add_trials(store, stock, n_trials)
        statements: list[str] = []
        store.deleting.mark("large", force=True)
        store.watch_statements(lambda kind, _seconds, seen=statements: seen.append(kind))  # type: ignore[misc]  # a default binds it
        assert store.deleting.purge() == 1
        counts.append(len(statements))
    assert counts[0] == counts[1] < 50


def add_trials(store: Store, stock: RDBStorage, n_trials: int) -> None:
    """Trials with a step each, in Optuna's tables and in ours."""
    study_id = stock.get_study_id_from_name("large")
    study_uuid = str(store.studies.get("large").uuid)
    with stock.engine.begin() as connection:
        insert = t.trials.insert().returning(t.trials.c.trial_id, sort_by_parameter_order=True)
        rows = [{"number": n, "study_id": study_id, "state": "FAIL"} for n in range(n_trials)]
        ids = connection.execute(insert, rows).scalars().all()
        kind = t.StepType.FINITE
        steps = [{"intermediate_value": 0.5, "intermediate_value_type": kind, "step": 0}]
        connection.execute(
            t.trial_steps.insert(), [{"trial_id": i, **step} for i in ids for step in steps]
        )
        mine: dict[str, Any] = {"study_uuid": study_uuid, "n_attempts": 1, "message": ""}
        connection.execute(
            t.hpo_trial.insert(),
            [{**mine, "number": n, "trial_id": trial_id} for n, trial_id in enumerate(ids)],
        )


def test_a_new_study_with_an_old_ones_id_is_not_taken_for_it(
    store: Store, create: Create, claim: Claim, stock: RDBStorage
) -> None:
    """SQLite gives the ids of what was deleted to what comes next."""
    cached = store.optuna_storage()
    for delete in (
        lambda: store.deleting.mark("demo"),
        lambda: optuna.delete_study(study_name="demo", storage=stock),
    ):
        create(n_trials=3)
        for value in (1.0, 2.0, 3.0):
            store.claims.complete(lease_of(claim()), value, {})
        study_id = cached.get_study_id_from_name("demo")
        assert len(cached.get_all_trials(study_id)) == 3
        delete()
        store.deleting.purge()
        create(n_trials=2)
        store.claims.complete(lease_of(claim()), 9.0, {})
        claim()
        study_id = cached.get_study_id_from_name("demo")
        trials = cached.get_all_trials(study_id)
        assert [trial.values for trial in trials] == [[9.0], None]
        assert [cached.get_trial(trial._trial_id).number for trial in trials] == [0, 1]
        store.deleting.mark("demo", force=True)
        store.deleting.purge()


def test_a_sampler_that_was_at_it_hands_nothing_over(
    store: Store, create: Create, worker_id: uuid.UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    create()
    search = store.deleting._search
    sampled = search.sampled

    def delete_first(*given: Any) -> Any:
        store.deleting.mark("demo", force=True)
        store.deleting.purge()
        return sampled(*given)

    monkeypatch.setattr(search, "sampled", delete_first)
    assert store.claims.claim(request(worker_id)) is None
    create()
    monkeypatch.undo()
    assert store.claims.claim(request(worker_id)) is not None


def test_a_creation_repeated_after_the_study_was_deleted_says_so(store: Store) -> None:
    made = definition()
    store.studies.create(made, given=frozenset(), key="again")
    store.deleting.mark("demo", force=True)
    assert store.deleting.purge() == 1
    with pytest.raises(Conflict, match="another Idempotency-Key"):
        store.studies.create(made, given=frozenset(), key="again")
    assert store.studies.create(made, given=frozenset(), key="new")[1]
