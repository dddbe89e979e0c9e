"""Studies go in two steps: first marked, then removed table by table, by whoever comes to it.

Marking takes the leases away, so nobody writes to the study any more and its workers end their
children. What follows may be long for a large study; each step is one statement for a whole table
and one short transaction, and an API process that dies in between leaves the rest to the next one.
The UUIDs of deleted studies are kept for some days: workers are told them, and remove checkpoints.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from hpo.errors import Conflict, HpoError
from hpo.events import EventKind
from hpo.study import StudyDefinition, StudyState
from storage import tables as t
from storage.arriving import Arrival, forget_arrival, take_cut_off
from storage.ending import take_leases
from storage.engine import Database, db_now
from storage.events import append
from storage.records import StudyRecord
from storage.search import Search
from storage.studies import UUID_KEY, Studies, locked_study

logger = logging.getLogger(__name__)

KEPT_SECONDS = 7 * 24 * 3600.0
# So many are told to a worker at each heartbeat, the newest ones.
MAX_TOLD = 200

_MARK = {"state": StudyState.DELETING, "reason": "Deleted on request.", "stop_reason": None}
# Its rows name files; `Models.sweep` removes both when the study is gone.
_LEFT_TO_OTHERS = {t.hpo_model}


class Deleting:
    """Deletes studies, and keeps the promise over crashes."""

    def __init__(self, database: Database, studies: Studies, search: Search) -> None:
        self._database, self._studies, self._search = database, studies, search
        self.n_purged = 0  # by this process

    def mark(self, name: str, *, force: bool = False) -> StudyRecord:
        """Nobody works on the study from now on; `purge` removes it. Safe to repeat.

        Raises NotFound, and Conflict unless it has ended and nothing of it runs, or `force`.
        """

        def transaction(connection: sa.Connection) -> StudyRecord:
            study = locked_study(connection, name)
            if not force:
                _refuse_living(connection, study)
            _mark(connection, study)
            return self._studies.read(connection, name)  # it may be gone a moment later

        return self._database.write(transaction)

    def lately(self) -> Sequence[str]:
        """The UUIDs of studies that are being deleted or were, the newest first."""
        gone = t.hpo_deleted_study.c
        newest = sa.select(gone.uuid).order_by(gone.deleted_at.desc()).limit(MAX_TOLD)
        return self._database.read_one(lambda c: c.execute(newest).scalars().all())

    @contextlib.contextmanager
    def arriving(self, definition: StudyDefinition, uuid: str) -> Iterator[Arrival]:
        """A study that comes in pieces; it is swept unless it has come whole after the block."""
        try:
            yield Arrival(self._database, definition, uuid)
        finally:
            with contextlib.suppress(HpoError):  # then `purge` sweeps it
                self._sweep(uuid)

    def purge(self) -> int:
        """Removes what is marked, and what other programs deleted; answers how many studies."""
        self._database.write(_tidy)
        self._sweep()
        self._search.forget(self._database.read(_tombstones))
        n_purged = 0
        for study in self._database.read(_marked):
            try:
                self._purge(study)
            except (HpoError, sa.exc.IntegrityError) as error:  # tried again; the others go on
                logger.warning("study %s cannot be deleted now: %s", study.name, error)
            else:
                n_purged += 1
        self.n_purged += n_purged
        return n_purged

    def _sweep(self, uuid: str | None = None) -> None:
        """Removes what has come of this study, or of those that were cut off on their way in."""
        for cut_off in self._database.write(lambda c: take_cut_off(c, uuid)):
            self._delete_rows(cut_off.uuid)
            self._database.write(lambda c, uuid=cut_off.uuid: _finish_sweep(c, uuid))  # type: ignore[misc]  # a default binds it
            self._search.drop(cut_off.study_id)
            self.n_purged += 1
            logger.info("what had come of the study %s is deleted", cut_off.uuid)

    def _delete_rows(self, uuid: str) -> None:
        for delete in _deletes(uuid):
            self._database.write(functools.partial(_execute, delete))

    def _purge(self, study: sa.Row[Any]) -> None:
        # A sampler that is still at it would write its attributes to rows that are going.
        with self._search.alone(study.study_id):
            self._delete_rows(study.uuid)
            self._database.write(lambda c: _finish(c, study))
            self._search.drop(study.study_id)
        logger.info("study %s, %s, is deleted", study.name, study.uuid)


def _execute(statement: sa.Delete, connection: sa.Connection) -> None:
    connection.execute(statement)


def _refuse_living(connection: sa.Connection, study: sa.Row[Any]) -> None:
    leases = sa.select(sa.func.count()).where(t.hpo_lease.c.study_uuid == study.uuid)
    n_running = connection.execute(leases).scalar_one()
    state = StudyState(study.state)
    if state is StudyState.DELETING or (state.is_ended and not n_running):
        return
    raise Conflict(
        f"Study {study.name!r} is {state} and {n_running} of its trials run; stop or cancel it and "
        "delete it when it has ended, or send force=true (--force), which ends them now.",
        study=study.name,
        state=state,
        n_running=n_running,
    )


def _mark(connection: sa.Connection, study: sa.Row[Any]) -> None:
    mine = sa.and_(t.hpo_study.c.uuid == study.uuid, t.hpo_study.c.state != StudyState.DELETING)
    if connection.execute(t.hpo_study.update().where(mine).values(**_MARK)).rowcount == 0:
        return
    take_leases(connection, study)
    tombstone = {"uuid": study.uuid, "deleted_at": db_now()}
    connection.execute(t.hpo_deleted_study.insert().values(tombstone))
    append(connection, EventKind.STUDY_STATE, study, state=_MARK["state"], reason=_MARK["reason"])


def _tidy(connection: sa.Connection) -> None:
    _mark_vanished(connection)
    gone = t.hpo_deleted_study
    is_known = sa.exists().where(t.hpo_study.c.uuid == gone.c.uuid)
    connection.execute(
        gone.delete().where(gone.c.deleted_at < db_now(-KEPT_SECONDS), sa.not_(is_known))
    )


def _mark_vanished(connection: sa.Connection) -> None:
    """Studies that another Optuna program has deleted go the same way."""
    study = t.hpo_study.c
    is_vanished = sa.not_(sa.exists().where(*_is_uuid_of(study.study_id, study.uuid)))
    select = sa.select(t.hpo_study).where(study.state != StudyState.DELETING, is_vanished)
    for row in connection.execute(select).all():
        logger.info("study %s was deleted by another Optuna program", row.name)
        _mark(connection, row)


def _is_uuid_of(study_id: Any, uuid: Any) -> Sequence[sa.ColumnElement[bool]]:
    """Optuna's row of a study says the UUID: SQLite gives its id to another one after a delete."""
    attr = t.study_system_attrs.c
    return (attr.study_id == study_id, attr.key == UUID_KEY, attr.value_json == '"' + uuid + '"')


