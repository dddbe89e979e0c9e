"""Studies that come in pieces: each in a short transaction, none to be seen before the last one.

Thousands of trials in one transaction would hold SQLite's lock for seconds, and all of them in
memory. Until the last piece Optuna's row of the study has a name that no study of ours can have,
and there is none in hpo_study. What nobody has added to for a while was cut off, and is swept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from hpo.errors import Unavailable
from hpo.study import StudyDefinition
from storage import tables as t
from storage.engine import Database, db_now, insert_if_new
from storage.studies import insert_optuna_study, insert_study

# No piece takes so long.
CUT_OFF_SECONDS = 600.0
_SWEPT = -1


class Arrival:
    """One study on its way in. Any transaction may be tried again: no piece is written twice."""

    def __init__(self, database: Database, definition: StudyDefinition, uuid: str) -> None:
        self._database, self._definition, self.uuid = database, definition, uuid
        self._n_pieces = 0
        self.study_id = database.write(self._begin)

    def add(self, write: Callable[[sa.Connection], None]) -> None:
        """Writes one more piece. Raises Unavailable when the study was taken for cut off."""
        number = self._n_pieces

        def transaction(connection: sa.Connection) -> None:
            if _turn(connection, self.uuid, number):
                write(connection)

        self._database.write(transaction)
        self._n_pieces += 1

    def finish(
        self, connection: sa.Connection, *, columns: Mapping[str, Any], **facts: Any
    ) -> None:
        """Makes the study one that everybody sees, in the caller's transaction."""
        arrival, mine = t.hpo_arrival.c, t.studies.c.study_id == self.study_id
        here = sa.and_(arrival.uuid == self.uuid, arrival.n_pieces == self._n_pieces)
        if connection.execute(t.hpo_arrival.delete().where(here)).rowcount == 0:
            _refuse_swept()
        connection.execute(t.studies.update().where(mine).values(study_name=self._definition.name))
        insert_study(
            connection,
            self._definition,
            self.uuid,
            study_id=self.study_id,
            columns=columns,
            **facts,
        )

    def _begin(self, connection: sa.Connection) -> int:
        row = {"uuid": self.uuid, "study_id": 0, "n_pieces": 0, "touched_at": db_now()}
        mine = t.hpo_arrival.c.uuid == self.uuid
        if not insert_if_new(connection, t.hpo_arrival, row):
            begun = sa.select(t.hpo_arrival.c.study_id).where(mine)
            return int(connection.execute(begun).scalar_one())
        name = f"hpo:arriving:{self.uuid}"
        study_id = insert_optuna_study(connection, self._definition, self.uuid, name)
        connection.execute(t.hpo_arrival.update().where(mine).values(study_id=study_id))
        return study_id


def _turn(connection: sa.Connection, uuid: str, number: int) -> bool:
    """Whether this piece is still to be written."""
    arrival = t.hpo_arrival.c
    mine = sa.and_(arrival.uuid == uuid, arrival.n_pieces == number)
    move = t.hpo_arrival.update().where(mine)
    if connection.execute(move.values(n_pieces=number + 1, touched_at=db_now())).rowcount:
        return True
    found = sa.select(arrival.n_pieces).where(arrival.uuid == uuid)
    if connection.execute(found).scalar_one_or_none() != number + 1:
        _refuse_swept()
    return False


def _refuse_swept() -> None:
    raise Unavailable("The study took too long to come, and was swept; send it again.")


def take_cut_off(connection: sa.Connection, uuid: str | None = None) -> Sequence[sa.Row[Any]]:
    """Rows of hpo_arrival: of this study, or of those that were cut off. Nothing comes any more."""
    arrival = t.hpo_arrival.c
    is_old = sa.or_(arrival.touched_at < db_now(-CUT_OFF_SECONDS), arrival.n_pieces == _SWEPT)
    which = is_old if uuid is None else arrival.uuid == uuid
    found = connection.execute(sa.select(t.hpo_arrival).where(which).with_for_update()).all()
    uuids = [row.uuid for row in found]
    if uuids:
        taken = t.hpo_arrival.update().where(arrival.uuid.in_(uuids))
        connection.execute(taken.values(n_pieces=_SWEPT))
    return found


def forget_arrival(connection: sa.Connection, uuid: str) -> None:
    """Called when all that had come of it is gone."""
    connection.execute(t.hpo_arrival.delete().where(t.hpo_arrival.c.uuid == uuid))
