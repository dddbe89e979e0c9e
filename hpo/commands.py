"""Programs that a worker lends to studies: named in a file of its own, never in a request.

A study picks one by name and fills its placeholders. No shell reads them: a value stays within
one argument of the program, whatever it holds.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from hpo.documents import InvalidDocument, parse_document

COMMANDS_VARIABLE = "HPO_COMMANDS"  # tells trials the file that their worker was given
EXAMPLE = '  train:\n    run: [python3, train.py, "{params}"]'
ALL_PARAMS = "{params}"
# Doubled braces are plain ones; a single one that belongs to nothing is a mistake.
BRACES = re.compile(r"\{\{|\}\}|\{(?P<name>[^{}]*)\}|[{}]")
OPTION_NAME = re.compile(r"\w[\w.-]*")
# `sh -c CODE`, `python3 -c CODE`, `perl -e CODE`: a value within CODE would be run.
INTERPRETER = re.compile(r"(.*/)?(sh|bash|dash|zsh|ksh|python|perl|ruby|node|Rscript)[\d.]*")
CODE_OPTION = re.compile(r"-\w*[ce]|--eval")


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """One program with its arguments, some of which have placeholders.

    Attributes:
        run: the program and its arguments.
        cwd: the folder it works in.
        env: variables that it gets beside those of the worker.
        metric: the member of its JSON lines that is the trial's value.
        step: the member that is the step.
        grace_seconds: from SIGTERM to SIGKILL.
    """

    name: str
    file: Path
    run: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str] = field(default_factory=dict)
    metric: str = "value"
    step: str = "step"
    grace_seconds: float = 30.0

    def __str__(self) -> str:
        return f"{self.file}: command {self.name!r}"

    def arguments(self, params: Mapping[str, Any], others: Mapping[str, Any]) -> list[str]:
        """The program and its arguments with all values in place. Raises ValueError."""
        values = {**others, **params}
        made: list[str] = []
        for template in self.run:
            if template == ALL_PARAMS:
                made += [self._option(name, value) for name, value in params.items()]
            else:
                made.append(self._argument(template, values, is_behind_dashes="--" in made))
        self._check_complete(params)
        return made

    def _argument(self, template: str, values: Mapping[str, Any], *, is_behind_dashes: bool) -> str:
        made = BRACES.sub(lambda found: self._text(found, values), template)
        is_open = template[:1] == "{" and template[:2] != "{{" and not is_behind_dashes
        if is_open and made.startswith("-") and not _is_number(made):
            name = next(placeholders(template))
            raise ValueError(
                f"{self}: {name} is {made!r}, which the program would take for an option; "
                f'write "--{name}={template}" there, or an argument "--" before it'
            )
        return made

    def _text(self, found: re.Match[str], values: Mapping[str, Any]) -> str:
        name = found["name"]
        if name is None:
            return found[0][0]
        if name not in values:
            raise ValueError(
                f"{self}: nothing is known for the placeholder {{{name}}}; "
                f"this trial has {', '.join(sorted(values))}"
            )
        return self._checked(name, values[name])

    def _option(self, name: str, value: Any) -> str:
        if not OPTION_NAME.fullmatch(name):
            raise ValueError(f"{self}: {{params}} makes no option of a parameter named {name!r}")
        return f"--{name}={self._checked(name, value)}"

    def _checked(self, name: str, value: Any) -> str:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if "\0" in text:
            raise ValueError(f"{self}: {name} holds a null character, which no argument can")
        return text

    def _check_complete(self, params: Mapping[str, Any]) -> None:
        named = {name for template in self.run for name in placeholders(template)}
        missing = sorted(params.keys() - named)
        if missing and ALL_PARAMS not in self.run:
            raise ValueError(
                f"{self}: the program would never hear of {', '.join(missing)}; write "
                f'"--{missing[0]}={{{missing[0]}}}" there, or "{{params}}" for all parameters'
            )


def placeholders(template: str) -> Iterator[str]:
    """The names within braces, in order."""
    return (found["name"] for found in BRACES.finditer(template) if found["name"] is not None)


def find_command(file: str | None, name: Any) -> Command:
    """The command of a worker's file. Raises ValueError that says how to offer it."""
    if not file:
        raise ValueError(
            "this worker offers no commands; name a file of them when it starts: "
            "hpo worker --commands commands.yaml"
        )
    commands = read_commands(Path(file))
    if not isinstance(name, str) or name not in commands:
        raise ValueError(
            f"command {name!r} is not in {file}; known: {', '.join(commands)}. "
            "A study names it by the setting command"
        )
    return commands[name]


