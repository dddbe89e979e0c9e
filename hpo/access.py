"""Who may do what: the roles of tokens, how a token looks, and where a client finds its own.

A token is 256 random bits, so one round of SHA-256 is enough to store it: there is nothing to
guess. A client takes it from the environment or a file and never from the command line, which
every user of a machine can read by `ps`.
"""

from __future__ import annotations

import enum
import hashlib
import re
import secrets
from collections.abc import Mapping
from pathlib import Path

from hpo.errors import HpoError
from hpo.exits import Exit

# Recognisable, so that scanners find tokens that were published by mistake.
PREFIX = "hpo_"
TOKEN_VARIABLE, TOKEN_FILE_VARIABLE = "HPO_TOKEN", "HPO_TOKEN_FILE"
TOKEN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
TOKEN_NAME_RULE = (
    "must be 1 to 64 letters, digits, dots, dashes or underscores, beginning with a letter or digit"
)


class Role(enum.StrEnum):
    """What a token is for; an operator may do all that readers and workers may, an admin all."""

    READER = "reader"
    WORKER = "worker"
    OPERATOR = "operator"
    ADMIN = "admin"


_INCLUDED: Mapping[Role, frozenset[Role]] = {
    Role.READER: frozenset({Role.READER}),
    Role.WORKER: frozenset({Role.WORKER}),
    Role.OPERATOR: frozenset({Role.READER, Role.WORKER, Role.OPERATOR}),
    Role.ADMIN: frozenset(Role),
}


def includes(held: Role, needed: Role) -> bool:
    """Whether a token of one role may do what another role is for."""
    return needed in _INCLUDED[held]


def new_secret() -> str:
    """A new token; it is shown once and stored as its digest."""
    return PREFIX + secrets.token_urlsafe(32)


def digest_of(secret: str) -> str:
    """What is stored of a token or a session."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def check_token_name(name: str) -> str:
    """The name. Raises ValueError when a token cannot be called so."""
    if not TOKEN_NAME.fullmatch(name):
        raise ValueError(TOKEN_NAME_RULE)
    return name


class InvalidToken(HpoError):
    """What was given as a token cannot be one."""

    code = "invalid_token"
    exit_code = Exit.DENIED


def read_token_file(path: Path) -> str | None:
    """The token in a file; None when the file is empty. Raises OSError when it cannot be read."""
    return _sound(path.read_text(encoding="utf-8").strip(), str(path)) or None


def token_of(environ: Mapping[str, str]) -> str | None:
    """The token that the environment gives, by itself or by the name of a file.

    Raises InvalidToken when it cannot be one, or the file cannot be read.
    """
    if given := environ.get(TOKEN_VARIABLE, "").strip():
        return _sound(given, TOKEN_VARIABLE)
    path = environ.get(TOKEN_FILE_VARIABLE, "").strip()
    try:
        return read_token_file(Path(path)) if path else None
    except OSError as error:
        raise InvalidToken(f"{TOKEN_FILE_VARIABLE}: {path}: {error.strerror}") from None


def _sound(token: str, source: str) -> str:
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise InvalidToken(f"{source} holds a line break, or another character that no token has")
    return token


def without_token(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for processes that have no business with the service."""
    hidden = {TOKEN_VARIABLE, TOKEN_FILE_VARIABLE}
    return {name: value for name, value in environ.items() if name not in hidden}
