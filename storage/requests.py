"""Idempotency keys: a request that is sent again gets its first answer, and nothing is done twice.

The key is written in the transaction that does the work, so both stand or neither does.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa

from hpo.errors import IdempotencyKeyReused
from hpo.numbers import strict
from storage import tables as t
from storage.engine import db_now

KEPT_SECONDS = 24 * 3600.0

Answer = dict[str, Any]


def fingerprint_of(document: Mapping[str, Any]) -> str:
    """Tells one request from another; the order of its fields does not count."""
    text = json.dumps(strict(dict(document)), sort_keys=True, allow_nan=False, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def once(
    connection: sa.Connection,
    key: str | None,
    kind: str,
    fingerprint: str,
    make: Callable[[], Answer],
) -> Answer:
    """The answer that this key was given before, or else that of `make`, a JSON object.

    Call it first in a write transaction, before any lock: of two at once, the second waits here.
    Without a key it only calls `make`. Raises IdempotencyKeyReused for another request under the
    same key; `kind` is part of the request.
    """
    if key is None:
        return make()
    if not _insert(connection, key, kind, fingerprint):
        return _first_answer(connection, key, kind, fingerprint)
    answer = make()
    mine = t.hpo_request.c.key == key
    connection.execute(t.hpo_request.update().where(mine).values(answer=answer))
    return answer


def answered(
    connection: sa.Connection, key: str | None, kind: str, fingerprint: str
) -> Answer | None:
    """What the request with this key was answered; for work that takes several transactions.

    Raises IdempotencyKeyReused for another request under the same key.
    """
    mine = sa.select(t.hpo_request.c.key).where(t.hpo_request.c.key == key)
    if key is None or connection.execute(mine).first() is None:
        return None
    return _first_answer(connection, key, kind, fingerprint)


def forget_old(connection: sa.Connection) -> None:
    """Drops the keys of requests that nobody sends again any more."""
    old = t.hpo_request.c.created_at < db_now(-KEPT_SECONDS)
    connection.execute(t.hpo_request.delete().where(old))


def _insert(connection: sa.Connection, key: str, kind: str, fingerprint: str) -> bool:
    row = {"key": key, "kind": kind, "fingerprint": fingerprint, "created_at": db_now()}
    try:
        with connection.begin_nested():
            connection.execute(t.hpo_request.insert().values(row))
    except sa.exc.IntegrityError:
        return False
    return True


def _first_answer(connection: sa.Connection, key: str, kind: str, fingerprint: str) -> Answer:
    stored = connection.execute(sa.select(t.hpo_request).where(t.hpo_request.c.key == key)).one()
    if (stored.kind, stored.fingerprint) != (kind, fingerprint):
        raise IdempotencyKeyReused(
            f"The Idempotency-Key {key!r} belongs to another request; choose a new key, or send "
            "the first request unchanged.",
            key=key,
        )
    answer: Answer = stored.answer
    return answer
