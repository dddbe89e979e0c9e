"""Trials that a study has from elsewhere: outside its budget, but judged by their constraints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from storage import tables as t
from storage.bulk import TrialRows
from storage.remarks import CONSTRAINT_PREFIX


def judge_rows(
    connection: sa.Connection, study_uuid: str, ids: Sequence[int], trials: Sequence[TrialRows]
) -> None:
    """Notes which of the trials just written violate a constraint."""
    _insert(
        connection,
        study_uuid,
        [
            (trial.number, trial_id, trial.is_feasible)
            for trial_id, trial in zip(ids, trials, strict=True)
            if trial.is_feasible is not None
        ],
    )


def judge_all(connection: sa.Connection, study: sa.Row[Any]) -> None:
    """Notes which trials of a study that another program made violate a constraint."""
    trial, attr = t.trials.c, t.trial_system_attrs.c
    rows = connection.execute(
        sa.select(trial.number, trial.trial_id, attr.value_json)
        .join(t.trial_system_attrs, attr.trial_id == trial.trial_id)
        .where(trial.study_id == study.study_id)
        .where(attr.key.startswith(CONSTRAINT_PREFIX, autoescape=True))
    )
    judged: dict[tuple[int, int], bool] = {}
    for number, trial_id, document in rows:
        value = json.loads(document)
        is_kept = isinstance(value, int | float) and value <= 0
        judged[number, trial_id] = judged.get((number, trial_id), True) and is_kept
    _insert(connection, study.uuid, [(*key, is_feasible) for key, is_feasible in judged.items()])


def _insert(
    connection: sa.Connection, study_uuid: str, judged: Sequence[tuple[int, int, bool | None]]
) -> None:
    rows = [
        {
            "study_uuid": study_uuid,
            "number": number,
            "trial_id": trial_id,
            "n_attempts": 0,
            "message": "",
            "is_feasible": is_feasible,
            "is_counted": False,
        }
        for number, trial_id, is_feasible in judged
    ]
    if rows:
        connection.execute(t.hpo_trial.insert(), rows)
