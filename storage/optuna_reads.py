"""Trials as Optuna sees them, read without the ORM: what has changed of a study in one statement.

The stock storage loads 10,000 trials in 7 to 12 s; a service pays that at every start, and seven
statements at every look at trials of which one runs.
"""

from __future__ import annotations

import datetime as dt
import functools
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from optuna.distributions import BaseDistribution, json_to_distribution
from optuna.trial import FrozenTrial, TrialState

from hpo.search.stored import StoredTrial
from storage import tables as t
from storage.lists import is_listed, list_of

_INFINITE = {"INF_POS": float("inf"), "INF_NEG": float("-inf"), "NAN": float("nan")}


class _Part(NamedTuple):
    """One table, its columns brought under the names that all parts share."""

    table: sa.Table
    row_id: Any
    name: Any
    text: Any = None
    number: Any = None
    step: Any = None
    started: Any = None
    ended: Any = None

    def select(self, place: int, chosen: sa.ColumnElement[bool]) -> sa.Select[Any]:
        return sa.select(
            sa.literal_column(str(place)).label("place"),
            self.row_id.label("row_id"),
            self.table.c.trial_id.label("trial_id"),
            sa.cast(self.name, sa.Text).label("name"),
            _or_null(self.text, sa.Text).label("text"),
            _or_null(self.number, sa.Double).label("number"),
            _or_null(self.step, sa.Integer).label("step"),
            _or_null(self.started, sa.DateTime).label("started"),
            _or_null(self.ended, sa.DateTime).label("ended"),
        ).where(chosen)


def _or_null(column: Any, kind: type[sa.types.TypeEngine[Any]]) -> Any:
    return sa.cast(sa.null(), kind) if column is None else column


_trial, _param, _value, _step = (
    table.c for table in (t.trials, t.trial_params, t.trial_values, t.trial_steps)
)
_user, _system = t.trial_user_attrs.c, t.trial_system_attrs.c
HEADS, PARAMS, VALUES, STEPS, USER_ATTRS, SYSTEM_ATTRS = range(6)
# In this order: a trial that is read as finished has all its rows in the tables read after it.
_PARTS = (
    _Part(t.trials, _trial.trial_id, _trial.state, step=_trial.number,
          started=_trial.datetime_start, ended=_trial.datetime_complete),
    _Part(t.trial_params, _param.param_id, _param.param_name, _param.distribution_json,
          _param.param_value),
    _Part(t.trial_values, _value.trial_value_id, _value.value_type, number=_value.value,
          step=_value.objective),
    _Part(t.trial_steps, _step.trial_intermediate_value_id, _step.intermediate_value_type,
          number=_step.intermediate_value, step=_step.step),
    _Part(t.trial_user_attrs, _user.trial_user_attribute_id, _user.key, _user.value_json),
    _Part(t.trial_system_attrs, _system.trial_system_attribute_id, _system.key,
          _system.value_json),
)  # fmt: skip


def _selects(chosen: sa.ColumnElement[bool]) -> Iterator[sa.Select[Any]]:
    ids = sa.select(_trial.trial_id).where(chosen).scalar_subquery()
    for place, part in enumerate(_PARTS):
        yield part.select(place, chosen if place == HEADS else part.table.c.trial_id.in_(ids))


def _together(chosen: sa.ColumnElement[bool]) -> sa.CompoundSelect[Any]:
    return sa.union_all(*_selects(chosen)).order_by("place", "row_id")


def _has_ended() -> sa.ColumnElement[bool]:
    return sa.and_(_trial.state != "RUNNING", _trial.state != "WAITING")


def _is_among(name: str) -> sa.ColumnElement[bool]:
    return is_listed(_trial.trial_id, sa.bindparam(name, type_=list_of(sa.Integer())))


_CHANGED = _together(
    sa.and_(
        # The sum keeps databases from the index by study, under which all its trials stand.
        _trial.study_id + 0 == sa.bindparam("study_id"),
        sa.or_(_trial.trial_id > sa.bindparam("beyond"), _is_among("listed")),
        sa.or_(_has_ended(), sa.not_(_is_among("known"))),
    )
)
_ONE = _together(_trial.trial_id == sa.bindparam("trial_id"))


def frozen_trials(connection: sa.Connection, chosen: sa.ColumnElement[bool]) -> list[FrozenTrial]:
    """The trials for which `chosen`, a condition on Optuna's trials table, holds; by trial id."""
    statements = (select.order_by("row_id") for select in _selects(chosen))
    return _assembled(row for one in statements for row in connection.execute(one))


