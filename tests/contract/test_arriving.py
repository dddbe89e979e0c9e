"""Studies that come in pieces, on every backend: whole or not at all, and in nobody's way."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from hpo.errors import NotFound, Unavailable
from hpo.study import StudyDefinition, StudyState
from hpo.trial import TrialState
from storage import tables as t
from storage.arriving import CUT_OFF_SECONDS, Arrival
from storage.bulk import CHUNK, TrialRows, insert_trials
from storage.store import Store
from storage.transfer import StudyCopy, TrialCopy
from tests.builders import definition, request

NEW = definition(name="new")


def three_trials(arrival: Arrival) -> Callable[[sa.Connection], None]:
    trials = [TrialRows(number=number, state="WAITING") for number in range(3)]

    def write(connection: sa.Connection) -> None:
        insert_trials(connection, arrival.study_id, trials)

    return write


def n_rows(store: Store) -> dict[str, int]:
    def read(connection: sa.Connection) -> dict[str, int]:
        tables = (t.studies, t.study_system_attrs, t.trials, t.hpo_study, t.hpo_arrival)
        return {
            table.name: connection.execute(
                sa.select(sa.func.count()).select_from(table)
            ).scalar_one()
            for table in tables
        }

    return store._database.read(read)


def test_nobody_sees_a_study_before_its_last_piece(store: Store, worker_id: uuid.UUID) -> None:
    nothing = n_rows(store)
    with store.deleting.arriving(NEW, str(uuid.uuid4())) as arrival:
        arrival.add(three_trials(arrival))
        assert n_rows(store)["trials"] == 3
        assert store.studies.page().items == []
        with pytest.raises(NotFound):
            store.studies.get("new")
        assert store.claims.claim(request(worker_id)) is None
    assert n_rows(store) == nothing  # it was never finished


def test_what_was_cut_off_is_swept_and_takes_nothing_more(store: Store) -> None:
    nothing = n_rows(store)
    arrival = Arrival(store._database, NEW, str(uuid.uuid4()))
    arrival.add(three_trials(arrival))
    store.deleting.purge()
    assert n_rows(store)["trials"] == 3
    long_ago = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=CUT_OFF_SECONDS + 1)
    store._database.write(lambda c: c.execute(t.hpo_arrival.update().values(touched_at=long_ago)))
    store.deleting.purge()
    assert n_rows(store) == nothing
    with pytest.raises(Unavailable, match="swept"):
        arrival.add(three_trials(arrival))
    with pytest.raises(Unavailable, match="swept"):
        store._database.write(lambda c: arrival.finish(c, columns={}))
    assert n_rows(store) == nothing


def test_a_piece_whose_commit_got_no_answer_is_written_once(store: Store) -> None:
    arrival = Arrival(store._database, NEW, str(uuid.uuid4()))
    arrival.add(three_trials(arrival))
    arrival._n_pieces -= 1
    arrival.add(three_trials(arrival))
    store._database.write(lambda c: arrival.finish(c, columns={}))
    assert store.studies.get("new").counts[TrialState.WAITING] == 3


def test_others_write_while_a_study_comes(
    store: Store, create: Callable[..., StudyDefinition]
) -> None:
    def trials() -> Iterator[TrialCopy]:
        for number in range(2 * CHUNK + 1):
            if number % CHUNK == 1:
                create(name=f"meanwhile-{number}")
            yield TrialCopy(number=number, state=TrialState.FAIL, is_counted=True)

    copy: dict[str, Any] = {"ended_at": None, "reason": None, "ran_seconds": 0.0}
    study = StudyCopy(
        definition=NEW, state=StudyState.STOPPED, created_at=dt.datetime.now(dt.UTC), **copy
    )
    imported = store.importing.write(study, trials(), key="k", fingerprint="f")
    assert (imported.n_trials, imported.study.n_started) == (2 * CHUNK + 1, 2 * CHUNK + 1)
    assert len(store.studies.page().items) == 3
    again = store.importing.write(study, iter(()), key="k", fingerprint="f")
    assert again == imported
    assert n_rows(store)["hpo_arrival"] == 0
