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

    def page(self, study_name: str, number: int, *, after: int | None, limit: int) -> Page[LogLine]:
        """Pieces in the order in which they came, those of all attempts. Raises NotFound."""

        def read(connection: sa.Connection) -> Page[LogLine]:
            study, _ = row_and_definition(connection, study_name)
            log = t.hpo_log.c
            select = (
                sa.select(log.id, log.attempt, log.sequence, log.text)
                .where(log.study_uuid == study.uuid, log.number == number, log.id > (after or 0))
                .order_by(log.id)
                .limit(limit + 1)
            )
            rows = connection.execute(select).all()
            items = [LogLine(**row._mapping) for row in rows[:limit]]
            return Page(items=items, next=items[-1].id if len(rows) > limit else None)

        return self._database.read(read)


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
