"""What holds for all commands: JSON for programs, exit codes with one meaning, quiet completion."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import typer.main

import hpo.client
from hpo.cli import app
from hpo.cli.completion import study_names
from hpo.cli.study_trial import followed
from hpo.client import AccessDenied, ApiError
from hpo.errors import Unavailable
from hpo.exits import MEANINGS, Exit
from hpo.search.pruners import PRUNERS
from hpo.search.samplers import SAMPLERS
from tests.pages import text_of

Call = Callable[..., Any]

# What runs until it is ended, and shows what it does meanwhile.
SERVING = {"api", "worker"}


def all_commands(group: Any = None, words: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in (group or typer.main.get_command(app)).commands.items():
        path = f"{words} {name}".strip()
        if hasattr(command, "commands"):
            yield from all_commands(command, path)
        elif not command.hidden:
            yield path, command


def test_every_command_that_answers_something_has_json() -> None:
    without = {
        path
        for path, command in all_commands()
        if not any("--json" in option.opts for option in command.params)
    }
    assert without == SERVING


def test_every_command_says_what_it_does_and_shows_an_example() -> None:
    for path, command in all_commands():
        first, _, _ = command.help.partition("\n")
        assert re.fullmatch(r"[A-Z].*\.", first), path
        assert f"  hpo {path}" in command.help, path


def test_every_option_says_what_it_is() -> None:
    for path, command in all_commands():
        for option in command.params:
            is_hidden = getattr(option, "hidden", False)
            assert is_hidden or re.fullmatch(r"[A-Za-z].*[^ ]", option.help or ""), (path, option)


def test_all_samplers_and_pruners_are_named() -> None:
    options = {option.name: option.help for option in dict(all_commands())["study create"].params}
    assert all(name in options["sampler"] for name in SAMPLERS)
    assert all(name in options["pruner"] for name in PRUNERS)


def test_the_same_thing_has_the_same_name_everywhere() -> None:
    told: dict[str, set[str]] = {}
    for _, command in all_commands():
        for option in command.params:
            for name in filter(lambda name: name.startswith("--"), option.opts):
                told.setdefault(name, set()).add(str(option.metavar))
    assert {name for name in told if name.startswith("--timeout")} == {"--timeout-seconds"}
    assert {name: metavars for name, metavars in told.items() if len(metavars) > 1} == {}


class TestExits:
    def test_each_has_one_meaning_which_help_and_the_docs_tell(self, hpo_command: Call) -> None:
        assert MEANINGS.keys() == set(Exit)
        rows = re.findall(r"^\| (\d+) \| (.*) \|$", text_of("docs/cli.md"), re.MULTILINE)
        assert dict(rows) == {str(code.value): text for code, text in MEANINGS.items()}
        shown = " ".join(hpo_command("--help").out.split())
        assert all(f"{code.value} {text}" in shown for code, text in MEANINGS.items())

    def test_a_refusal_of_access_has_its_own(
        self, hpo_command: Call, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: Any, **__: Any) -> Any:
            raise AccessDenied(403, {"code": "forbidden", "detail": "This needs an admin."})

        monkeypatch.setattr(hpo.client.Client, "workers", refuse)
        answer = hpo_command("workers")
        assert (answer.code, answer.err) == (Exit.DENIED, "error: This needs an admin.\n")

    @pytest.mark.parametrize(
        ("words", "cure"),
        [(["study", "show", "first"], " hpo study list shows"), (["token", "list"], "")],
    )
    def test_what_is_not_there_is_told_with_the_next_step(
        self, hpo_command: Call, monkeypatch: pytest.MonkeyPatch, words: list[str], cure: str
    ) -> None:
        def refuse(*_: Any, **__: Any) -> Any:
            raise ApiError(404, {"code": "not_found", "detail": "There is no such thing."})

        for method in ("study", "tokens"):
            monkeypatch.setattr(hpo.client.Client, method, refuse)
        answer = hpo_command(*words)
        assert answer.code == Exit.FAILED
        assert answer.err.startswith(f"error: There is no such thing.{cure or chr(10)}")

    def test_ctrl_c_has_its_own(self) -> None:
        """While it waits for a service that takes connections and says nothing."""
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}"
            words = [sys.executable, "-P", "-m", "hpo.cli", "study", "list", "--url", url]
            process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
            silent.settimeout(60)
            connection, _ = silent.accept()
            with connection:
                assert connection.recv(1)  # the request is sent, the answer is waited for
                process.send_signal(signal.SIGINT)
                _, told = process.communicate(timeout=60)
        assert (process.returncode, "Traceback" in told) == (Exit.INTERRUPTED, False)


class TestCompletion:
    def complete(self, line: str, **environ: str) -> subprocess.CompletedProcess[str]:
        words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
        return subprocess.run(
            [sys.executable, "-c", "from hpo.cli import main; main()"],
            env={**os.environ, "_HPO_COMPLETE": "complete_bash", **words, **environ},
            capture_output=True,
            text=True,
            timeout=60,
        )

    def test_commands_are_completed(self) -> None:
        done = self.complete("hpo study unar")
        assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["unarchive"], "")

    @pytest.mark.parametrize("url", ["http://127.0.0.1:9", "nonsense", "http://[broken"])
    def test_nothing_is_said_where_no_service_is(self, url: str) -> None:
        done = self.complete("hpo study show f", HPO_URL=url)
        assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")

    def test_a_service_that_does_not_answer_is_not_waited_for(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}"
            begin = time.monotonic()
            assert study_names(url, "f", patience_seconds=0.2) == []
            assert time.monotonic() - begin < 5  # the client's own patience is longer


class Logs:
    """A trial that writes; an exception among the states is raised."""

    def __init__(self, *states: str | Exception) -> None:
        self.states = iter(states)
        self.n_written = 0
        self.queries: list[dict[str, Any]] = []

    def trial(self, name: str, number: int) -> dict[str, Any]:
        state = next(self.states)
        if isinstance(state, Exception):
            raise state
        self.n_written += 1
        return {"state": state}

    def log(self, name: str, number: int, **query: Any) -> Iterator[dict[str, Any]]:
        self.queries.append(query)
        for id in range(query.get("after", 0) + 1, self.n_written + 1):
            yield {"id": id, "text": f"line {id}\n"}


def test_a_log_is_followed_to_its_end_over_an_outage() -> None:
    logs = Logs("RUNNING", Unavailable("away"), "RUNNING", "COMPLETE")
    client: Any = logs
    pieces = list(followed(client, "digits", 7, tail=5, pause=lambda seconds: None))
    assert [piece["id"] for piece in pieces] == [1, 2, 3]
    assert logs.queries == [{"tail": 5}, {"after": 1}, {"after": 2}]
