"""Files of commands: what they may hold, and arguments that hold any value and nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from hpo.commands import Command, find_command, read_commands
from hpo.documents import InvalidDocument

HOSTILE = [
    "two words",
    "'\"`$(reboot)`\\",
    "a; rm -rf /",
    "--config=/etc/passwd",
    "-x",
    "zwölf 十二 \N{PILE OF POO}",
    "two\nlines\ttab",
    "",
    "{lr} {{}} %s",
]


def made(*run: str) -> Command:
    return Command(name="train", file=Path("c.yaml"), run=run, cwd=Path())


@pytest.mark.parametrize("value", HOSTILE)
def test_a_text_stays_as_it_is_within_its_argument(value: str) -> None:
    command = made("p", "--name={name}", "a{name}b{name}", "{params}", "--", "{name}")
    assert command.arguments({"name": value}, {}) == [
        *("p", f"--name={value}", f"a{value}b{value}", f"--name={value}", "--", value)
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e-5, "1e-05"),
        (0.1, "0.1"),
        (-3, "-3"),
        (True, "true"),
        (None, "null"),
        ([1, "ä"], '[1, "ä"]'),
    ],
)
def test_other_values_are_written_as_in_json(value: Any, text: str) -> None:
    assert made("p", "{x}").arguments({"x": value}, {}) == ["p", text]


def test_parameters_hide_what_else_has_their_name() -> None:
    command = made("p", "{seed}", "{epochs}", "{params}", "{{plain}}")
    found = command.arguments({"seed": 1}, {"seed": 2, "epochs": 3})
    assert found == ["p", "1", "3", "--seed=1", "{plain}"]


@pytest.mark.parametrize(
    ("run", "params", "text"),
    [
        (
            ("p", "{rate}"),
            {},
            "c.yaml: command 'train': nothing is known for the placeholder {rate}",
        ),
        (("p", "{x}"), {"x": "--help"}, "would take for an option"),
        (("p", "{x}{y}"), {"x": "", "y": "-h"}, "would take for an option"),
        (("p", "{x}"), {"x": 1, "dropout": 2}, "would never hear of dropout"),
        (("p", "{params}"), {"a b=c": 1}, "no option of a parameter named 'a b=c'"),
        (("p", "{x}"), {"x": "a\0b"}, "null character"),
    ],
)
def test_what_cannot_be_an_argument_is_refused(
    run: tuple[str, ...], params: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        made(*run).arguments(params, {"seed": 0})


def test_a_file_gives_commands_with_folders_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "train: {run: [python3, t.py, 5, '{params}'], cwd: sub, env: {THREADS: 1, ON: 'yes'},"
        " metric: acc, step: epoch, grace_seconds: 5}\n"
        "other: {run: [ls]}\n"
    )
    train, other = read_commands(file).values()
    assert train.run == ("python3", "t.py", "5", "{params}")
    assert (train.cwd, other.cwd) == (tmp_path / "sub", tmp_path)
    assert train.env == {"THREADS": "1", "ON": "yes"}
    assert (train.metric, train.step, train.grace_seconds) == ("acc", "epoch", 5.0)
    assert (other.metric, other.step, other.grace_seconds) == ("value", "step", 30.0)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- train", "must hold commands, such as"),
        ("train: python3", "command 'train': must be a mapping"),
        ("train: {}", "run is missing"),
        ("train: {run: []}", "must list the program"),
        ("train: {run: python3 t.py}", "must list the program"),
        ("train: {run: [p, {params}]}", "write braces in quotes"),
        ("train: {run: [p, 'a{b']}", "has a lone {"),
        ("train: {run: [p, 'a}b']}", "has a lone }"),
        ("train: {run: ['{program}']}", "the program itself takes no placeholder"),
        ("train: {run: [sh, -c, 'train --lr={lr}']}", "is code for sh"),
        ("train: {run: [/bin/bash, -e, -lc, 'train --lr={lr}']}", "is code for /bin/bash"),
        ("train: {run: [python3.12, -c, 'f({lr})']}", "is code for python3.12"),
        ("train: {run: [p], shell: true}", "shell unknown; known: run, cwd, env"),
        ("train: {run: [p], env: [A]}", "env: must map"),
        ("train: {run: [p], env: {'A=B': 1}}", "env: must map"),
        ("train: {run: [p], metric: 3}", "metric: must be the name"),
        ("train: {run: [p], grace_seconds: -1}", "grace_seconds: must be 0 or more"),
        ("train: {run: [p], grace_seconds: true}", "grace_seconds: must be 0 or more"),
        ("train: {run: [p]}\ntrain: {run: [q]}", "line 2: 'train' stands there twice"),
    ],
)
def test_a_mistake_in_a_file_is_named(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(InvalidDocument) as refused:
        read_commands(file)
    assert str(refused.value).startswith(str(file))
    assert problem in str(refused.value)


def test_options_that_look_like_code_are_fine_behind_a_script(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("train: {run: [python3, t.py, -c, '{config}']}")
    assert read_commands(file)["train"].arguments({"config": "a"}, {})[-1] == "a"


def test_a_command_is_found_or_the_known_ones_are_named(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("train: {run: [p]}\nother: {run: [p]}")
    assert find_command(str(file), "other").name == "other"
    for stranger in ("x", None, ["train"]):
        with pytest.raises(ValueError, match=r" is not in .*c.yaml; known: train, other"):
            find_command(str(file), stranger)
    for nothing in (None, ""):
        with pytest.raises(ValueError, match=r"hpo worker --commands"):
            find_command(nothing, "train")
    with pytest.raises(InvalidDocument, match=r"gone.yaml: .*No such file"):
        find_command(str(tmp_path / "gone.yaml"), "train")
