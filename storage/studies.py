"""Studies: create, show, list, best. Showing reads a fixed number of aggregates, never trials."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeVar

import sqlalchemy as sa
from optuna.study import StudyDirection

from hpo.errors import Conflict, NoCompletedTrial, NotFound, StudyExists
from hpo.events import EventKind
from hpo.search.samplers import grid_cells
from hpo.study import Budget, StudyDefinition, StudyState
from storage import tables as t
from storage.best import best_of_study, best_trials
from storage.documents import BUDGET_FIELDS, definition_from_json, definition_to_json
from storage.engine import Database, db_now, has_item
from storage.events import StudyKey, append
from storage.limits import is_over_time
from storage.records import BestOfStudy, BestTrial, Page, StudyRecord
from storage.requests import fingerprint_of, once
from storage.standings import Standing, Standings
from storage.workers import Workers

T = TypeVar("T")

# Optuna's own key, read by optuna-dashboard and Study.metric_names.
METRIC_NAMES_KEY = "study:metric_names"
# Tells our study from another one that was given the same id after a delete.
UUID_KEY = "hpo:uuid"

# What may change later: columns hold what is in force.
LABELS = ("tags", "notes")
CHANGEABLE = (*BUDGET_FIELDS, "priority", *LABELS)
# What makes another version of a study: all that users can see and change, and not its trials.
VERSIONED = ("uuid", *CHANGEABLE, "state", "reason", "ended_at", "archived_at")


@dataclass(frozen=True, kw_only=True, slots=True)
class Filter:
    """Which studies a list has: in one of the states, with every tag; `archived` None: either."""

    states: Collection[StudyState] = ()
    tags: Collection[str] = ()
    name_prefix: str = ""
    archived: bool | None = False

    def conditions(self) -> Iterator[sa.ColumnElement[bool]]:
        study = t.hpo_study.c
        if self.states:
            yield study.state.in_([state.value for state in self.states])
        for tag in self.tags:
            yield has_item(study.tags, tag)
        if self.name_prefix:  # LIKE would take capital and small letters for the same on SQLite
            yield sa.func.substr(study.name, 1, len(self.name_prefix)) == self.name_prefix
        if self.archived is not None:
            is_archived = study.archived_at.is_not(None)
            yield is_archived if self.archived else sa.not_(is_archived)


ALL_LISTED = Filter()
NOTHING: Mapping[str, Any] = MappingProxyType({})


class Studies:
    """The studies of one database."""

    def __init__(
        self, database: Database, workers: Workers, *, models_blocked: str | None = None
    ) -> None:
        self._database, self._workers = database, workers
        self._models_blocked = models_blocked
        self._standings = Standings()

    def create(
        self,
        definition: StudyDefinition,
        *,
        given: frozenset[str],
        key: str | None = None,
        fingerprint: str = "",
    ) -> tuple[StudyRecord, bool]:
        """Creates a study, or finds the one of this name; the second value says which.

        Only the fields in `given` are compared with a study that exists. Raises StudyExists when
        they differ, with both values of each. A grid has no more trials than cells. A request that
        comes again with its idempotency `key` is told once more that it has created the study.
        """
        definition, new_uuid = within_grid(definition), str(uuid.uuid4())

        def transaction(connection: sa.Connection) -> bool:
            def make() -> dict[str, Any]:
                return {"created": _create(connection, definition, given, new_uuid)}

            answer = once(connection, key, "create_study", fingerprint, make)
            return bool(answer["created"])

        created = written(self._database, transaction)
        try:
            return self.get(definition.name), created
        except NotFound:
            raise Conflict(
                f"The study {definition.name!r} that this request has created was deleted since; "
                "send it with another Idempotency-Key to create it anew."
            ) from None

    def get(self, name: str) -> StudyRecord:
        """Raises NotFound."""
        return self._database.read(lambda c: self.read(c, name))

    def read(self, connection: sa.Connection, name: str) -> StudyRecord:
        """As `get`, within a transaction."""
        found = self._read(connection, t.hpo_study.c.name == name, 1)
        if not found:
            raise NotFound(f"There is no study {name!r}.")
        return found[0][1]

    def page(
        self, chosen: Filter = ALL_LISTED, *, limit: int = 50, after: int | None = None
    ) -> Page[StudyRecord]:
        """The newest first."""
        conditions = [sa.true(), *chosen.conditions()]
        if after is not None:
            conditions.append(t.hpo_study.c.id < after)
        found = self._records(sa.and_(*conditions), limit=limit + 1)
        items = [record for _, record in found[:limit]]
        return Page(items=items, next=found[limit - 1][0] if len(found) > limit else None)

    def best(self, name: str) -> BestOfStudy:
        """Raises NotFound, NoCompletedTrial with the counts by state, or Conflict.

        With several directions there is no one best trial.
        """
        return self._database.read(lambda c: self._best(c, name))

    def _best(self, connection: sa.Connection, name: str) -> BestOfStudy:
        row, definition = row_and_definition(connection, name)
        if definition.is_multi_objective:
            raise Conflict(
                f"Study {name!r} has {len(definition.directions)} directions, so its best "
                f"trials form a front: GET /v1/studies/{name}/pareto"
            )
        standing = self._standings.of(connection, [row])[row.uuid]
        best = best_of_study(connection, row.uuid, standing, definition.value_rule)
        if best is None:
            raise NoCompletedTrial(
                f"No trial of study {name!r} has completed with a finite value yet.",
                study=name,
                counts={state.value: n for state, n in standing.counts.items()},
            )
        return best

    def _records(
        self, condition: sa.ColumnElement[bool], *, limit: int
    ) -> list[tuple[int, StudyRecord]]:
        return self._database.read(lambda c: self._read(c, condition, limit))

    def _read(
        self, connection: sa.Connection, condition: sa.ColumnElement[bool], limit: int
    ) -> list[tuple[int, StudyRecord]]:
        select = sa.select(t.hpo_study, _n_awaiting()).where(condition)
        rows = connection.execute(select.order_by(t.hpo_study.c.id.desc()).limit(limit)).all()
        standings = self._standings.of(connection, rows)
        best = best_trials(connection, standings)
        blocked = self._blocked(connection, rows)
        return [
            (row.id, self._record(row, standings[row.uuid], best.get(row.uuid), blocked))
            for row in rows
        ]

    def _blocked(
        self, connection: sa.Connection, rows: Sequence[sa.Row[Any]]
    ) -> Callable[[str], str | None]:
        """Asks for the workers only if a study waits for one."""
        if any(map(_waits, rows)):
            return self._workers.blocked_by(connection)
        return lambda _objective: None

    def _record(
        self,
        row: sa.Row[Any],
        standing: Standing,
        best: BestTrial | None,
        blocked: Callable[[str], str | None],
    ) -> StudyRecord:
        definition = definition_of(row)
        is_waiting = _waits(row) and definition.objective is not None
        return StudyRecord(
            uuid=uuid.UUID(row.uuid),
            definition=definition,
            state=StudyState(row.state),
            reason=row.reason,
            blocked=blocked(definition.objective or "") if is_waiting else None,
            models_blocked=self._models_blocked if definition.keep_models else None,
            n_started=row.n_started,
            counts=standing.counts,
            awaiting_attempt=row.n_awaiting,
            best=best,
            created_at=row.created_at,
            ended_at=row.ended_at,
            archived_at=row.archived_at,
            version=version_of(row),
        )


def _n_awaiting() -> sa.ColumnElement[int]:
    trial = t.hpo_trial.c
    mine = (trial.study_uuid == t.hpo_study.c.uuid, trial.next_attempt_at.is_not(None))
    return sa.select(sa.func.count()).where(*mine).scalar_subquery().label("n_awaiting")


def _waits(row: sa.Row[Any]) -> bool:
    """Whether a study has work for a worker."""
    has_work = row.n_started < row.n_trials or row.n_awaiting > 0
    return bool(row.state == StudyState.RUNNING and has_work)


def version_of(row: sa.Row[Any]) -> str:
    """Tells whether a study has changed; its definition never does under one UUID."""
    return fingerprint_of({name: getattr(row, name) for name in VERSIONED})[:32]


def definition_of(row: sa.Row[Any]) -> StudyDefinition:
    """The definition in force of a row of hpo_study."""
    budget = Budget(**{name: getattr(row, name) for name in BUDGET_FIELDS})
    others = {name: getattr(row, name) for name in ("priority", *LABELS)}
    return definition_from_json(row.definition, budget=budget, **others)


def written(database: Database, transaction: Callable[[sa.Connection], T]) -> T:
    """Runs a transaction that makes a study; again when another has just made one of its name."""
    try:
        return database.write(transaction)
    except sa.exc.IntegrityError:
        return database.write(transaction)


def within_grid(definition: StudyDefinition) -> StudyDefinition:
    """The definition with no more trials than a grid has cells."""
    cells = grid_cells(definition)
    if cells is None or cells >= definition.budget.n_trials:
        return definition
    return replace(definition, budget=replace(definition.budget, n_trials=cells))


def _create(
    connection: sa.Connection, definition: StudyDefinition, given: frozenset[str], new_uuid: str
) -> bool:
    existing = same_study(connection, definition, given)
    if existing is not None:
        return bool(existing.uuid == new_uuid)  # ours, when a commit's answer was lost
    if foreign_study_id(connection, definition.name) is not None:
        raise StudyExists(
            f"The database holds a study {definition.name!r} that another Optuna program made; "
            "choose another name, or adopt it: hpo study adopt."
        )
    insert_study(connection, definition, new_uuid)
    return True


def same_study(
    connection: sa.Connection, definition: StudyDefinition, given: frozenset[str]
) -> sa.Row[Any] | None:
    """The study of this name if there is one. Raises StudyExists when a given field differs."""
    select = sa.select(t.hpo_study).where(t.hpo_study.c.name == definition.name)
    existing = connection.execute(select).one_or_none()
    if existing is not None:
        _refuse_deleted(existing)
        document = definition_to_json(definition)
        _refuse_difference(definition.name, _in_force(existing), document, given)
    return existing


def refuse_taken(connection: sa.Connection, name: str, cure: str) -> None:
    """Raises StudyExists when there is a study of this name, whoever made it."""
    existing = study_row(connection, t.hpo_study.c.name == name)
    if existing is not None:
        _refuse_deleted(existing)
    if existing is not None or foreign_study_id(connection, name) is not None:
        raise StudyExists(f"A study {name!r} exists; {cure}.")


def _refuse_deleted(study: sa.Row[Any]) -> None:
    if study.state == StudyState.DELETING:
        raise StudyExists(f"The study {study.name!r} is being deleted; try again in a moment.")


def foreign_study_id(connection: sa.Connection, name: str) -> int | None:
    """Optuna's id of the study of this name, whoever made it."""
    named = sa.select(t.studies.c.study_id).where(t.studies.c.study_name == name)
    found: int | None = connection.execute(named).scalar_one_or_none()
    return found


