"""Studies as they leave for another server: the definition, and each trial with all that is known.

Trials are read page by page, so memory is bounded; what runs is told as it stands when its page is
read. Logs and models stay behind.
"""

from __future__ import annotations

import datetime as dt
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from hpo.study import StudyDefinition, StudyState
from hpo.trial import Reason, TrialState
from storage import tables as t
from storage.engine import Database
from storage.limits import stopped_clock
from storage.records import AttemptRecord, CurvePoint, Exclusion, TrialRecord
from storage.remarks import CONSTRAINT_PREFIX
from storage.studies import row_and_definition
from storage.trials import Trials

PAGE = 200

# Of the attributes that samplers and pruners write, those that go along: plain JSON that has its
# meaning elsewhere, too. CMA-ES keeps pickles there, which nobody should read from a file.
KEPT_ATTRS = ("completed_rung_", "grid_id", "search_space")
KEPT_ENDS = (":generation",)


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyCopy:
    """A study without its trials; `ran_seconds` is what counts towards its time limit."""

    definition: StudyDefinition
    state: StudyState
    reason: str | None
    created_at: dt.datetime
    ended_at: dt.datetime | None
    ran_seconds: float
    archived_at: dt.datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialCopy:
    """A trial; `distributions` are Optuna's, as JSON, `is_counted` is None for foreign trials.

    `told` is the verdict that ended it: {"verdict", "reason", "evidence"}.
    """

    number: int
    state: TrialState
    params: Mapping[str, Any] = field(default_factory=dict)
    distributions: Mapping[str, Any] = field(default_factory=dict)
    values: Sequence[float] = ()
    curve: Sequence[CurvePoint] = ()
    user_attrs: Mapping[str, Any] = field(default_factory=dict)
    system_attrs: Mapping[str, Any] = field(default_factory=dict)
    constraints: Mapping[str, float] = field(default_factory=dict)
    is_counted: bool | None = None
    reason: Reason | None = None
    message: str = ""
    told: Mapping[str, Any] | None = None
    attempt: int = 0
    attempts: Sequence[AttemptRecord] = ()
    enqueued: Mapping[str, Any] | None = None
    exclusion: Exclusion | None = None
    started_at: dt.datetime | None = None
    ended_at: dt.datetime | None = None


def is_kept(key: str) -> bool:
    """Whether a system attribute of a trial goes along."""
    return key.startswith(KEPT_ATTRS) or key.endswith(KEPT_ENDS)


class Transfer:
    """Reads studies for a copy. All raise NotFound."""

    def __init__(self, database: Database, trials: Trials) -> None:
        self._database, self._trials = database, trials

    def study(self, name: str) -> StudyCopy:
        """The study without its trials."""

        def read(connection: sa.Connection) -> StudyCopy:
            row, definition = row_and_definition(connection, name)
            ran = sa.select(stopped_clock()["ran_seconds"]).where(t.hpo_study.c.uuid == row.uuid)
            return StudyCopy(
                definition=definition,
                state=StudyState(row.state),
                reason=row.reason,
                created_at=row.created_at,
                ended_at=row.ended_at,
                archived_at=row.archived_at,
                ran_seconds=connection.execute(ran).scalar_one(),
            )

        return self._database.read(read)

    def names(self, name: str) -> tuple[list[str], list[str]]:
        """Every parameter and every user attribute that a trial of the study has, by name."""

        def read(connection: sa.Connection) -> tuple[list[str], list[str]]:
            study, _ = row_and_definition(connection, name)
            params, attrs = t.trial_params.c, t.trial_user_attrs.c
            return (
                _distinct(connection, study, params.trial_id, params.param_name),
                _distinct(connection, study, attrs.trial_id, attrs.key),
            )

        return self._database.read(read)

    def trials(self, name: str) -> Iterator[TrialCopy]:
        """Every trial, by number."""
        page = self._trials.page(name, limit=PAGE, curves=True)
        yield from self._copies(name, page.items)
        while page.next is not None:
            page = self._trials.page(name, limit=PAGE, after=page.next, curves=True)
            yield from self._copies(name, page.items)

    def _copies(self, name: str, records: Sequence[TrialRecord]) -> list[TrialCopy]:
        numbers = [record.number for record in records]

        def read(connection: sa.Connection) -> list[TrialCopy]:
            study, _ = row_and_definition(connection, name)
            ids = _ids(connection, study, numbers)
            distributions, attrs = _distributions(connection, ids), _attrs(connection, ids)
            ours = _ours(connection, study, numbers)
            return [
                _copy(record, distributions[record.number], attrs[record.number], ours)
                for record in records
            ]

        return self._database.read(read)


