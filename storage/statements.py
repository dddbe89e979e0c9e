"""Statements of the hot paths: built once, then handed to the driver as text.

SQLAlchemy needs ten times as long to walk through an expression as a database to carry it out.
So an expression is compiled when a dialect meets it first, and from then on only its values change.

`Guarded` is a write that stands under a condition: PostgreSQL takes it as one statement, which is
a transaction of its own; SQLite, which cannot, takes its parts one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.sql.dml import UpdateBase

from storage.engine import Database

Values = Mapping[str, Any]
Held = Any  # the columns of what a guard has found, by name
Guard = sa.Select[Any] | UpdateBase


def given(column: sa.ColumnElement[Any], name: str | None = None) -> sa.ColumnElement[Any]:
    """The place of a value for a column; a null has a type as well, on PostgreSQL."""
    place: Any = sa.bindparam(name or column.key, type_=column.type)
    return sa.cast(place, column.type) if isinstance(column.type, sa.Double) else place


def inserted(table: sa.Table, columns: Mapping[str, Any]) -> sa.Insert:
    """An insert of a row for each that a guard has found."""
    return table.insert().from_select(list(columns), sa.select(*columns.values()))


class Prepared:
    """An expression that is compiled once for each dialect; IN takes no list of values here."""

    def __init__(self, statement: Any) -> None:
        self._statement = statement
        self._texts: dict[str, _Text] = {}

    def __call__(self, connection: sa.Connection, values: Values) -> sa.CursorResult[Any]:
        """Carries it out with these values."""
        text = self._texts.get(connection.dialect.name)
        if text is None:
            text = self._texts[connection.dialect.name] = _text(self._statement, connection.dialect)
        return connection.exec_driver_sql(text.sql, text.bound(values))


class _Text(NamedTuple):
    sql: str
    order: Sequence[str] | None  # of places that have no names
    fixed: Values
    processors: Mapping[str, Callable[[Any], Any]]

    def bound(self, values: Values) -> Any:
        bound = {**self.fixed, **values}
        for name, process in self.processors.items():
            bound[name] = process(bound[name])
        return bound if self.order is None else tuple(map(bound.__getitem__, self.order))


def _text(statement: Any, dialect: sa.Dialect) -> _Text:
    compiled = statement.compile(dialect=dialect)
    fixed: dict[str, Any] = {}
    processors: dict[str, Callable[[Any], Any]] = {}
    for place, name in compiled.bind_names.items():
        process = place.type.dialect_impl(dialect).bind_processor(dialect)
        if not place.required:
            fixed[name] = place.value if process is None else process(place.value)
        elif process is not None:
            processors[name] = process
    return _Text(str(compiled), compiled.positiontup, fixed, processors)


class Guarded:
    """A guard that finds one row or none, and what is written if it does.

    `writes` makes inserts, updates and deletes from the columns that the guard answers. A guard
    that only reads locks the row that it finds.
    """

    def __init__(self, guard: Guard, writes: Callable[[Held], Sequence[UpdateBase]]) -> None:
        held = guard.cte("held")
        parts = [part.cte(f"part_{index}") for index, part in enumerate(writes(held.c))]
        self._as_one = Prepared(sa.select(*held.c).add_cte(*parts))
        places = {
            column.key: sa.bindparam(f"held_{column.key}", type_=column.type) for column in held.c
        }
        self._guard = Prepared(guard)
        self._writes = [Prepared(part) for part in writes(_Places(places))]

    def write(self, database: Database, values: Values) -> sa.Row[Any] | None:
        """What the guard found; None where it did not hold, and nothing was written.

        What is written has an event in it.
        """

        def part(connection: sa.Connection) -> sa.Row[Any] | None:
            found = self.on(connection, values)
            if found is not None:
                database.tell(connection)
            return found

        try:
            return database.write_one(part)
        except sa.exc.IntegrityError:  # another program has written a row of these
            return None

    def on(self, connection: sa.Connection, values: Values) -> sa.Row[Any] | None:
        """As `write`, within a transaction."""
        if connection.dialect.name != "sqlite":
            return self._as_one(connection, values).one_or_none()
        found = self._guard(connection, values).one_or_none()
        if found is not None:
            held = {f"held_{name}": value for name, value in found._mapping.items()}
            for write in self._writes:
                write(connection, {**values, **held}).close()
        return found


class _Places:
    """Stands in for the columns of a guard where its row is known."""

    def __init__(self, places: Mapping[str, sa.ColumnElement[Any]]) -> None:
        self._places = places

    def __getattr__(self, name: str) -> sa.ColumnElement[Any]:
        return self._places[name]


def written_under(
    connection: sa.Connection,
    guard: Guard,
    write: Callable[[Held], UpdateBase],
    answer: sa.ColumnElement[Any],
) -> Collection[Any] | None:
    """As `Guarded`, for many rows: a column of what was written, None where the guard failed."""
    if connection.dialect.name == "sqlite":
        found = connection.execute(guard).one_or_none()
        if found is None:
            return None
        return connection.execute(write(found).returning(answer)).scalars().all()
    held = guard.cte("held")
    part = write(held.c).returning(answer).cte("part")
    select = sa.select(*part.c).select_from(held.outerjoin(part, sa.true()))
    rows = connection.execute(select).scalars().all()
    return rows or None
