"""Which trials a list shows, and in which order; pages follow each other without gaps.

A page ends at a place in the order: the key of its last trial, and the number where keys are
equal. Trials without a key come last. A trial that changes between two pages may be met twice or
not at all; those that have ended stay where they are.
"""

from __future__ import annotations

import datetime as dt
import enum
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import sqlalchemy as sa

from hpo.errors import InvalidField
from storage import tables as t
from storage.engine import seconds_between
from storage.exclusions import is_excluded

_KINDS = {t.ValueType.INF_POS: math.inf, t.ValueType.INF_NEG: -math.inf}
MAX_NUMBER = 2**31 - 1
MAX_MILLISECONDS = 2**53


class SortBy(enum.StrEnum):
    NUMBER = "number"
    VALUE = "value"
    STARTED = "started"
    DURATION = "duration"


def value_of(row: Any) -> float | None:
    """A trial's value from its columns `value` and `value_type`."""
    value: float | None = _KINDS.get(row.value_type, row.value)
    return value


def _value() -> sa.ColumnElement[Any]:
    column = t.trial_values.c
    cases = [(column.value_type == kind, number) for kind, number in _KINDS.items()]
    return sa.cast(sa.case(*cases, else_=column.value), sa.Double)


def _duration() -> sa.ColumnElement[Any]:
    seconds = seconds_between(t.trials.c.datetime_start, t.trials.c.datetime_complete)
    # In whole milliseconds: SQLite's seconds are right to about 0.05 ms, so equal ones differ.
    return sa.cast(sa.func.round(seconds * 1000), sa.BigInteger)


# By what is sorted, and how a key is read from the text of a place.
_KEYS: dict[SortBy, tuple[Callable[[], sa.ColumnElement[Any]], Callable[[str], Any]]] = {
    SortBy.NUMBER: (lambda: t.trials.c.number, int),
    SortBy.VALUE: (_value, float),
    SortBy.STARTED: (lambda: t.trials.c.datetime_start, dt.datetime.fromisoformat),
    SortBy.DURATION: (_duration, int),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialOrder:
    """By one key, then by number."""

    by: SortBy = SortBy.NUMBER
    descending: bool = False

    @property
    def key(self) -> sa.ColumnElement[Any]:
        return _KEYS[self.by][0]()

    def clauses(self) -> Iterator[sa.ColumnElement[Any]]:
        """For ORDER BY; databases do not agree on where nulls go."""
        if self.by is not SortBy.NUMBER:  # every trial has one
            yield self.key.is_(None)
        yield self.key.desc() if self.descending else self.key.asc()
        if self.by is not SortBy.NUMBER:
            yield t.trials.c.number.asc()


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialFilter:
    """What is None does not matter. A trial without a value is below and above nothing."""

    excluded: bool | None = None
    awaiting_attempt: bool | None = None
    min_value: float | None = None
    max_value: float | None = None

    def conditions(self) -> Iterator[sa.ColumnElement[bool]]:
        if self.excluded is not None:
            yield is_excluded() if self.excluded else ~is_excluded()
        if self.awaiting_attempt is not None:
            due = t.hpo_trial.c.next_attempt_at
            yield due.is_not(None) if self.awaiting_attempt else due.is_(None)
        if self.min_value is not None:
            yield _value() >= self.min_value
        if self.max_value is not None:
            yield _value() <= self.max_value


def place_of(order: TrialOrder, row: sa.Row[Any]) -> int | str:
    """Where a page ends: the number, or "key~number" in another order."""
    if order.by is SortBy.NUMBER:
        return int(row.number)
    key = row.sort_key
    text = "" if key is None else key.isoformat() if isinstance(key, dt.datetime) else repr(key)
    return f"{text}~{row.number}"


def beyond(order: TrialOrder, place: int | str | None) -> sa.ColumnElement[bool]:
    """The trials that come after a place. Raises InvalidField for one that no page has given."""
    if place is None:
        return sa.true()
    key, number = _read(order, str(place))
    if order.by is SortBy.NUMBER:
        return t.trials.c.number < number if order.descending else t.trials.c.number > number
    later = t.trials.c.number > number
    column = order.key
    if key is None:
        return sa.and_(column.is_(None), later)
    further = column < key if order.descending else column > key
    return sa.or_(further, sa.and_(column == key, later), column.is_(None))


def _read(order: TrialOrder, place: str) -> tuple[Any, int]:
    text, tilde, number = place.rpartition("~")
    if bool(tilde) is (order.by is SortBy.NUMBER) or not number.isdecimal():
        _refuse(place)
    try:
        key = _KEYS[order.by][1](text) if text else None
    except ValueError:
        _refuse(place)
    is_key = key == key and not (isinstance(key, int) and abs(key) > MAX_MILLISECONDS)
    if int(number) > MAX_NUMBER or not is_key:
        _refuse(place)
    return key, int(number)


def _refuse(place: str) -> NoReturn:
    sentence = "must be the next of a page in the same order"
    raise InvalidField("after", f"{sentence}, got {place[:60]!r}")
