"""Events: an append-only table, written in the transaction of what it tells, read in one order.

The order is (transaction, id), and only transactions below the oldest open one are read: so what
a reader has seen never gets a late neighbour, and its place in the stream is one `Cursor`.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import sqlalchemy as sa
from sqlalchemy.sql.dml import UpdateBase

from hpo.errors import InvalidField
from hpo.events import EventKind
from hpo.numbers import strict
from storage import tables as t
from storage.engine import Database, db_now, oldest_open_transaction, transaction_id
from storage.statements import given, inserted

# How many old events one look takes away.
BITE = 2_000
_CURSOR = re.compile(r"(\d{1,18})-(\d{1,18})")


class Cursor(NamedTuple):
    """A place in the stream: that of the last event read."""

    transaction_id: int
    id: int

    def __str__(self) -> str:
        return f"{self.transaction_id}-{self.id}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Reads an event's id; "0" is the place before all events. Raises InvalidField."""
        if text == "0":
            return BEGINNING
        found = _CURSOR.fullmatch(text)
        if found is None:
            raise InvalidField("after", f"must be the id of an event, or 0, got {text[:60]!r}")
        return cls(int(found[1]), int(found[2]))


BEGINNING = Cursor(0, 0)


class OfStudy(Protocol):
    """A row of hpo_study, or what else knows both names of a study."""

    @property
    def uuid(self) -> str: ...
    @property
    def name(self) -> str: ...


class StudyKey(NamedTuple):
    uuid: str
    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredEvent:
    """An event as it stands in the table."""

    cursor: Cursor
    kind: str
    study_uuid: str | None
    study_name: str | None
    number: int | None
    data: dict[str, Any]
    created_at: dt.datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class EventRetention:
    """How long events are kept, and how many about."""

    days: float = 7.0
    rows: int = 200_000

    def __post_init__(self) -> None:
        if not 0 < self.days <= 3650:
            raise InvalidField("event_days", f"must be above 0 and 3650 at most, got {self.days}")
        if self.rows < 1:
            raise InvalidField("event_rows", f"must be 1 or more, got {self.rows}")


def append(
    connection: sa.Connection,
    kind: EventKind,
    study: OfStudy | None = None,
    number: int | None = None,
    **data: Any,
) -> None:
    """Writes an event in the transaction of what it tells; listeners learn after its commit."""
    connection.execute(
        t.hpo_event.insert().values(
            transaction_id=transaction_id(),
            study_uuid=None if study is None else study.uuid,
            study_name=None if study is None else study.name,
            number=number,
            kind=kind.value,
            data=strict(data),
            created_at=db_now(),
        )
    )
    Database.tell(connection)


def appended(kind: EventKind, held: Any) -> UpdateBase:
    """As `append`, for a write under a guard: its `event_data` must be strict JSON."""
    event = t.hpo_event.c
    columns = {
        "transaction_id": transaction_id(),
        "study_uuid": held.study_uuid,
        "study_name": given(event.study_name),
        "number": held.number,
        "kind": sa.literal(kind.value, event.kind.type),
        "data": given(event.data, "event_data"),
        "created_at": db_now(),
    }
    return inserted(t.hpo_event, columns)


def is_overtaken(connection: sa.Connection, study_uuid: str) -> bool:
    """Whether others have told of a study what comes later in the order than this transaction.

    A trial may end while a transaction waits for the study's lock or holds it.
    """
    event = t.hpo_event.c
    later = sa.exists().where(
        event.study_uuid == study_uuid, event.transaction_id > transaction_id()
    )
    return bool(connection.execute(sa.select(later)).scalar_one())


class Events:
    """Reads and prunes the events of one database."""

    def __init__(self, database: Database, retention: EventRetention) -> None:
        self._database, self._retention = database, retention

    def on_news(self, call: Any) -> None:
        """Calls, from any thread, after each transaction of this process that wrote events."""
        self._database.on_news = call

    def head(self) -> Cursor:
        """The place of the newest event that can be read."""

        def read(connection: sa.Connection) -> Cursor:
            event = t.hpo_event.c
            row = connection.execute(
                sa.select(event.transaction_id, event.id)
                .where(event.transaction_id < oldest_open_transaction())
                .order_by(event.transaction_id.desc(), event.id.desc())
                .limit(1)
            ).one_or_none()
            return BEGINNING if row is None else Cursor(*row)

        return self._database.read(read)

    def knows(self, cursor: Cursor) -> bool:
        """Whether nothing after this place has been pruned."""
        if cursor == BEGINNING:
            return True
        event = t.hpo_event.c
        is_there = (event.transaction_id == cursor.transaction_id, event.id == cursor.id)
        select = sa.select(event.id).where(*is_there)
        return self._database.read(lambda c: c.execute(select).first() is not None)

    def after(
        self, cursor: Cursor, *, study_uuid: str | None = None, limit: int = 500
    ) -> list[StoredEvent]:
        """Events beyond a place, in their order; of one study, if it is named."""

        def read(connection: sa.Connection) -> list[StoredEvent]:
            event = t.hpo_event.c
            select = (
                sa.select(t.hpo_event)
                .where(event.transaction_id < oldest_open_transaction(), _is_beyond(cursor))
                .order_by(event.transaction_id, event.id)
                .limit(limit)
            )
            if study_uuid is not None:
                select = select.where(event.study_uuid == study_uuid)
            return [_event(row) for row in connection.execute(select)]

        return self._database.read(read)

    def prune(self) -> bool:
        """Drops a bite of what is too old or too much; whether there may be more of it."""
        return self._database.write(self._prune)

    def _prune(self, connection: sa.Connection) -> bool:
        event = t.hpo_event.c
        newest = connection.execute(sa.select(sa.func.max(event.id))).scalar_one()
        if newest is None:
            return False
        is_old = sa.or_(
            event.created_at < db_now(-self._retention.days * 24 * 3600),
            event.id <= newest - self._retention.rows,
        )
        rows: Sequence[sa.Row[Any]] = connection.execute(
            sa.select(event.transaction_id, event.id, is_old.label("is_old"))
            .order_by(event.transaction_id, event.id)
            .limit(BITE)
        ).all()
        old = [Cursor(row.transaction_id, row.id) for row in rows if row.is_old]
        if not old:
            return False
        # All up to the last old one, so that what is kept has no gap.
        connection.execute(t.hpo_event.delete().where(sa.not_(_is_beyond(old[-1]))))
        return len(old) == BITE


def _is_beyond(cursor: Cursor) -> sa.ColumnElement[bool]:
    event = t.hpo_event.c
    place = sa.tuple_(event.transaction_id, event.id)
    return place > sa.tuple_(*(sa.literal(part, sa.BigInteger()) for part in cursor))


def _event(row: sa.Row[Any]) -> StoredEvent:
    return StoredEvent(
        cursor=Cursor(row.transaction_id, row.id),
        kind=row.kind,
        study_uuid=row.study_uuid,
        study_name=row.study_name,
        number=row.number,
        data=row.data,
        created_at=row.created_at,
    )
