"""`hpo study delete` asks on a terminal and not in a script."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any

import pytest

from hpo.client import ApiError, Client

Call = Callable[..., Any]


class Terminal(io.StringIO):
    """Where somebody types."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def deleted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """What the service was asked to delete."""
    calls: list[tuple[str, bool]] = []
    study = {"name": "demo", "state": "stopped", "counts": {"COMPLETE": 3, "FAIL": 1}}

    def delete(_client: Client, name: str, *, force: bool = False) -> dict[str, Any]:
        if name == "busy" and not force:
            raise ApiError(409, {"code": "conflict", "detail": "Study 'busy' is running"})
        calls.append((name, force))
        return study

    monkeypatch.setattr(Client, "study", lambda _client, _name: study)
    monkeypatch.setattr(Client, "delete_study", delete)
    return calls


@pytest.mark.parametrize(
    ("typed", "words", "code", "expected"),
    [
        ("y\n", [], 0, [("demo", False)]),
        ("n\n", [], 1, []),
        ("\n", ["--force"], 1, []),
        ("", ["--yes", "--force"], 0, [("demo", True)]),
    ],
)
def test_it_asks_on_a_terminal(
    hpo_command: Call,
    deleted: list[tuple[str, bool]],
    monkeypatch: pytest.MonkeyPatch,
    typed: str,
    words: list[str],
    code: int,
    expected: list[tuple[str, bool]],
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    answer = hpo_command("study", "delete", "demo", *words)
    assert (answer.code, deleted) == (code, expected)
    asked = "Delete study demo (stopped) with its 4 trials for good?" in answer.err
    assert asked is ("--yes" not in words)


def test_it_does_not_ask_in_a_script(hpo_command: Call, deleted: list[tuple[str, bool]]) -> None:
    answer = hpo_command("study", "delete", "demo")
    assert (answer.code, answer.out) == (0, "Study demo is deleted.\n")
    assert deleted == [("demo", False)]


def test_a_refusal_is_exit_code_1(hpo_command: Call, deleted: list[tuple[str, bool]]) -> None:
    answer = hpo_command("study", "delete", "busy")
    assert (answer.code, deleted) == (1, [])
    assert "Study 'busy' is running" in answer.err
