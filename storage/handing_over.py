"""A trial is handed over: its parameters, the first attempt and the event, in one statement."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.dml import UpdateBase

from hpo.events import EventKind
from storage import leases
from storage import tables as t
from storage.engine import db_now
from storage.events import appended
from storage.search import Sampled
from storage.statements import Guarded, Held, given, inserted

PARAM = ("param_name", "param_value", "distribution_json")
ATTR = ("key", "value_json")


def handing_over(sampled: Sampled) -> tuple[Guarded, dict[str, Any]]:
    """The statement for so many parameters and attributes, and their values."""
    values = {
        **_numbered(sampled.rows),
        **_numbered([dict(zip(ATTR, attr, strict=True)) for attr in sampled.attrs.items()]),
        "relative_params": sampled.relative_params,
    }
    return _statement(len(sampled.rows), len(sampled.attrs)), values


def _numbered(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {f"{name}_{at}": value for at, row in enumerate(rows) for name, value in row.items()}


# A study has the same parameters in each trial, unless they have conditions.
@functools.lru_cache(maxsize=256)
def _statement(n_params: int, n_attrs: int) -> Guarded:
    lease = t.hpo_lease.c
    seconds: sa.ColumnElement[float] = sa.bindparam("seconds", type_=sa.Double())
    guard = (
        t.hpo_lease.update()
        .where(lease.token == given(lease.token), lease.phase == leases.SAMPLING)
        .values(phase=leases.RUNNING, acquired_until=db_now(seconds))
        .returning(lease.study_uuid, lease.number, lease.trial_id, lease.attempt)
    )

    def writes(held: Held) -> Iterator[UpdateBase]:
        if n_params:
            yield _rows(t.trial_params, PARAM, n_params, held)
        if n_attrs:
            yield _rows(t.trial_system_attrs, ATTR, n_attrs, held)
        yield from _begun(held)

    return Guarded(guard, lambda held: list(writes(held)))


def _rows(table: sa.Table, names: Sequence[str], n_rows: int, held: Held) -> UpdateBase:
    rows = [
        sa.select(held.trial_id, *(given(table.c[name], f"{name}_{at}") for name in names))
        for at in range(n_rows)
    ]
    return table.insert().from_select(["trial_id", *names], sa.union_all(*rows))


def _begun(held: Held) -> Iterator[UpdateBase]:
    trial, attempt = t.hpo_trial.c, t.hpo_attempt.c
    mine = sa.and_(trial.study_uuid == held.study_uuid, trial.number == held.number)
    relative = given(trial.relative_params)
    yield t.hpo_trial.update().where(mine).values(relative_params=relative, n_attempts=held.attempt)
    names = ("token", "worker_id", "worker_name", "device")
    yield inserted(
        t.hpo_attempt,
        {
            **{name: getattr(held, name) for name in ("study_uuid", "number", "attempt")},
            **{name: given(attempt[name]) for name in names},
            "started_at": db_now(),
            "message": sa.literal(""),
            "traceback": sa.literal(""),
        },
    )
    yield appended(EventKind.TRIAL_STARTED, held)