def insert_study(
    connection: sa.Connection,
    definition: StudyDefinition,
    new_uuid: str,
    *,
    study_id: int | None = None,
    columns: Mapping[str, Any] = NOTHING,
    **facts: Any,
) -> sa.Row[Any]:
    """Writes a study that is not there yet, beside Optuna's of `study_id` or with a new one.

    `columns` stand above those of a new study, `facts` go into its event.
    """
    if study_id is None:
        study_id = _insert_optuna_study(connection, definition, new_uuid)
    document = definition_to_json(definition)
    fields = {
        "state": StudyState.RUNNING.value,
        "n_started": 0,
        "ran_seconds": 0.0,
        "created_at": db_now(),
        **{name: document[name] for name in CHANGEABLE},
    }
    connection.execute(
        t.hpo_study.insert().values(
            uuid=new_uuid,
            study_id=study_id,
            name=definition.name,
            definition=document,
            **{**fields, **columns},
        )
    )
    append(
        connection,
        EventKind.STUDY_CREATED,
        StudyKey(new_uuid, definition.name),
        objective=definition.objective,
        n_trials=definition.budget.n_trials,
        **facts,
    )
    made = study_row(connection, t.hpo_study.c.uuid == new_uuid)
    assert made is not None, "it was written above"
    return made