def _copy(
    record: TrialRecord,
    distributions: Mapping[str, Any],
    attrs: Mapping[str, Any],
    ours: Mapping[int, Any],
) -> TrialCopy:
    row = ours.get(record.number)
    constraints = {
        key.removeprefix(CONSTRAINT_PREFIX): value
        for key, value in attrs.items()
        if key.startswith(CONSTRAINT_PREFIX) and isinstance(value, int | float)
    }
    return TrialCopy(
        number=record.number,
        state=record.state,
        params=record.params,
        distributions=distributions,
        values=record.values,
        curve=record.curve,
        user_attrs=record.user_attrs,
        system_attrs={key: value for key, value in attrs.items() if is_kept(key)},
        constraints=constraints,
        is_counted=None if row is None else row.is_counted,
        reason=record.reason,
        message=record.message,
        told=None if row is None else row.told,
        attempt=record.attempt,
        attempts=record.attempts,
        enqueued=record.enqueued,
        exclusion=record.exclusion,
        started_at=record.started_at,
        ended_at=record.ended_at,
    )


def _distinct(
    connection: sa.Connection, study: sa.Row[Any], trial_id: Any, column: Any
) -> list[str]:
    select = (
        sa.select(column)
        .join(t.trials, t.trials.c.trial_id == trial_id)
        .where(t.trials.c.study_id == study.study_id)
        .distinct()
    )
    return sorted(connection.execute(select).scalars())


def _ids(
    connection: sa.Connection, study: sa.Row[Any], numbers: Sequence[int]
) -> Mapping[int, int]:
    """The number of each trial, by Optuna's id."""
    trial = t.trials.c
    chosen = sa.and_(trial.study_id == study.study_id, trial.number.in_(numbers))
    rows = connection.execute(sa.select(trial.trial_id, trial.number).where(chosen))
    return {row.trial_id: row.number for row in rows}


def _distributions(
    connection: sa.Connection, ids: Mapping[int, int]
) -> Mapping[int, dict[str, Any]]:
    param = t.trial_params.c
    rows = connection.execute(
        sa.select(param.trial_id, param.param_name, param.distribution_json)
        .where(param.trial_id.in_(list(ids)))
        .order_by(param.param_id)
    )
    found: dict[int, dict[str, Any]] = defaultdict(dict)
    for trial_id, name, document in rows:
        found[ids[trial_id]][name] = json.loads(document)
    return found


def _attrs(connection: sa.Connection, ids: Mapping[int, int]) -> Mapping[int, dict[str, Any]]:
    attr = t.trial_system_attrs.c
    rows = connection.execute(
        sa.select(attr.trial_id, attr.key, attr.value_json).where(attr.trial_id.in_(list(ids)))
    )
    found: dict[int, dict[str, Any]] = defaultdict(dict)
    for trial_id, key, document in rows:
        found[ids[trial_id]][key] = json.loads(document)
    return found


def _ours(connection: sa.Connection, study: sa.Row[Any], numbers: Sequence[int]) -> dict[int, Any]:
    trial = t.hpo_trial.c
    rows = connection.execute(
        sa.select(trial.number, trial.told, trial.is_counted).where(
            trial.study_uuid == study.uuid, trial.number.in_(numbers)
        )
    )
    return {row.number: row for row in rows}
