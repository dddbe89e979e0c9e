"""Adoption: a study that plain Optuna made becomes one of the service, with its trials.

Its trials stay where they are and are no part of the budget; claims go on with the numbers after
them, and samplers learn from them. What another program left RUNNING has no lease, so it ends as
FAIL: that program must have ended.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from optuna.distributions import BaseDistribution, check_distribution_compatibility

from hpo.errors import InvalidFields, NotFound
from hpo.search.spaces import distribution_of
from hpo.space import Space
from hpo.study import StudyDefinition
from storage import tables as t
from storage.engine import Database, naive_utc
from storage.judging import judge_all
from storage.params import distribution
from storage.records import StudyRecord
from storage.requests import Answer, once
from storage.studies import (
    METRIC_NAMES_KEY,
    UUID_KEY,
    Studies,
    foreign_study_id,
    insert_study,
    lock_study,
    same_study,
    within_grid,
    written,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Adopted:
    """A study that has been adopted: its trials so far, and those that were left RUNNING."""

    study: StudyRecord
    n_trials: int
    n_failed: int


class Adoption:
    """Adopts studies of the same database."""

    def __init__(self, database: Database, studies: Studies) -> None:
        self._database, self._studies = database, studies

    def adopt(self, definition: StudyDefinition, *, given: frozenset[str]) -> Adopted:
        """Makes the study of this name one of ours; again, it changes nothing.

        Raises NotFound, InvalidFields when the definition does not go with the trials, or
        StudyExists when the study is one of ours with another definition.
        """
        definition, new_uuid = within_grid(definition), str(uuid.uuid4())

        def transaction(connection: sa.Connection) -> Answer:
            def make() -> Answer:
                existing = same_study(connection, definition, given)
                if existing is None:
                    return _adopt(connection, definition, new_uuid)
                return {"n_trials": _n_trials(connection, existing.study_id), "n_failed": 0}

            return once(connection, new_uuid, "adopt_study", "", make)

        answer = written(self._database, transaction)
        return Adopted(study=self._studies.get(definition.name), **answer)


def _adopt(connection: sa.Connection, definition: StudyDefinition, new_uuid: str) -> Answer:
    study_id = foreign_study_id(connection, definition.name)
    if study_id is None or not lock_study(connection, study_id):
        raise NotFound(
            f"The database holds no study {definition.name!r}; its name must be the one that "
            "Optuna knows."
        )
    faults = [*_direction_faults(connection, study_id, definition)]
    faults += _space_faults(connection, study_id, definition.space or {})
    if faults:
        raise InvalidFields(faults)
    _set_attrs(connection, study_id, definition, new_uuid)
    n_failed = _fail_running(connection, study_id)
    study = insert_study(connection, definition, new_uuid, study_id=study_id, origin="adopt")
    judge_all(connection, study)
    return {"n_trials": _n_trials(connection, study_id), "n_failed": n_failed}


def _n_trials(connection: sa.Connection, study_id: int) -> int:
    count = sa.select(sa.func.count()).where(t.trials.c.study_id == study_id)
    return int(connection.execute(count).scalar_one())


def _direction_faults(
    connection: sa.Connection, study_id: int, definition: StudyDefinition
) -> list[tuple[str, str]]:
    column = t.directions.c
    stored = connection.execute(
        sa.select(column.direction).where(column.study_id == study_id).order_by(column.objective)
    )
    theirs = [direction.name.lower() for direction in stored.scalars()]
    if theirs == list(definition.directions):
        return []
    field = "directions" if definition.is_multi_objective else "direction"
    return [(field, f"must be that of the study: {', '.join(theirs)}")]


def _space_faults(connection: sa.Connection, study_id: int, space: Space) -> list[tuple[str, str]]:
    """What the declared parameters have against those of the trials; nothing where none are."""
    faults: dict[str, str] = {}
    param = t.trial_params.c
    stored = connection.execute(
        sa.select(param.param_name, param.distribution_json)
        .join(t.trials, t.trials.c.trial_id == param.trial_id)
        .where(t.trials.c.study_id == study_id)
        .distinct()
        .order_by(param.param_name)
    )
    for name, document in stored if space else ():
        sentence = difference(distribution(document), name, space)
        if sentence is not None:
            faults.setdefault(f"space.{name}", sentence)
    return list(faults.items())


def difference(stored: BaseDistribution, name: str, space: Space) -> str | None:
    """Why a declared space cannot have trials of this parameter; None when it can."""
    if name not in space:
        return "is a parameter of the study's trials; declare it, or leave the space out"
    try:
        check_distribution_compatibility(stored, distribution_of(space[name]))
    except ValueError:
        return f"must go with what the trials were drawn from: {stored}"
    return None


def _set_attrs(
    connection: sa.Connection, study_id: int, definition: StudyDefinition, new_uuid: str
) -> None:
    attrs: dict[str, Any] = {UUID_KEY: new_uuid}
    if definition.metrics:
        attrs[METRIC_NAMES_KEY] = list(definition.metrics)
    column = t.study_system_attrs.c
    for key, value in attrs.items():
        mine = sa.and_(column.study_id == study_id, column.key == key)
        connection.execute(t.study_system_attrs.delete().where(mine))
        row = {"study_id": study_id, "key": key, "value_json": json.dumps(value)}
        connection.execute(t.study_system_attrs.insert().values(row))


def _fail_running(connection: sa.Connection, study_id: int) -> int:
    trial = t.trials.c
    ghosts = sa.and_(trial.study_id == study_id, trial.state == "RUNNING")
    update = t.trials.update().where(ghosts)
    return connection.execute(update.values(state="FAIL", datetime_complete=naive_utc())).rowcount
