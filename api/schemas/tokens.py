"""Tokens, by which programs and people are known."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, ClassVar

from pydantic import AfterValidator, ConfigDict

from api.schemas.base import Body, Reply, spelled
from hpo.access import TOKEN_NAME, Role, check_token_name
from hpo.version import __version__
from storage.tokens import TokenRecord

TokenName = Annotated[str, AfterValidator(check_token_name), spelled(TOKEN_NAME.pattern)]


class TokenCreate(Body):
    """A token that is to be made."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        json_schema_extra={"examples": [{"name": "node7", "role": "worker"}]}
    )

    name: TokenName
    role: Role


class TokenReply(Reply):
    name: str
    role: Role
    created_at: dt.datetime
    last_used_at: dt.datetime | None
    revoked_at: dt.datetime | None

    @classmethod
    def of(cls, record: TokenRecord) -> TokenReply:
        return cls.taken_from(record)


class NewTokenReply(TokenReply):
    """The only answer in which the token itself stands."""

    token: str

    @classmethod
    def of_new(cls, record: TokenRecord, secret: str) -> NewTokenReply:
        return cls.taken_from(record, token=secret)


class TokenList(Reply):
    items: list[TokenReply]


class SessionReply(Reply):
    """Who asks; `name` is null while the service has no tokens and everybody may do everything.

    `is_session`: by the cookie of a login, which a log out ends.
    """

    name: str | None
    role: Role
    is_session: bool
    version: str

    @classmethod
    def of(cls, name: str | None, role: Role, *, is_session: bool) -> SessionReply:
        return cls(name=name, role=role, is_session=is_session, version=__version__)
