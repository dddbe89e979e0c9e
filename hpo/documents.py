"""Reads study documents: YAML or JSON, with the meaning that the REST body has.

YAML 1.1, which PyYAML reads, takes 1e-5 for a string, `on` for true and 1:30 for 90: none of
this may happen to a learning rate or to a choice, so only JSON's plain values are recognised.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from hpo.errors import HpoError
from hpo.numbers import strict

STUDY_EXAMPLE = (
    "a study document, such as\n"
    "  name: first\n  objective: objectives.synthetic:quadratic\n  n_trials: 20"
)
PLAIN_VALUES = {
    "null": (r"null|~|", [*"n~", ""]),
    "bool": (r"true|false", [*"tf"]),
    "int": (r"[-+]?(0|[1-9][0-9]*)", [*"-+0123456789"]),
    "float": (
        r"[-+]?(([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.inf)|\.nan",
        [*"-+.0123456789"],
    ),
}


class InvalidDocument(HpoError):
    """A document that cannot be read as what it should be."""

    code = "invalid_document"


class DocumentLoader(yaml.SafeLoader):
    """Recognises JSON's plain values only, and refuses a key that stands there twice."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's class attribute

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for index, key in enumerate(keys):
            if key in keys[:index]:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key!r} stands there twice", node.value[index][0].start_mark
                )
        return super().construct_mapping(node, deep)


for _name, (_pattern, _first) in PLAIN_VALUES.items():
    DocumentLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_name}", re.compile(rf"(?:{_pattern})\Z"), _first
    )


def read_document(path: Path) -> dict[str, Any]:
    """The document in a file, or on standard input for "-". Raises InvalidDocument."""
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidDocument(f"{path}: {error}") from None
    return parse_document(text, source="standard input" if str(path) == "-" else str(path))


def parse_document(text: str, *, source: str, example: str = STUDY_EXAMPLE) -> dict[str, Any]:
    """Reads one mapping. Raises InvalidDocument that names the line at fault."""
    try:
        document = yaml.load(text, DocumentLoader)
    except yaml.MarkedYAMLError as error:
        line = f" line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InvalidDocument(f"{source}{line}: {error.problem}") from None
    except yaml.YAMLError as error:
        raise InvalidDocument(f"{source}: {error}") from None
    if not isinstance(document, dict):
        raise InvalidDocument(f"{source}: must hold {example}")
    read: dict[str, Any] = strict(document)
    return read


def plain_value(text: str) -> Any:
    """What a value given on the command line means: 20 is a number, adam a string."""
    try:
        return strict(yaml.load(text, DocumentLoader)) if text else ""
    except yaml.YAMLError:
        return text
