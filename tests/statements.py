"""Counts what a store says to its database: statements, BEGIN and COMMIT where they are sent."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

from storage.store import Store


@contextlib.contextmanager
def sent_by(store: Store) -> Iterator[list[str]]:
    """What is sent inside the block; on PostgreSQL each is a round trip."""
    engine, sent = store._database.engine, list[str]()

    def note(_connection: Any, _cursor: Any, text: str, *_: Any) -> None:
        sent.append(text)

    def is_silent(connection: sa.Connection) -> bool:
        # SQLite's BEGIN is a statement like any other; autocommit on PostgreSQL sends neither.
        driver: Any = connection.connection.driver_connection
        return bool(getattr(driver, "autocommit", False)) or engine.dialect.name == "sqlite"

    def begin(connection: sa.Connection) -> None:
        if not is_silent(connection):
            sent.append("BEGIN")

    def commit(connection: sa.Connection) -> None:
        if engine.dialect.name == "sqlite" or not is_silent(connection):
            sent.append("COMMIT")

    listeners = [("before_cursor_execute", note), ("begin", begin), ("commit", commit)]
    ping = engine.dialect.do_ping

    def counted_ping(connection: Any) -> bool:
        sent.append("PING")
        return ping(connection)

    for name, listener in listeners:
        sa.event.listen(engine, name, listener)
    engine.dialect.do_ping = counted_ping  # type: ignore[method-assign] # of this engine alone
    try:
        yield sent
    finally:
        engine.dialect.do_ping = ping  # type: ignore[method-assign] # as it was
        for name, listener in listeners:
            sa.event.remove(engine, name, listener)
