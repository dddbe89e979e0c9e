"""New studies from old trials: clones that import them, and points that the best of them give.

Parameters are written anew with the distributions of the new space, because Optuna refuses a
study whose choices differ between trials. Imported trials are no part of the new study's budget.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from optuna.trial import FrozenTrial

from hpo.choices import from_label, to_label
from hpo.errors import Conflict, InvalidField
from hpo.search.front import front_of
from hpo.search.points import misfits, point_faults
from hpo.search.sampling import Drawn
from hpo.search.spaces import distribution_of
from hpo.study import Direction, StudyDefinition, StudyState
from storage import tables as t
from storage.arriving import Arrival
from storage.best import complete_values
from storage.bulk import TrialRows, chunks, insert_trials, note_many
from storage.deleting import Deleting
from storage.engine import Database
from storage.enqueueing import Point, Request, enqueue_points
from storage.exclusions import is_excluded
from storage.judging import judge_rows
from storage.optuna_reads import frozen_trials
from storage.remarks import CONSTRAINT_PREFIX
from storage.requests import Answer, answered, once
from storage.search import param_row
from storage.studies import (
    locked_study,
    refuse_taken,
    row_and_definition,
    within_grid,
    written,
)

# The user attribute that names where a trial or a point comes from, as STUDY/NUMBER.
IMPORTED_FROM = "hpo:imported_from"
FINISHED = ("COMPLETE", "PRUNED")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cloned:
    """What a clone took over: `misfits` counts trials by the parameters that kept them out."""

    n_imported: int
    n_left_out: int
    misfits: Mapping[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmStarted:
    """The numbers of the new points, and what kept better trials out, by parameter."""

    numbers: list[int]
    misfits: Mapping[str, int]


class Cloning:
    """Makes studies from others, and has the best of others tried. All raise NotFound."""

    def __init__(self, database: Database, deleting: Deleting) -> None:
        self._database, self._deleting = database, deleting

    def clone(
        self,
        source: str,
        definition: StudyDefinition,
        *,
        import_trials: bool = True,
        key: str | None = None,
        fingerprint: str = "",
    ) -> Cloned:
        """A new study; of the finished trials it imports those that fit its space.

        Raises StudyExists when the name is taken, InvalidField when the trials have another
        number of values.
        """
        definition, request = within_grid(definition), (key, "clone_study", fingerprint)
        answer = self._database.read(lambda c: answered(c, *request))
        if answer is not None:
            return Cloned(**answer)
        old = self._database.read(
            lambda c: _source(c, source, definition, import_trials=import_trials)
        )
        with self._deleting.arriving(definition, str(uuid.uuid4())) as arrival:
            taken = _Taken()
            for page in self._finished(old) if import_trials else ():
                rows = taken.fitting(page, definition, source)
                if rows:
                    arrival.add(lambda c, rows=rows: _insert(c, arrival, rows))  # type: ignore[misc]  # a default binds it
            cloned = written(
                self._database, lambda c: _finish(c, arrival, definition, source, taken, request)
            )
        note_many(self._database, cloned.n_imported)
        return cloned

    def _finished(self, study: sa.Row[Any]) -> Iterator[list[FrozenTrial]]:
        """The trials that samplers may learn from, by number, in pages."""
        trial = t.trials.c
        chosen = sa.and_(
            trial.study_id == study.study_id, trial.state.in_(FINISHED), ~is_excluded()
        )
        ids = sa.select(trial.trial_id).where(chosen).order_by(trial.number)
        for page in chunks(self._database.read(lambda c: c.execute(ids).scalars().all())):
            found = self._database.read(lambda c, page=page: _page(c, study, page))  # type: ignore[misc]  # a default binds it
            yield sorted(found, key=lambda trial: trial.number)

    def warm_start(self, name: str, source: str, k: int, request: Request) -> WarmStarted:
        """Has the best `k` trials of another study tried whose parameters this one has, too.

        Raises InvalidField when the studies differ in their directions, or Conflict where the
        budget has no room.
        """

        def transaction(connection: sa.Connection) -> Answer:
            def make() -> Answer:
                study = locked_study(connection, name)
                points, left_out = _best_points(connection, name, source, k)
                numbers = enqueue_points(connection, study, points, extend=request.extend)
                return {"numbers": numbers, "misfits": dict(left_out)}

            return once(connection, request.key, "warm_start", request.fingerprint, make)

        return WarmStarted(**self._database.write(transaction))


@dataclass(kw_only=True, slots=True)
class _Taken:
    """What a clone has taken over so far."""

    n_imported: int = 0
    n_left_out: int = 0
    left_out: Counter[str] = field(default_factory=Counter)

    def fitting(
        self, page: Sequence[FrozenTrial], definition: StudyDefinition, source: str
    ) -> list[TrialRows]:
        """Those of a page that fit, as they will be written."""
        rows: list[TrialRows] = []
        for trial in page:
            if names := misfits(definition.space, _params(trial)):
                self.left_out.update(names)
                self.n_left_out += 1
            else:
                number, origin = self.n_imported + len(rows), f"{source}/{trial.number}"
                rows.append(_rows(trial, definition, number, origin))
        self.n_imported += len(rows)
        return rows


def _source(
    connection: sa.Connection, name: str, definition: StudyDefinition, *, import_trials: bool
) -> sa.Row[Any]:
    """The study to be cloned, if it can be."""
    source, old = row_and_definition(connection, name)
    _refuse_vanishing(source)
    _refuse_taken(connection, definition)
    n_values = len(definition.directions)
    if import_trials and n_values != len(old.directions):
        raise InvalidField(
            "changes.directions",
            f"the trials have {len(old.directions)} values and not {n_values}; "
            "send import_trials: false",
        )
    return source


def _page(connection: sa.Connection, study: sa.Row[Any], ids: Sequence[int]) -> list[FrozenTrial]:
    found = frozen_trials(connection, t.trials.c.trial_id.in_(ids))
    # Looked at afterwards: what is read of a study that is being deleted may be another's.
    row, _ = row_and_definition(connection, study.name)
    if row.uuid != study.uuid:
        raise Conflict(f"Study {study.name!r} was deleted meanwhile.", study=study.name)
    _refuse_vanishing(row)
    return found


def _insert(connection: sa.Connection, arrival: Arrival, rows: Sequence[TrialRows]) -> None:
    judge_rows(connection, arrival.uuid, insert_trials(connection, arrival.study_id, rows), rows)


def _finish(
    connection: sa.Connection,
    arrival: Arrival,
    definition: StudyDefinition,
    source: str,
    taken: _Taken,
    request: tuple[str | None, str, str],
) -> Cloned:
    def make() -> Answer:
        _refuse_taken(connection, definition)
        arrival.finish(connection, columns={}, origin="clone", source=source)
        return {
            "n_imported": taken.n_imported,
            "n_left_out": taken.n_left_out,
            "misfits": dict(taken.left_out),
        }

    key, kind, fingerprint = request
    # Always under a key: a commit whose answer was lost must not find its own study.
    return Cloned(**once(connection, key or arrival.uuid, kind, fingerprint, make))


def _refuse_taken(connection: sa.Connection, definition: StudyDefinition) -> None:
    refuse_taken(connection, definition.name, "choose another name for the clone")


def _refuse_vanishing(source: sa.Row[Any]) -> None:
    if source.state == StudyState.DELETING:
        raise Conflict(f"Study {source.name!r} is being deleted.", study=source.name)


def _params(trial: FrozenTrial) -> dict[str, Any]:
    return {name: from_label(value) for name, value in trial.params.items()}


def _rows(trial: FrozenTrial, definition: StudyDefinition, number: int, origin: str) -> TrialRows:
    constraints = {
        key: value for key, value in trial.system_attrs.items() if key.startswith(CONSTRAINT_PREFIX)
    }
    return TrialRows(
        number=number,
        state=trial.state.name,
        params=[_param(trial, name, definition) for name in trial.params],
        values=trial.values or (),
        steps=trial.intermediate_values,
        user_attrs={**trial.user_attrs, IMPORTED_FROM: origin},
        system_attrs=constraints,
        started_at=trial.datetime_start,
        ended_at=trial.datetime_complete,
    )


def _param(trial: FrozenTrial, name: str, definition: StudyDefinition) -> dict[str, Any]:
    """The value with the new study's distribution of it, or with its own where none is declared."""
    distribution, value = trial.distributions[name], trial.params[name]
    if definition.space is not None:
        distribution = distribution_of(definition.space[name])
    internal = float(distribution.to_internal_repr(to_label(value)))
    return param_row(name, Drawn(value=value, internal=internal, distribution=distribution))