def _tombstones(connection: sa.Connection) -> Sequence[str]:
    return connection.execute(sa.select(t.hpo_deleted_study.c.uuid)).scalars().all()


def _marked(connection: sa.Connection) -> Sequence[sa.Row[Any]]:
    marked = t.hpo_study.c.state == StudyState.DELETING
    return connection.execute(sa.select(t.hpo_study).where(marked)).all()


def tables_of_study() -> Iterator[sa.Table]:
    """Our tables with rows of a study, which these name by its UUID."""
    for table in t.metadata.sorted_tables:
        if "study_uuid" in table.c and table not in _LEFT_TO_OTHERS:
            yield table


def _deletes(uuid: str) -> Iterator[sa.Delete]:
    """What goes before Optuna's own row of the study, which says whose its trials are."""
    for table in tables_of_study():
        yield table.delete().where(table.c.study_uuid == uuid)
    attr = t.study_system_attrs.c
    study_id = sa.select(attr.study_id).where(
        attr.key == UUID_KEY, attr.value_json == json.dumps(uuid)
    )
    trial_ids = sa.select(t.trials.c.trial_id).where(t.trials.c.study_id.in_(study_id))
    for column in _references(t.trials.c.trial_id):
        yield column.table.delete().where(column.in_(trial_ids))
    yield t.trials.delete().where(t.trials.c.study_id.in_(study_id))


def _references(key: sa.Column[Any]) -> Iterator[sa.Column[Any]]:
    """Optuna's columns that point to a key of Optuna's."""
    for table in key.table.metadata.sorted_tables:
        for foreign in table.foreign_keys:
            if foreign.column is key:
                yield foreign.parent


def _finish(connection: sa.Connection, study: sa.Row[Any]) -> None:
    """The study's own rows in one transaction: with them goes what finds the others."""
    _delete_optuna_study(connection, study.uuid)
    gone = connection.execute(t.hpo_study.delete().where(t.hpo_study.c.uuid == study.uuid))
    if gone.rowcount:  # another process may have been at it, too
        append(connection, EventKind.STUDY_DELETED, study)


def _finish_sweep(connection: sa.Connection, uuid: str) -> None:
    _delete_optuna_study(connection, uuid)
    forget_arrival(connection, uuid)


def _delete_optuna_study(connection: sa.Connection, uuid: str) -> None:
    mine = sa.select(t.studies.c.study_id).where(
        *_is_uuid_of(t.studies.c.study_id, sa.literal(uuid))
    )
    study_id = connection.execute(mine).scalar_one_or_none()
    if study_id is not None:
        for column in _references(t.studies.c.study_id):
            connection.execute(column.table.delete().where(column == study_id))
        connection.execute(t.studies.delete().where(t.studies.c.study_id == study_id))