def trial_of(connection: sa.Connection, trial_id: int) -> FrozenTrial | None:
    """One trial, in one statement."""
    found = _assembled(connection.execute(_ONE, {"trial_id": trial_id}))
    return found[0] if found else None


def changed_trials(
    connection: sa.Connection,
    study_id: int,
    *,
    beyond: int,
    listed: Sequence[int] = (),
    known: Sequence[int] = (),
) -> list[FrozenTrial]:
    """The trials of a study beyond one, and those listed, in one statement; by trial id.

    A trial that is `known` comes only when it has ended.
    """
    if beyond < 0 and not listed:
        return frozen_trials(connection, _trial.study_id == study_id)
    if beyond < 0:  # none has ended; other studies' trials stand below the first one
        beyond = min(listed) - 1
    names = {"study_id": study_id, "beyond": beyond, "listed": listed, "known": known}
    return _assembled(connection.execute(_CHANGED, names))


def _assembled(rows: Iterable[Any]) -> list[FrozenTrial]:
    heads: list[Any] = []
    params: dict[int, list[tuple[str, str, float]]] = defaultdict(list)
    values: dict[int, dict[int, float]] = defaultdict(dict)
    steps: dict[int, dict[int, float]] = defaultdict(dict)
    attrs: tuple[dict[int, dict[str, Any]], ...] = (defaultdict(dict), defaultdict(dict))
    for row in rows:
        place, _, trial_id, name, text, number, step, _, _ = row
        if place == STEPS:
            steps[trial_id][step] = _INFINITE.get(name, number)
        elif place == PARAMS:
            params[trial_id].append((name, text, number))
        elif place == VALUES:
            values[trial_id][step] = _INFINITE.get(name, number)
        elif place == HEADS:
            heads.append(row)
        else:
            attrs[place - USER_ATTRS][trial_id][sys.intern(name)] = json.loads(text)
    return [
        _trial_of(
            head,
            _Drawn.of(params.pop(head.trial_id, ())),
            values.pop(head.trial_id, {}),
            user_attrs=attrs[0].pop(head.trial_id, {}),
            system_attrs=attrs[1].pop(head.trial_id, {}),
            intermediate_values=steps.pop(head.trial_id, {}),
        )
        for head in heads
    ]


class _Drawn(NamedTuple):
    """The parameters of a trial in the order in which they were drawn."""

    params: dict[str, Any]
    distributions: dict[str, BaseDistribution]

    @classmethod
    def of(cls, rows: Sequence[tuple[str, str, float]]) -> _Drawn:
        names, distributions = _space(tuple((name, text) for name, text, _ in rows))
        values = (number for _, _, number in rows)
        return cls(
            {
                name: distribution.to_external_repr(value)
                for (name, distribution), value in zip(names, values, strict=True)
            },
            distributions,
        )


# Most trials of a study have the same space: one dict for all that have ended, to which Optuna adds
# nothing any more, saves half of the memory and most of the time of loading.
@functools.lru_cache(maxsize=4096)
def _space(
    documents: tuple[tuple[str, str], ...],
) -> tuple[Sequence[tuple[str, BaseDistribution]], dict[str, BaseDistribution]]:
    found = {sys.intern(name): _distribution(document) for name, document in documents}
    return list(found.items()), found


@functools.lru_cache(maxsize=4096)
def _distribution(document: str) -> BaseDistribution:
    return json_to_distribution(document)


def _trial_of(head: Any, drawn: _Drawn, values: Mapping[int, float], **facts: Any) -> FrozenTrial:
    state = TrialState[head.name]
    space = drawn.distributions if state.is_finished() else dict(drawn.distributions)
    return StoredTrial(
        number=head.step,
        state=state,
        value=None,
        values=[values[objective] for objective in sorted(values)] or None,
        datetime_start=_local(head.started),
        datetime_complete=_local(head.ended),
        params=drawn.params,
        distributions=space,
        trial_id=head.trial_id,
        **facts,
    )


def _local(stored: dt.datetime | None) -> dt.datetime | None:
    # Optuna 5 stores naive UTC and answers naive local time; the service has TZ=UTC.
    return (
        None if stored is None else stored.replace(tzinfo=dt.UTC).astimezone().replace(tzinfo=None)
    )
