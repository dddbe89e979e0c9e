"""Tokens and the sessions of browsers: their digests, and nothing from which one could log in.

A revoked token stays in the list until its name is given again. Once there was a token, the
service asks for one for ever: revoking the last one must not open it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from hpo.access import TOKEN_NAME, Role, digest_of, new_secret
from hpo.errors import Conflict, NotFound
from storage import tables as t
from storage.engine import Database, db_now


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenRecord:
    """What may be shown of a token."""

    name: str
    role: Role
    created_at: dt.datetime
    last_used_at: dt.datetime | None
    revoked_at: dt.datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """Whose token it is that somebody showed."""

    name: str
    role: Role


@dataclass(frozen=True, kw_only=True, slots=True)
class Keys:
    """All that opens the service now, by digest; `any_token_ever` is true from the first on."""

    any_token_ever: bool
    tokens: Mapping[str, Holder]
    sessions: Mapping[str, Holder]


class Tokens:
    """The tokens of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(
        self, name: str, role: Role, *, admin_first: bool = False
    ) -> tuple[TokenRecord, str]:
        """Makes a token; answers its record and the secret, which is not kept.

        Raises Conflict when a living token has this name, and with `admin_first` when it is the
        very first one and no admin's: nobody could make another.
        """
        secret = new_secret()
        row = {
            "role": role.value,
            "digest": digest_of(secret),
            "created_at": db_now(),
            "last_used_at": None,
            "revoked_at": None,
        }

        def write(connection: sa.Connection) -> TokenRecord:
            if admin_first and role is not Role.ADMIN and not _has_any(connection):
                raise Conflict(
                    "The first token must be an admin's, or nobody could make another; make one of "
                    "the role admin first."
                )
            revoked = sa.and_(t.hpo_token.c.name == name, t.hpo_token.c.revoked_at.is_not(None))
            update = t.hpo_token.update().where(revoked).values(row)
            if connection.execute(update).rowcount == 0:
                connection.execute(t.hpo_token.insert().values(name=name, **row))
            return _get(connection, name)

        try:
            return self._database.write(write), secret
        except sa.exc.IntegrityError:
            raise Conflict(
                f"There is a token {name!r}; revoke it first, or choose another name."
            ) from None

    def page(self) -> list[TokenRecord]:
        """All tokens by name, those that were revoked too."""

        def read(connection: sa.Connection) -> list[TokenRecord]:
            select = sa.select(t.hpo_token).order_by(t.hpo_token.c.name)
            return [_record(row) for row in connection.execute(select)]

        return self._database.read(read)

    def revoke(self, name: str) -> None:
        """Ends a token and the sessions that it opened; safe to repeat. Raises NotFound."""
        if not TOKEN_NAME.fullmatch(name):  # not every database could look for it
            raise NotFound(f"There is no token {name!r}.")

        def write(connection: sa.Connection) -> None:
            is_it = t.hpo_token.c.name == name
            living = sa.and_(is_it, t.hpo_token.c.revoked_at.is_(None))
            connection.execute(t.hpo_token.update().where(living).values(revoked_at=db_now()))
            its_digest = sa.select(t.hpo_token.c.digest).where(is_it).scalar_subquery()
            opened = t.hpo_session.c.token_digest == its_digest
            connection.execute(t.hpo_session.delete().where(opened))
            _get(connection, name)

        self._database.write(write)

    def keys(self) -> Keys:
        """Every living token and session, in one statement."""

        def read(connection: sa.Connection) -> Keys:
            token, session = t.hpo_token.c, t.hpo_session.c
            is_open = sa.and_(session.token_digest == token.digest, session.expires_at > db_now())
            select = sa.select(
                token.name, token.role, token.digest, token.revoked_at, session.digest
            ).select_from(t.hpo_token.outerjoin(t.hpo_session, is_open))
            rows = connection.execute(select).all()
            living = [
                (Holder(name=name, role=Role(role)), digest, session_digest)
                for name, role, digest, revoked_at, session_digest in rows
                if revoked_at is None
            ]
            return Keys(
                any_token_ever=bool(rows),
                tokens={digest: holder for holder, digest, _ in living},
                sessions={digest: holder for holder, _, digest in living if digest is not None},
            )

        return self._database.read(read)

    def note_uses(self, names: Collection[str]) -> None:
        """Writes down that these tokens were used just now."""
        used = t.hpo_token.c.name.in_(sorted(names))
        update = t.hpo_token.update().where(used).values(last_used_at=db_now())
        self._database.write(lambda connection: connection.execute(update))

    def open_session(self, token: str, *, seconds: float) -> str:
        """A session of a browser, which ends with this token; answers its secret.

        Old ones are swept meanwhile.
        """
        secret = new_secret()
        session = t.hpo_session

        def write(connection: sa.Connection) -> None:
            connection.execute(session.delete().where(session.c.expires_at < db_now()))
            connection.execute(
                session.insert().values(
                    digest=digest_of(secret),
                    token_digest=digest_of(token),
                    expires_at=db_now(seconds),
                )
            )

        self._database.write(write)
        return secret

    def close_session(self, secret: str) -> None:
        """Ends a session; nothing when there is none."""
        delete = t.hpo_session.delete().where(t.hpo_session.c.digest == digest_of(secret))
        self._database.write(lambda connection: connection.execute(delete))


def _has_any(connection: sa.Connection) -> bool:
    return connection.execute(sa.select(t.hpo_token.c.name).limit(1)).first() is not None


def _get(connection: sa.Connection, name: str) -> TokenRecord:
    row = connection.execute(sa.select(t.hpo_token).where(t.hpo_token.c.name == name)).first()
    if row is None:
        raise NotFound(f"There is no token {name!r}.")
    return _record(row)


def _record(row: sa.Row[tuple[object, ...]]) -> TokenRecord:
    return TokenRecord(
        name=row.name,
        role=Role(row.role),
        created_at=row.created_at,
        last_used_at=row.last_used_at,
        revoked_at=row.revoked_at,
    )
