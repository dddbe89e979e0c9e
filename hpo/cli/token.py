"""`hpo token`: makes, lists and revokes tokens, on the database or through a running API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from hpo.access import Role, check_token_name
from hpo.cli.options import DEFAULT_URL, AsJson, Url
from hpo.errors import DatabaseInUse

if TYPE_CHECKING:
    from storage.store import Store
    from storage.tokens import TokenRecord

Document = dict[str, Any]

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the token.")]
RoleOption = Annotated[
    Role,
    typer.Option(
        "--role",
        help="reader: look at everything. worker: run trials. operator: both, and change studies. "
        "admin: all, with tokens and deleting.",
    ),
]
Database = Annotated[
    str | None,
    typer.Option(
        envvar="HPO_DB",
        metavar="URL",
        help="Database of the service, when its API does not run or there is no token yet; through "
        "the API at --url when not given.",
    ),
]


class Tokens(Protocol):
    """What the commands need, of a database or of an API."""

    def create(self, name: str, role: Role) -> Document:
        """The new token with its secret. Raises HpoError."""

    def page(self) -> list[Document]:
        """All of them by name."""

    def revoke(self, name: str) -> None:
        """Ends one."""


def create(
    context: typer.Context,
    name: Name,
    role: RoleOption,
    db: Database = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Make a token. It is printed once, alone on standard output, and stored as a hash.

    The first one of a service is an admin's: make it on the database before the
    API starts, or through an API on this machine that has no tokens yet.

    Examples:
      hpo token create me --role admin
      hpo token create node7 --role worker --db postgresql+psycopg://hpo:secret@db/hpo
    """
    from hpo.cli.output import print_json

    try:
        check_token_name(name)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="NAME") from None
    with _tokens(context, db, url) as tokens:
        made = tokens.create(name, role)
    if as_json:
        return print_json(made)
    typer.echo(f"Token {name}, role {role}. Keep it: it is shown this once.", err=True)
    typer.echo(made["token"])


def list_tokens(
    context: typer.Context,
    db: Database = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List the tokens, when each was last used, and which were revoked.

    Examples:
      hpo token list
    """
    from hpo.cli.output import console, print_json, table

    with _tokens(context, db, url) as tokens:
        found = tokens.page()
    if as_json:
        return print_json(found)
    made = table("name", "role", "created", "last used", "revoked")
    for token in found:
        times = (token["created_at"], token["last_used_at"], token["revoked_at"])
        made.add_row(token["name"], token["role"], *(str(time or "-")[:19] for time in times))
    console().print(made if found else "There is no token; hpo token create makes one.")


def revoke(
    context: typer.Context,
    name: Name,
    db: Database = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Revoke a token; whoever uses it is refused within seconds. Safe to repeat.

    Examples:
      hpo token revoke node7
    """
    from hpo.cli.output import print_json

    with _tokens(context, db, url) as tokens:
        tokens.revoke(name)
    if as_json:
        return print_json({"name": name, "revoked": True})
    typer.echo(f"Token {name} is revoked.")


@contextmanager
def _tokens(context: typer.Context, db: str | None, url: str) -> Iterator[Tokens]:
    """Those of the database when one is named, and no --url on the command line beside it."""
    source = context.get_parameter_source("url")
    is_url_typed = source is not None and source.name == "COMMANDLINE"
    if db is None or is_url_typed:
        from hpo.client import Client

        with Client(url) as client:
            yield _OfApi(client)
        return
    from hpo.cli.api import opened, use_utc
    from hpo.cli.rooms import require_driver, require_rooms

    use_utc()
    require_rooms("storage")
    require_driver(db)
    try:
        with opened(db) as store:
            store.prepare()
            yield _OfDatabase(store)
    except DatabaseInUse as error:
        words = f"hpo token {context.info_name}"
        raise DatabaseInUse(
            f"{error} If it is the service, go through it: {words} … --url {url}", **error.facts
        ) from None


class _OfApi:
    def __init__(self, client: Any) -> None:
        self._client = client

    def create(self, name: str, role: Role) -> Document:
        return dict(self._client.create_token(name, role))

    def page(self) -> list[Document]:
        return list(self._client.tokens())

    def revoke(self, name: str) -> None:
        self._client.revoke_token(name)


class _OfDatabase:
    def __init__(self, store: Store) -> None:
        self._tokens = store.tokens

    def create(self, name: str, role: Role) -> Document:
        record, secret = self._tokens.create(name, role)
        return {**_document(record), "token": secret}

    def page(self) -> list[Document]:
        return [_document(record) for record in self._tokens.page()]

    def revoke(self, name: str) -> None:
        self._tokens.revoke(name)


def _document(record: TokenRecord) -> Document:
    times = ("created_at", "last_used_at", "revoked_at")
    shown = {time: getattr(record, time) for time in times}
    return {
        "name": record.name,
        "role": record.role.value,
        **{time: value.isoformat() if value else None for time, value in shown.items()},
    }
