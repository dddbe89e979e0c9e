"""What a worker says of a trial beside its values: user attributes and constraints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from hpo.numbers import strict
from storage import tables as t
from storage.records import Remarks

# Optuna's own key (5.0), read by its samplers and by FrozenTrial.constraints.
CONSTRAINT_PREFIX = "constraints:"


def store_remarks(connection: sa.Connection, held: Any, remarks: Remarks) -> None:
    """Stores them with the trial of a lease, the last value of each key."""
    if remarks.user_attrs:
        _upsert(connection, t.trial_user_attrs, held.trial_id, remarks.user_attrs)
    if remarks.constraints:
        named = {CONSTRAINT_PREFIX + key: value for key, value in remarks.constraints.items()}
        _upsert(connection, t.trial_system_attrs, held.trial_id, named)
        _judge(connection, held)


def constraints_of(connection: sa.Connection, trial_ids: list[int]) -> dict[int, dict[str, float]]:
    """Each trial's constraints by name; above 0 is violated."""
    attr = t.trial_system_attrs.c
    rows = connection.execute(
        sa.select(attr.trial_id, attr.key, attr.value_json).where(
            attr.trial_id.in_(trial_ids), attr.key.startswith(CONSTRAINT_PREFIX, autoescape=True)
        )
    )
    found: dict[int, dict[str, float]] = {trial_id: {} for trial_id in trial_ids}
    for trial_id, key, document in rows:
        found[trial_id][key.removeprefix(CONSTRAINT_PREFIX)] = json.loads(document)
    return found


def _judge(connection: sa.Connection, held: Any) -> None:
    constraints = constraints_of(connection, [held.trial_id])[held.trial_id]
    trial = t.hpo_trial.c
    connection.execute(
        t.hpo_trial.update()
        .where(trial.study_uuid == held.study_uuid, trial.number == held.number)
        .values(is_feasible=all(value <= 0 for value in constraints.values()))
    )


def _upsert(
    connection: sa.Connection, table: sa.Table, trial_id: int, attrs: Mapping[str, Any]
) -> None:
    mine = sa.and_(table.c.trial_id == trial_id, table.c.key.in_(list(attrs)))
    connection.execute(table.delete().where(mine))
    rows = [
        {"trial_id": trial_id, "key": key, "value_json": json.dumps(strict(value))}
        for key, value in attrs.items()
    ]
    connection.execute(table.insert(), rows)