def read_commands(path: Path) -> dict[str, Command]:
    """All commands of a file, by name. Raises InvalidDocument that names what is wrong."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidDocument(f"{path}: {error}") from None
    document = parse_document(text, source=str(path), example=f"commands, such as\n{EXAMPLE}")
    return {str(name): _command(str(name), path, given) for name, given in document.items()}


def _command(name: str, path: Path, given: Any) -> Command:
    where = f"{path}: command {name!r}"
    if not isinstance(given, dict):
        raise InvalidDocument(f"{where}: must be a mapping, such as\n{EXAMPLE}")
    if unknown := sorted(map(str, given.keys() - READERS.keys())):
        raise InvalidDocument(f"{where}: {', '.join(unknown)} unknown; known: {', '.join(READERS)}")
    if "run" not in given:
        raise InvalidDocument(f"{where}: run is missing, such as\n{EXAMPLE}")
    made: dict[str, Any] = {"cwd": path.resolve().parent}
    for member, value in given.items():
        try:
            made[member] = READERS[member](value)
        except ValueError as error:
            raise InvalidDocument(f"{where}: {member}: {error}") from None
    made["cwd"] = path.resolve().parent / made["cwd"]
    return Command(name=name, file=path, **made)


def _read_run(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError("must list the program and its arguments")
    run = tuple(map(_read_text, value))
    for index, template in enumerate(run):
        _check_template(template, run[:index])
    return run


def _check_template(template: str, before: Sequence[str]) -> None:
    lone = [found[0] for found in BRACES.finditer(template) if found[0] in ("{", "}")]
    if lone:
        raise ValueError(f"{template!r} has a lone {lone[0]}; write {{{{ and }}}} for plain ones")
    if next(placeholders(template), None) is None:
        return
    if not before:
        raise ValueError("the program itself takes no placeholder")
    is_code = all(option.startswith("-") for option in before[1:])
    is_code = is_code and bool(INTERPRETER.fullmatch(before[0]))
    if is_code and CODE_OPTION.fullmatch(before[-1]):
        raise ValueError(
            f"{template!r} is code for {before[0]}, so a value in it could be run; "
            "write {{ and }} for plain braces, and hand values over "
            'as arguments, such as [sh, -c, \'train "$1"\', sh, "--lr={lr}"]'
        )


def _read_text(value: Any) -> str:
    if isinstance(value, dict | list):
        raise ValueError(f'{value} is no text; write braces in quotes, such as "{ALL_PARAMS}"')
    text = value if isinstance(value, str) else json.dumps(value)
    if "\0" in text:
        raise ValueError("no argument can hold a null character")
    return text


def _read_env(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or any("=" in str(name) or not name for name in value):
        raise ValueError("must map names of variables to values")
    return {str(name): _read_text(text) for name, text in value.items()}


def _read_name(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("must be the name of a member of the program's JSON lines")
    return value


def _read_seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"must be 0 or more, got {value!r}")
    return float(value)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


READERS: dict[str, Any] = {
    "run": _read_run,
    "cwd": _read_text,
    "env": _read_env,
    "metric": _read_name,
    "step": _read_name,
    "grace_seconds": _read_seconds,
}
assert READERS.keys() == {each.name for each in fields(Command)} - {"name", "file"}