def _best_points(
    connection: sa.Connection, name: str, source_name: str, k: int
) -> tuple[list[Point], Counter[str]]:
    _, definition = row_and_definition(connection, name)
    source, old = row_and_definition(connection, source_name)
    _refuse_vanishing(source)
    if definition.directions != old.directions:
        raise InvalidField(
            "from",
            f"study {source_name!r} has the directions {', '.join(old.directions)}, "
            f"{name!r} has {', '.join(definition.directions)}; its best trials mean nothing here",
        )
    points: list[Point] = []
    left_out: Counter[str] = Counter()
    seen: list[Mapping[str, Any]] = []
    for trial in _by_value(connection, source, old.directions):
        if len(points) == k:
            break
        params = _params(trial)
        if faults := list(point_faults(definition.space, params)):
            left_out.update(parameter for parameter, _ in faults)
        elif params and params not in seen:
            seen.append(params)
            origin = f"{source_name}/{trial.number}"
            points.append(Point(params=params, user_attrs={IMPORTED_FROM: origin}))
    return points, left_out


def _by_value(
    connection: sa.Connection, study: sa.Row[Any], directions: tuple[Direction, ...]
) -> Iterator[FrozenTrial]:
    """COMPLETE trials with finite values, the best first; with several values only the front."""
    values = complete_values(connection, study.study_id, len(directions))
    whole = list(values)
    if len(directions) > 1:
        whole = [whole[place] for place in front_of(list(values.values()), directions)]
    else:
        sign = 1.0 if directions[0] is Direction.MINIMIZE else -1.0
        whole.sort(key=lambda key: sign * values[key][0])
    for page in chunks(whole, 100):
        ids = [trial_id for trial_id, _ in page]
        found = {f._trial_id: f for f in frozen_trials(connection, t.trials.c.trial_id.in_(ids))}
        yield from (found[trial_id] for trial_id in ids)
