"""`hpo token` on a database, and what `hpo api` makes of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from hpo.cli.api import check_root_path, check_tokens
from storage.store import open_store

Call = Callable[..., Any]


def test_tokens_are_made_listed_and_revoked(hpo_command: Call, database_url: str) -> None:
    db = ("--db", database_url)
    assert hpo_command("token", "list", *db).out.startswith("There is no token")
    made = hpo_command("token", "create", "node7", "--role", "worker", *db)
    assert made.code == 0
    assert made.out.startswith("hpo_")
    assert len(made.out.splitlines()) == 1
    assert "shown this once" in made.err
    taken = hpo_command("token", "create", "node7", "--role", "reader", *db)
    assert (taken.code, taken.out) == (1, "")
    assert "revoke it first" in taken.err
    as_json = json.loads(hpo_command("token", "create", "me", "--role", "admin", "--json", *db).out)
    assert as_json["token"].startswith("hpo_")
    for _ in range(2):
        assert hpo_command("token", "revoke", "node7", *db).out == "Token node7 is revoked.\n"
    listed = json.loads(hpo_command("token", "list", "--json", *db).out)
    assert [(token["name"], token["role"]) for token in listed] == [
        ("me", "admin"),
        ("node7", "worker"),
    ]
    assert [token["revoked_at"] is None for token in listed] == [True, False]
    assert made.out.strip() not in hpo_command("token", "list", *db).out
    missing = hpo_command("token", "revoke", "nobody", *db)
    assert (missing.code, missing.err) == (1, "error: There is no token 'nobody'.\n")


def test_a_file_that_a_service_holds_is_reached_through_it(
    hpo_command: Call, sqlite_url: str
) -> None:
    store = open_store(sqlite_url)
    refused = hpo_command("token", "create", "me", "--role", "admin", "--db", sqlite_url)
    store.close()
    assert refused.code == 1
    assert "go through it: hpo token create … --url http://127.0.0.1:8080" in refused.err


def test_an_address_on_the_command_line_goes_before_a_database_of_the_environment(
    hpo_command: Call, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPO_DB", sqlite_url)
    assert hpo_command("token", "list").code == 0
    answer = hpo_command("token", "list", "--url", "http://127.0.0.1:9")
    assert answer.err.startswith("error: no answer from http://127.0.0.1:9")


def test_the_api_listens_to_others_only_when_there_is_a_token(
    hpo_command: Call, sqlite_url: str
) -> None:
    words = ["api", "--db", sqlite_url, "--host", "0.0.0.0", "--port", "1"]
    answer = hpo_command(*words)
    assert answer.code == 2
    assert "hpo token create" in " ".join(answer.err.replace("│", " ").split())
    store = open_store(sqlite_url)
    with pytest.raises(typer.BadParameter, match="there is no token yet"):
        check_tokens("0.0.0.0", store)
    store.close()
    made = hpo_command("token", "create", "node7", "--role", "worker", "--db", sqlite_url)
    assert made.code == 0
    hpo_command("token", "revoke", "node7", "--db", sqlite_url)
    store = open_store(sqlite_url)
    check_tokens("0.0.0.0", store)
    store.close()


def test_a_database_that_is_away_does_not_keep_the_api_from_starting() -> None:
    """Nobody gets in before it is there: `Access.may_be_open` is false at such an address."""
    store = open_store("postgresql+psycopg://hpo@127.0.0.1:9/hpo")
    check_tokens("0.0.0.0", store)
    store.close()


@pytest.mark.parametrize("path", ["", "/hpo", "/hpo/", "/a/b-c_d.e~"])
def test_prefixes_that_a_proxy_can_have(path: str) -> None:
    check_root_path(path)


@pytest.mark.parametrize("path", ["hpo", "/", "//", "/a//b", "/a b", '/a"', "http://x/hpo"])
def test_prefixes_that_it_cannot(path: str) -> None:
    with pytest.raises(typer.BadParameter, match="such as /hpo"):
        check_root_path(path)


def test_a_token_is_no_word_of_any_command(parse_command: Call, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("hpo_x")
    assert parse_command(["hpo", "worker", "--token-file", str(file)])["token_file"] == file
    for words in (["worker"], ["study", "list"], ["token", "list"]):
        with pytest.raises(Exception, match="No such option"):
            parse_command(["hpo", *words, "--token", "hpo_x"])
