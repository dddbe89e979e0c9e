"""The command line by itself: its help, its refusals, and how errors are told."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

import hpo
from hpo.cli import app
from hpo.cli.api import is_loopback
from hpo.cli.options import pairs
from hpo.cli.rooms import MissingExtra, WrongRoom, require_driver, require_rooms
from hpo.cli.up import worker_arguments
from hpo.version import __version__

Call = Callable[..., Any]


def commands(group: Any = None, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """All commands, hidden ones too, as the words one types."""
    group = group or typer.main.get_command(app)
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*words, name))
        else:
            yield (*words, name)


def test_every_command_of_the_design_is_there() -> None:
    assert sorted(" ".join(words) for words in commands()) == [
        "amp-benchmark",
        "api",
        "dashboard",
        "db upgrade",
        "demo",
        "objective check",
        "objective list",
        "study adopt",
        "study archive",
        "study best",
        "study cancel",
        "study cancel-trial",
        "study clone",
        "study create",
        "study delete",
        "study enqueue",
        "study events",
        "study exclude",
        "study export",
        "study extend",
        "study history",
        "study import",
        "study importances",
        "study include",
        "study label",
        "study list",
        "study log",
        "study pareto",
        "study pause",
        "study pruning",
        "study replicate",
        "study requeue",
        "study resume",
        "study show",
        "study stop",
        "study trial",
        "study unarchive",
        "study warm-start",
        "study watch",
        "token create",
        "token list",
        "token revoke",
        "up",
        "worker",
        "workers",
    ]


@pytest.mark.parametrize("words", sorted(commands()), ids=" ".join)
def test_every_command_has_help(hpo_command: Call, words: tuple[str, ...]) -> None:
    answer = hpo_command(*words, "--help")
    assert answer.code == 0
    assert f"Usage: hpo {' '.join(words)}" in answer.out


def test_version(hpo_command: Call) -> None:
    assert hpo_command("--version") == (0, f"hpo {__version__}\n", "")


def test_an_expected_error_is_one_sentence_and_exit_code_1(hpo_command: Call) -> None:
    # Port 9 (discard) is a port that nobody listens on.
    answer = hpo_command("study", "list", "--url", "http://127.0.0.1:9")
    assert answer.code == 1
    assert answer.err.startswith("error: no answer from http://127.0.0.1:9")
    assert "hpo up" in answer.err
    assert "Traceback" not in answer.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["study", "list", "--url", "localhost:8080"], "must begin with http"),
        (["study", "create"], "give a file with -f"),
        (["study", "create", "-f", "missing.yaml"], "there is no file missing.yaml"),
        (["study", "create", "--name", "a", "--set", "epochs"], "must read KEY=VALUE"),
        (["study", "create", "--n-trials", "0"], "greater than or equal to 1"),
        (["study", "extend", "first"], "give one of --n-trials"),
        (["study", "label", "first"], "give --tag, --no-tags or --notes"),
        (["study", "label", "first", "--tag", "a", "--no-tags"], "give --tag or --no-tags"),
        (["study", "list", "--archived", "yes"], "'false', 'true', 'any'"),
        (["study", "enqueue", "first"], "give --param"),
        (["study", "enqueue", "first", "--param", "x"], "must read KEY=VALUE"),
        (["study", "enqueue", "first", "--param", "x=1", "-f", "p.yaml"], "give --param"),
        (["study", "exclude", "first", "last"], "parse string as an integer"),
        (["study", "extend", "first", "--n-trials", "0"], "greater than or equal to 1"),
        (["study", "shwo"], "Did you mean"),
        (["worker", "--slots-per-device", "0"], "greater than or equal to 0.01"),
        (["worker", "--set", "=3"], "must read KEY=VALUE"),
        (["api"], "Missing option '--db'"),
        (["api", "--db", "sqlite:///x.db", "--root-path", "hpo"], "must be a path such as /hpo"),
        (["token", "create", "a b", "--role", "admin"], "letters, digits, dots"),
        (["token", "create", "a", "--role", "king"], "'reader', 'worker'"),
        (["objective", "check"], "Missing argument"),
    ],
)
def test_a_usage_error_is_exit_code_2(hpo_command: Call, words: list[str], sentence: str) -> None:
    answer = hpo_command(*words)
    assert answer.code == 2
    assert sentence in " ".join(answer.err.replace("│", " ").split())


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.3.2.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.7", False),
        ("gpu1.example", False),
    ],
)
def test_only_loopback_addresses_need_no_permission(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_pairs_keep_what_follows_the_first_equals_sign() -> None:
    assert pairs(["data_dir=/a=b", "empty="], "--set") == {"data_dir": "/a=b", "empty": ""}
    assert pairs(None, "--set") == {}


def test_up_hands_its_options_to_the_worker(parse_command: Call, tmp_path: Path) -> None:
    commands = tmp_path / "commands.yaml"
    commands.write_text("train: {run: [train]}")
    words = worker_arguments(
        slots=3,
        devices="0,1",
        code=tmp_path,
        allow=["mine", "mine.*"],
        settings=["a=1", "b=c d"],
        commands=commands,
    )
    read = parse_command(["hpo", "worker", *words])
    assert read["commands"] == commands
    assert (read["slots"], read["devices"], read["code"]) == (3, "0,1", tmp_path)
    assert list(read["allow"]) == ["mine", "mine.*"]
    assert list(read["settings"]) == ["a=1", "b=c d"]


@pytest.mark.parametrize(
    "words", [["up"], ["worker"], ["objective", "check", "objectives.command:run"]]
)
def test_a_mistake_in_the_file_of_commands_ends_the_command(
    hpo_command: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    (tmp_path / "commands.yaml").write_text("train: {run: [sh, -c, 'train {lr}']}")
    monkeypatch.chdir(tmp_path)
    answer = hpo_command(*words, "--commands", "commands.yaml")
    assert answer.code == 1
    assert "command 'train': run: 'train {lr}' is code for sh" in answer.err
    assert not (tmp_path / "hpo-data").exists()


def test_settings_come_from_the_environment(
    parse_command: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPO_URL", "http://gpu.example:1")
    monkeypatch.setenv("HPO_DB", "sqlite:///there.db")
    monkeypatch.setenv("HPO_ALLOW", "mine other.*")
    assert parse_command(["hpo", "study", "list"])["url"] == "http://gpu.example:1"
    assert parse_command(["hpo", "api"])["db"] == "sqlite:///there.db"
    assert list(parse_command(["hpo", "worker"])["allow"]) == ["mine", "other.*"]


class TestRooms:
    def test_ours_are_found(self) -> None:
        require_rooms("storage", "api")

    def test_a_stranger_of_the_same_name_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "storage").mkdir()
        (tmp_path / "storage" / "__init__.py").touch()
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "storage", raising=False)
        with pytest.raises(WrongRoom, match="PYTHONPATH") as caught:
            require_rooms("storage")
        assert str(tmp_path / "storage") in str(caught.value)

    def test_a_package_that_was_overwritten_is_refused(self) -> None:
        with pytest.raises(WrongRoom, match="another distribution has replaced it"):
            require_rooms("storage", rooms={"storage": "no_such_file.py"})

    def test_a_missing_room_is_named(self) -> None:
        with pytest.raises(WrongRoom, match="no_such_room"):
            require_rooms("no_such_room", rooms={"no_such_room": "x.py"})

    def test_missing_extras_say_how_to_get_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(MissingExtra, match=r"hpo-service\[server\]"):
            require_rooms("storage")
        with pytest.raises(MissingExtra, match=r"hpo-service\[postgres\]"):
            require_driver("postgresql+psycopg://x/y")
        require_driver("sqlite:///x.db")


def test_the_public_version_is_the_distribution_s() -> None:
    assert hpo.__version__ == __version__
