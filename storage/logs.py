"""Logs: what the children of a trial printed, in pieces, with a limit for each attempt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from hpo.errors import LeaseLost
from storage import tables as t
from storage.engine import Database
from storage.records import Lease, LogChunk, LogLine, Page
from storage.studies import row_and_definition

MAX_LOG_CHARACTERS = 4 * 1024 * 1024
# What one answer may hold.
MAX_TAIL_CHARACTERS = 512 * 1024
FULL = "\n[the log of this attempt is full; what came later was dropped]\n"


class Logs:
    """Kept with the trial; written also a moment after the attempt has ended."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def append(self, lease: Lease, chunks: Sequence[LogChunk]) -> None:
        """Adds pieces; one that was added before is left as it is. Raises LeaseLost."""

        def transaction(connection: sa.Connection) -> None:
            study, _ = row_and_definition(connection, lease.study_name)
            attempt = connection.execute(
                sa.select(t.hpo_attempt)
                .where(t.hpo_attempt.c.token == lease.token)
                .where(t.hpo_attempt.c.study_uuid == study.uuid)
                .where(t.hpo_attempt.c.number == lease.number)
                .with_for_update()
            ).one_or_none()
            if attempt is None:
                raise LeaseLost(study=lease.study_name, number=lease.number)
            _append(connection, attempt, chunks)

        self._database.write(transaction)

    def page(
        self,
        study_name: str,
        number: int,
        *,
        after: int | None,
        limit: int,
        attempt: int | None = None,
    ) -> Page[LogLine]:
        """Pieces in the order in which they came, of one attempt or all. Raises NotFound."""

        def read(connection: sa.Connection) -> Page[LogLine]:
            select = _pieces(connection, study_name, number, attempt)
            later = select.where(t.hpo_log.c.id > (after or 0)).order_by(t.hpo_log.c.id)
            rows = connection.execute(later.limit(limit + 1)).all()
            items = [LogLine(**row._mapping) for row in rows[:limit]]
            return Page(items=items, next=items[-1].id if len(rows) > limit else None)

        return self._database.read(read)

    def tail(
        self, study_name: str, number: int, *, n_lines: int, attempt: int | None = None
    ) -> Page[LogLine]:
        """The last lines, from the end of the log back; at most MAX_TAIL_CHARACTERS of them.

        The first piece begins where its line does. Raises NotFound.
        """

        def read(connection: sa.Connection) -> Page[LogLine]:
            select = _pieces(connection, study_name, number, attempt)
            length = sa.func.sum(sa.func.length(t.hpo_log.c.text))
            size = length.over(order_by=t.hpo_log.c.id.desc())
            sized = select.add_columns(size.label("size")).subquery()
            last = sa.select(sized).where(sized.c.size <= MAX_TAIL_CHARACTERS)
            rows = connection.execute(last.order_by(sized.c.id.desc())).all()
            return Page(items=_last_lines(rows, n_lines), next=None)

        return self._database.read(read)


def _pieces(
    connection: sa.Connection, study_name: str, number: int, attempt: int | None
) -> sa.Select[Any]:
    study, _ = row_and_definition(connection, study_name)
    log = t.hpo_log.c
    select = sa.select(log.id, log.attempt, log.sequence, log.text).where(
        log.study_uuid == study.uuid, log.number == number
    )
    return select if attempt is None else select.where(log.attempt == attempt)


def _last_lines(rows: Sequence[sa.Row[Any]], n_lines: int) -> list[LogLine]:
    """The pieces that hold so many lines, in order; `rows` come from the end back."""
    items: list[LogLine] = []
    left = n_lines
    for row in rows:
        # The line break at the very end closes the last line and begins none.
        body = row.text if items else row.text.removesuffix("\n")
        n_breaks = body.count("\n")
        text = row.text if n_breaks < left else _after_break(row.text, body, left)
        items.append(LogLine(id=row.id, attempt=row.attempt, sequence=row.sequence, text=text))
        left -= n_breaks
        if left <= 0:
            break
    return [item for item in reversed(items) if item.text]


def _after_break(text: str, body: str, n_breaks: int) -> str:
    """What follows the n-th line break from the end of `body`."""
    place = len(body)
    for _ in range(n_breaks):
        place = body.rindex("\n", 0, place)
    return text[place + 1 :]


def _append(connection: sa.Connection, attempt: Any, chunks: Sequence[LogChunk]) -> None:
    log = t.hpo_log.c
    mine = sa.and_(
        log.study_uuid == attempt.study_uuid,
        log.number == attempt.number,
        log.attempt == attempt.attempt,
    )
    select = sa.select(sa.func.max(log.sequence), sa.func.sum(sa.func.length(log.text)))
    last, size = connection.execute(select.where(mine)).one()
    size = size or 0
    for chunk in chunks:
        if (last is not None and chunk.sequence <= last) or size > MAX_LOG_CHARACTERS:
            continue
        size += len(chunk.text)
        text = chunk.text.replace("\x00", "\N{REPLACEMENT CHARACTER}")  # PostgreSQL takes no NUL
        connection.execute(
            t.hpo_log.insert().values(
                study_uuid=attempt.study_uuid,
                number=attempt.number,
                attempt=attempt.attempt,
                sequence=chunk.sequence,
                text=text if size <= MAX_LOG_CHARACTERS else text + FULL,
            )
        )
        last = chunk.sequence
