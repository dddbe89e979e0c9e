"""The command line in this process: what a command answers, and whether it can be read at all."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import typer.main

import hpo.cli


class Answer(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def hpo_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Answer]:
    """Calls `hpo` with these words, as the console script does."""

    def call(*words: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["hpo", *words])
        with pytest.raises(SystemExit) as ended:
            hpo.cli.main()
        code = ended.value.code
        return Answer(code if isinstance(code, int) else int(bool(code)), *capsys.readouterr())

    return call


@pytest.fixture
def parse_command() -> Callable[[Sequence[str]], dict[str, Any]]:
    """The options a command would be called with; runs nothing. Raises a usage error."""

    def parse(words: Sequence[str]) -> dict[str, Any]:
        command: Any = typer.main.get_command(hpo.cli.app)
        name, *rest = words
        context = command.make_context(name, rest)
        while hasattr(command, "resolve_command"):
            rest = [*context._protected_args, *context.args]
            name, command, rest = command.resolve_command(context, rest)
            context = command.make_context(name, rest, parent=context)
        return dict(context.params)

    return parse