def _insert_optuna_study(
    connection: sa.Connection, definition: StudyDefinition, new_uuid: str
) -> int:
    row = {"study_name": definition.name}
    insert = t.studies.insert().values(row).returning(t.studies.c.study_id)
    study_id = connection.execute(insert).scalar_one()
    connection.execute(
        t.directions.insert(),
        [
            {"study_id": study_id, "objective": index, "direction": StudyDirection[kind.name]}
            for index, kind in enumerate(definition.directions)
        ],
    )
    attrs: dict[str, Any] = {UUID_KEY: new_uuid}
    if definition.metrics:
        attrs[METRIC_NAMES_KEY] = list(definition.metrics)
    connection.execute(
        t.study_system_attrs.insert(),
        [
            {"study_id": study_id, "key": key, "value_json": json.dumps(value)}
            for key, value in attrs.items()
        ],
    )
    return int(study_id)


def _in_force(row: sa.Row[Any]) -> dict[str, Any]:
    return {**row.definition, **{name: getattr(row, name) for name in CHANGEABLE}}


def _refuse_difference(
    name: str, existing: Mapping[str, Any], requested: Mapping[str, Any], given: frozenset[str]
) -> None:
    difference = {
        field: {"existing": existing[field], "requested": requested[field]}
        for field in sorted(given & requested.keys())
        if existing[field] != requested[field]
    }
    if difference:
        cure = (
            "choose another name, leave these fields as they are, or clone the study with changes."
        )
        if difference.keys() <= set(CHANGEABLE):
            cure = f"they can be changed while it stands: hpo study extend {name}, or PATCH."
        raise StudyExists(
            f"A study {name!r} exists with another {', '.join(difference)}; {cure}",
            difference=difference,
        )


