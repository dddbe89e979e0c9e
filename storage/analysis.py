"""What came out of a study: importances, the course of the best value, what pruning spared.

Excluded trials are left out. Each answer takes a fixed number of statements and has a bounded
size, also with 10,000 trials.
"""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from hpo.errors import Conflict, InvalidField
from hpo.search.front import front_of
from hpo.search.importances import Importances
from hpo.study import Direction, StudyDefinition
from storage import tables as t
from storage.best import complete_values
from storage.curves import thinned
from storage.engine import Database
from storage.exclusions import is_result
from storage.params import params_of
from storage.pruning_report import PruningReport, pruning_report
from storage.records import BestTrial
from storage.search import Search
from storage.studies import Studies, row_and_definition
from storage.trials import aware

MAX_FRONT = 1000


class Course(enum.StrEnum):
    """In which order the best value so far is followed."""

    NUMBER = "number"
    TIME = "time"


@dataclass(frozen=True, kw_only=True, slots=True)
class Improvement:
    """A trial that was better than all before it."""

    number: int
    value: float
    ended_at: dt.datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """The improvements; when there were more than asked for, evenly thinned, with both ends."""

    direction: Direction
    n_improvements: int
    improvements: Sequence[Improvement]


@dataclass(frozen=True, kw_only=True, slots=True)
class ParetoTrial:
    """A trial that no other one beats in every objective."""

    number: int
    values: Sequence[float]
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class ParetoFront:
    """With one direction the best trial, or nothing; 1,000 trials at most."""

    directions: Sequence[Direction]
    trials: Sequence[ParetoTrial]


class Analysis:
    """Every method raises NotFound."""

    def __init__(self, database: Database, studies: Studies, search: Search) -> None:
        self._database, self._studies, self._search = database, studies, search

    def importances(self, name: str, *, index: int = 0) -> Importances:
        """How much each parameter matters for one of the values. Raises TooFewTrials."""
        study, definition = self._database.read(lambda c: row_and_definition(c, name))
        if index >= len(definition.directions):
            raise InvalidField(
                "value", f"must be below {len(definition.directions)}, the number of directions"
            )
        return self._search.importances(definition, study, index)

    def history(self, name: str, *, course: Course, limit: int) -> History:
        """The best value so far, by trial number or by the time of the end.

        Raises Conflict when the study has several directions.
        """

        def read(connection: sa.Connection) -> History:
            study, definition = row_and_definition(connection, name)
            if definition.is_multi_objective:
                raise Conflict(
                    f"Study {name!r} has {len(definition.directions)} directions and no one best "
                    f"value; its front is at /v1/studies/{name}/pareto"
                )
            rows = connection.execute(_improvements(study, definition, course)).all()
            found = [
                Improvement(
                    number=row.number, value=row.value, ended_at=aware(row.datetime_complete)
                )
                for row in rows
            ]
            return History(
                direction=definition.direction,
                n_improvements=len(found),
                improvements=thinned(found, limit),
            )

        return self._database.read(read)

    def pareto(self, name: str) -> ParetoFront:
        """The trials that no other one beats in every objective."""
        study = self._studies.get(name)
        directions = study.definition.directions
        if not study.definition.is_multi_objective:
            best = [] if study.best is None else [_on_front(study.best)]
            return ParetoFront(directions=directions, trials=best)

        def read(connection: sa.Connection) -> ParetoFront:
            row, _ = row_and_definition(connection, name)
            return ParetoFront(
                directions=directions, trials=_front(connection, row.study_id, directions)
            )

        return self._database.read(read)

    def pruning(self, name: str) -> PruningReport:
        """What was pruned, what that spared, and which pruned trial came nearest to the best."""

        def read(connection: sa.Connection) -> PruningReport:
            study, definition = row_and_definition(connection, name)
            return pruning_report(connection, study, definition)

        return self._database.read(read)


def _on_front(best: BestTrial) -> ParetoTrial:
    return ParetoTrial(number=best.number, values=[best.value], params=best.params)


def _front(
    connection: sa.Connection, study_id: int, directions: Sequence[Direction]
) -> list[ParetoTrial]:
    whole = list(complete_values(connection, study_id, len(directions)).items())
    chosen = [whole[place] for place in front_of([found for _, found in whole], directions)]
    chosen = chosen[:MAX_FRONT]
    params = params_of(connection, [trial_id for (trial_id, _), _ in chosen])
    return [
        ParetoTrial(number=number, values=found, params=params[trial_id])
        for (trial_id, number), found in chosen
    ]


def _improvements(
    study: sa.Row[Any], definition: StudyDefinition, course: Course
) -> sa.Select[Any]:
    """COMPLETE trials whose finite value is better than that of every one before."""
    trial, value = t.trials.c, t.trial_values.c
    loss = -value.value if definition.direction is Direction.MAXIMIZE else value.value
    order = [trial.number] if course is Course.NUMBER else [trial.datetime_complete, trial.number]
    place = sa.func.row_number().over(order_by=order)
    best_before = sa.func.min(loss).over(order_by=order, rows=(None, -1))
    followed = (
        sa.select(
            *(trial.number, trial.datetime_complete, value.value),
            *(loss.label("loss"), place.label("place"), best_before.label("best_before")),
        )
        .join(t.trial_values, value.trial_id == trial.trial_id)
        .where(trial.study_id == study.study_id, trial.state == "COMPLETE", is_result())
        .where(value.objective == 0, value.value_type == t.ValueType.FINITE)
        .subquery()
    )
    column = followed.c
    is_better = sa.or_(column.best_before.is_(None), column.loss < column.best_before)
    return sa.select(followed).where(is_better).order_by(column.place)
