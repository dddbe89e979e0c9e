"""Faults of a request as sentences for the one who sent it: which field, what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

# Where FastAPI says a value came from; no part of a field's name.
SOURCES = {"body", "query", "path", "header"}

# pydantic's kinds of faults. Sentences go on from the name of the field.
SENTENCES = {
    "missing": "is required",
    "extra_forbidden": "is not known here; remove it or correct its spelling",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "dict_type": "must be an object",
    "list_type": "must be an array",
    "string_type": "must be a string",
    "string_unicode": "must be valid Unicode, without lone surrogates",
    "string_too_short": "must have {min_length} characters or more",
    "string_too_long": "must have {max_length} characters or fewer",
    "too_long": "must have {max_length} items or fewer",
    "too_short": "must have {min_length} items or more",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a smaller number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be finite",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be {ge} or more",
    "less_than_equal": "must be {le} or less",
    "enum": "must be {expected}",
    "literal_error": "must be {expected}",
    "uuid_parsing": "must be a UUID",
    "uuid_type": "must be a UUID",
    "json_invalid": "is not JSON: {error}",
    "value_error": "{error}",
}
SPEAK_FOR_THEMSELVES = {"missing", "extra_forbidden", "json_invalid", "value_error", "value"}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a request; `field` is a path such as space.lr.low."""

    field: str
    message: str


class Faults(list[Fault]):
    """Faults in the order in which they were found; the first one of a top-level field counts.

    What is found later about the same field comes from the stand-in that took its place.
    """

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        super().__init__(faults)
        self._closed = {top_of(fault.field) for fault in self}

    def add(self, field: str, message: str) -> None:
        """Adds a fault unless its field was at fault before the definition was built."""
        if top_of(field) not in self._closed:
            self.append(Fault(field, message))


def top_of(field: str) -> str:
    """The field of the document in which a field lies."""
    return field.partition(".")[0]


def fault_of(error: Mapping[str, Any]) -> Fault:
    """One error of pydantic or FastAPI as a fault."""
    if error["type"] == "json_invalid":
        return Fault("body", SENTENCES["json_invalid"].format(**error["ctx"]))
    return Fault(_field(error["loc"]), _sentence(error))


def _field(location: tuple[str | int, ...]) -> str:
    """The path of a field: without its source, and "[key]" stands for a name itself."""
    parts = [str(part) for part in location if part != "[key]"]
    if len(parts) > 1 and parts[0] in SOURCES:
        parts = parts[1:]
    return ".".join(parts)


def _sentence(error: Mapping[str, Any]) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind not in SENTENCES:
        return str(error["msg"])
    sentence = SENTENCES[kind].format(**context)
    value = error.get("input")
    if kind in SPEAK_FOR_THEMSELVES or isinstance(value, dict | list | bytes):
        return sentence
    return f"{sentence}, got {_shortened(value)}"


def _shortened(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