def lock_study(connection: sa.Connection, study_id: int) -> bool:
    """Locks Optuna's row of a study, as Optuna does to number a trial; False when it is gone."""
    lock = sa.select(t.studies.c.study_id).where(t.studies.c.study_id == study_id)
    return connection.execute(lock.with_for_update()).first() is not None


def study_row(connection: sa.Connection, condition: sa.ColumnElement[bool]) -> sa.Row[Any] | None:
    """A row of hpo_study, with `is_over_time`."""
    select = sa.select(t.hpo_study, is_over_time().label("is_over_time")).where(condition)
    return connection.execute(select).one_or_none()


def locked_study(connection: sa.Connection, name: str) -> sa.Row[Any]:
    """The row of a study, read under its lock. Raises NotFound."""
    named = t.hpo_study.c.name == name
    found = study_row(connection, named)
    if found is not None:
        lock_study(connection, found.study_id)
        found = study_row(connection, named)
    if found is None:
        raise NotFound(f"There is no study {name!r}.")
    return found


def row_and_definition(connection: sa.Connection, name: str) -> tuple[sa.Row[Any], StudyDefinition]:
    """The row of a study and its definition. Raises NotFound."""
    row = study_row(connection, t.hpo_study.c.name == name)
    if row is None:
        raise NotFound(f"There is no study {name!r}.")
    return row, definition_of(row)
