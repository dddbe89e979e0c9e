"""A study as a file, JSON that an import reads or a table; made in pieces and never held whole."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from api.schemas.study_document import StudyHead, TrialDocument
from hpo.numbers import encode_number, strict
from hpo.version import __version__
from storage.store import Store
from storage.transfer import StudyCopy, TrialCopy

MEDIA_TYPES = {"json": "application/json", "csv": "text/csv; charset=utf-8"}
# So many trials make a piece; each piece is one change of the thread.
TRIALS_PER_PIECE = 50
FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")


def pieces_of(store: Store, name: str, form: str) -> Iterator[bytes]:
    """The file in pieces. Raises NotFound now, not when the first piece is asked for."""
    return _WRITERS[form](store, name)


def _json_pieces(store: Store, name: str) -> Iterator[bytes]:
    head = StudyHead.of(
        store.transfer.study(name), version=__version__, now=dt.datetime.now(dt.UTC)
    )
    begin = head.model_dump_json(exclude={"study"}).removesuffix("}")
    definition = json.dumps(head.study, allow_nan=False)
    return _joined(_json_lines(store, name, f'{begin},"study":{definition},"trials":['))


def _json_lines(store: Store, name: str, begin: str) -> Iterator[str]:
    yield begin
    separator = "\n"
    for trial in store.transfer.trials(name):
        yield separator + TrialDocument.of(trial).model_dump_json()
        separator = ",\n"
    yield "\n]}\n"


def _csv_pieces(store: Store, name: str) -> Iterator[bytes]:
    study, (params, attrs) = store.transfer.study(name), store.transfer.names(name)
    return _joined(_csv_lines(store, name, _columns(study, params, attrs)))


def _csv_lines(
    store: Store, name: str, columns: Mapping[str, Callable[[TrialCopy], Any]]
) -> Iterator[str]:
    yield _csv_line(columns.keys())
    for trial in store.transfer.trials(name):
        yield _csv_line(_cell(column(trial)) for column in columns.values())


def _columns(
    study: StudyCopy, params: Sequence[str], attrs: Sequence[str]
) -> dict[str, Callable[[TrialCopy], Any]]:
    """The name of each column, and what it holds of a trial."""

    def value(index: int) -> Callable[[TrialCopy], Any]:
        return lambda trial: trial.values[index] if index < len(trial.values) else None

    def param(name: str) -> Callable[[TrialCopy], Any]:
        return lambda trial: trial.params.get(name)

    def attr(name: str) -> Callable[[TrialCopy], Any]:
        return lambda trial: trial.user_attrs.get(name)

    n_values = len(study.definition.directions)
    names = ["value"] if n_values == 1 else [f"values.{index}" for index in range(n_values)]
    return {
        "number": lambda trial: trial.number,
        "state": lambda trial: trial.state.value,
        **{name: value(index) for index, name in enumerate(names)},
        **{f"params.{name}": param(name) for name in params},
        **{f"user_attrs.{name}": attr(name) for name in attrs},
        "reason": lambda trial: trial.reason,
        "excluded": lambda trial: trial.exclusion is not None,
        "started_at": lambda trial: trial.started_at,
        "ended_at": lambda trial: trial.ended_at,
    }


def _cell(value: Any) -> str:
    """Text as it is, everything else as JSON would write it; nothing for what is not there.

    An apostrophe before text that a spreadsheet would take for a formula; numbers stay as they are.
    """
    if value is None:
        return ""
    if isinstance(value, dt.datetime):
        return value.isoformat()
    if isinstance(value, float):
        return str(encode_number(value))
    if isinstance(value, str):
        return f"'{value}" if value.startswith(FORMULA_SIGNS) else str(value)
    return json.dumps(strict(value), ensure_ascii=False)


def _csv_line(cells: Any) -> str:
    line = io.StringIO()
    csv.writer(line).writerow(cells)
    return line.getvalue()


def _joined(lines: Iterator[str]) -> Iterator[bytes]:
    """Few large pieces of many lines."""
    waiting: list[str] = []
    for line in lines:
        waiting.append(line)
        if len(waiting) == TRIALS_PER_PIECE:
            yield "".join(waiting).encode()
            waiting.clear()
    yield "".join(waiting).encode()


_WRITERS: dict[str, Callable[[Store, str], Iterator[bytes]]] = {
    "json": _json_pieces,
    "csv": _csv_pieces,
}
assert _WRITERS.keys() == MEDIA_TYPES.keys()
