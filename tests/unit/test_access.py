"""Roles, how tokens look, and where a client finds its own."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from hpo.access import (
    InvalidToken,
    Role,
    check_token_name,
    digest_of,
    includes,
    new_secret,
    token_of,
    without_token,
)

READER, WORKER, OPERATOR, ADMIN = Role


def test_a_role_includes_what_the_readme_says() -> None:
    found = {pair for pair in itertools.product(Role, Role) if includes(*pair)}
    assert found == {
        *((role, role) for role in Role),
        *((OPERATOR, role) for role in (READER, WORKER)),
        *((ADMIN, role) for role in Role),
    }


def test_a_secret_has_256_bits_and_is_known_by_its_beginning() -> None:
    secrets = {new_secret() for _ in range(100)}
    assert len(secrets) == 100
    assert all(re.fullmatch(r"hpo_[A-Za-z0-9_-]{43}", secret) for secret in secrets)


def test_digests_are_those_of_sha_256() -> None:
    assert digest_of("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert len(digest_of("\ud800")) == 64


@pytest.mark.parametrize("name", ["a", "node7", "CI.nightly_2-b", "x" * 64])
def test_names_that_can_be_given(name: str) -> None:
    assert check_token_name(name) == name


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "é", "x" * 65, "a\n"])
def test_names_that_cannot(name: str) -> None:
    with pytest.raises(ValueError, match="1 to 64 letters"):
        check_token_name(name)


def test_the_environment_gives_a_token_or_a_file_of_one(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("hpo_filed\n")
    assert token_of({}) is None
    assert token_of({"HPO_TOKEN": " "}) is None
    assert token_of({"HPO_TOKEN_FILE": str(file)}) == "hpo_filed"
    assert token_of({"HPO_TOKEN": "hpo_given\n", "HPO_TOKEN_FILE": "/nowhere"}) == "hpo_given"
    file.write_text("\n")
    assert token_of({"HPO_TOKEN_FILE": str(file)}) is None
    with pytest.raises(InvalidToken, match=r"HPO_TOKEN_FILE: .*missing"):
        token_of({"HPO_TOKEN_FILE": str(tmp_path / "missing")})
    with pytest.raises(InvalidToken, match="line break") as caught:
        token_of({"HPO_TOKEN": "hpo_secret\nx"})
    assert "secret" not in str(caught.value)


def test_other_processes_get_no_token() -> None:
    environ = {"PATH": "/bin", "HPO_TOKEN": "hpo_x", "HPO_TOKEN_FILE": "y", "HPO_URL": "z"}
    assert without_token(environ) == {"PATH": "/bin", "HPO_URL": "z"}
