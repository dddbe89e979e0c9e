"""A study document read trial by trial: what stands in memory is its text and one trial."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from pydantic import ValidationError

from api.errors import InvalidRequest
from api.faults import Fault, fault_of
from api.schemas.study_document import StudyDocument, TrialDocument
from storage.importing import MAX_FAULTS
from storage.transfer import TrialCopy

_SPACE = re.compile(r"[ \t\n\r]*")


@dataclass(frozen=True, slots=True)
class StudyText:
    """A document whose JSON is whole; `trials` begins at a place in its text."""

    text: str
    head: StudyDocument
    trials_at: int

    def trials(self) -> Iterator[TrialCopy]:
        """Each trial; raises InvalidRequest in the end when there were faulty ones."""
        faults: list[Fault] = []
        for index, element in enumerate(_Cursor(self.text, self.trials_at).elements()):
            try:
                trial = TrialDocument.model_validate(element)
            except ValidationError as error:
                faults += _faults_of(error, ("trials", index))
            if len(faults) >= MAX_FAULTS:
                break
            if not faults:
                yield trial.to_copy()
        if faults:
            raise InvalidRequest(faults[:MAX_FAULTS])


def study_text(body: bytes) -> StudyText:
    """Reads all of a document but its trials. Raises InvalidRequest."""
    try:
        text = body.decode(json.detect_encoding(body))
        members, trials_at = _members(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest([Fault("body", f"is not JSON: {error}")]) from None
    try:
        return StudyText(text, StudyDocument.model_validate(members), trials_at)
    except ValidationError as error:
        raise InvalidRequest(_faults_of(error)) from None


def _faults_of(error: ValidationError, place: tuple[str | int, ...] = ()) -> list[Fault]:
    found = error.errors(include_url=False)[:MAX_FAULTS]
    return [fault_of({**fault, "loc": (*place, *fault["loc"])}) for fault in found]


def _members(text: str) -> tuple[Any, int]:
    """The document with an empty array for its trials, and where these begin.

    What is no object is answered as it is. Raises ValueError, also for what stands in a trial.
    """
    cursor, trials_at = _Cursor(text), 0
    members: dict[str, Any] = {}
    if not cursor.takes("{"):
        return cursor.value(), 0
    is_over = cursor.takes("}")
    while not is_over:
        key = cursor.value()
        cursor.must_take(":")
        if key == "trials" and cursor.next == "[":
            members[key], trials_at = [], cursor.place
            deque(cursor.elements(), maxlen=0)
        else:
            members[key] = cursor.value()
        is_over = cursor.takes("}")
        if not is_over:
            cursor.must_take(",")
    if cursor.next:
        raise ValueError(f"extra data at character {cursor.place}")
    return members, trials_at


class _Cursor:
    """A place in a JSON text; values are read by Python's own decoder."""

    def __init__(self, text: str, place: int = 0) -> None:
        self._text, self.place = text, place

    @property
    def next(self) -> str:
        """The next character that is no space; empty at the end."""
        found = _SPACE.match(self._text, self.place)
        assert found is not None, "no space is a match, too"
        self.place = found.end()
        return self._text[self.place : self.place + 1]

    def takes(self, character: str) -> bool:
        is_next = self.next == character
        self.place += is_next
        return is_next

    def must_take(self, character: str) -> None:
        if not self.takes(character):
            raise ValueError(f"{character!r} is missing at character {self.place}")

    def value(self) -> Any:
        _ = self.next
        value, self.place = _DECODER.raw_decode(self._text, self.place)
        return value

    def elements(self) -> Iterator[Any]:
        """Those of an array, one by one."""
        self.must_take("[")
        is_over = self.takes("]")
        while not is_over:
            yield self.value()
            is_over = self.takes("]")
            if not is_over:
                self.must_take(",")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f'{name} is not JSON; write the string "{name}"')


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
