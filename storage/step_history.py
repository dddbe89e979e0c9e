"""What complete trials have reported, kept in memory by study and brought up to date by one read.

A trial's curve never changes once it is COMPLETE, so only trials that were not finished at the
last look are looked at again, and those that came after it. Optuna's ids of a study appear in
order, because whoever numbers a trial holds the lock on the study's row till it commits.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import sqlalchemy as sa

from hpo.search.percentiles import Curve, StepValues
from hpo.trial import TrialState
from storage import tables as t
from storage.curves import value_of
from storage.engine import Database
from storage.exclusions import is_excluded

COMPLETE, FINITE = TrialState.COMPLETE.value, t.StepType.FINITE.name

MAX_STUDIES = 64
# How old a view may be. What this process itself completes is in it at once.
VIEW_SECONDS = 0.2
# So many unfinished trials are named one by one, as databases bound the values of an IN. Where
# there are more, all from the first of them are read.
MAX_NAMED = 10_000


class View(NamedTuple):
    """Values of complete trials, and the study's `history_revision` that they belong to."""

    values: StepValues
    revision: int


@dataclass
class _Known:
    """What is known of one study: of trials up to `last` all that are not `unfinished` have ended.

    Those `ahead` are beyond `last`, and taken in all the same.
    """

    revision: int = 0
    last: int = -1
    unfinished: set[int] = field(default_factory=set)
    ahead: set[int] = field(default_factory=set)
    values: StepValues = field(default_factory=StepValues)
    read_at: float = float("-inf")

    @property
    def named(self) -> Sequence[int]:
        return [] if len(self.unfinished) > MAX_NAMED else sorted(self.unfinished)

    @property
    def since(self) -> int:
        """The trial beyond which all are read."""
        return min(self.unfinished) - 1 if len(self.unfinished) > MAX_NAMED else self.last

    def see(self, trial_id: int, *, is_finished: bool) -> bool:
        """Notes the state of a trial, in their order; whether it was not known to be finished."""
        is_new = trial_id in self.unfinished or trial_id > self.last
        self.last = max(self.last, trial_id)
        self.unfinished.discard(trial_id)
        if trial_id in self.ahead:
            self.ahead.discard(trial_id)
            return False
        if is_new and not is_finished:
            self.unfinished.add(trial_id)
        return is_new


class _Study:
    """One study's values and who may look at them now."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.known = _Known()
        self.is_current = False


class StepHistory:
    """The values of complete trials, without excluded ones, of the studies asked for last."""

    def __init__(
        self,
        database: Database,
        *,
        view_seconds: float = VIEW_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database, self._view_seconds, self._clock = database, view_seconds, clock
        self._lock = threading.Lock()
        self._studies: OrderedDict[str, _Study] = OrderedDict()

    def view(self, study_uuid: str) -> View:
        """The values as they stood not long ago."""
        study = self._study(study_uuid)
        with study.lock:
            is_fresh = self._clock() < study.known.read_at + self._view_seconds
            if not (study.is_current and is_fresh):
                self._database.read_one(lambda c: self._bring_up_to_date(c, study_uuid, study))
            return View(study.known.values, study.known.revision)

    def of(self, connection: sa.Connection, study_uuid: str) -> StepValues:
        """The values as they stand in this transaction."""
        study = self._study(study_uuid)
        with study.lock:
            self._bring_up_to_date(connection, study_uuid, study)
            return study.known.values

    def add(self, study_uuid: str, trial_id: int, curve: Curve) -> None:
        """Takes in a trial that has just completed, so that it need not be read."""
        with self._lock:
            study = self._studies.get(study_uuid)
        if study is None:
            return
        with study.lock:
            known = study.known
            if trial_id in known.unfinished:
                known.unfinished.discard(trial_id)
            elif trial_id > known.last:
                known.ahead.add(trial_id)
            else:
                return  # it was read meanwhile
            known.values.add(curve)

    def look_again(self) -> None:
        """Lets the next views be read anew, since a trial may have completed."""
        with self._lock:
            for study in self._studies.values():
                study.is_current = False

    def _study(self, study_uuid: str) -> _Study:
        with self._lock:
            study = self._studies.pop(study_uuid, None) or _Study()
            self._studies[study_uuid] = study
            while len(self._studies) > MAX_STUDIES:
                self._studies.popitem(last=False)
            return study

    def _bring_up_to_date(self, connection: sa.Connection, uuid: str, study: _Study) -> None:
        began_at, study.is_current = self._clock(), True
        rows = _read(connection, uuid, study.known)
        if rows and rows[0].revision != study.known.revision:
            # Trials were excluded or included, also some that had been taken in.
            study.known = _Known(revision=rows[0].revision)
            rows = _read(connection, uuid, study.known)
        _take_in(study.known, rows)
        study.known.read_at = began_at


def _read(connection: sa.Connection, study_uuid: str, known: _Known) -> Sequence[sa.Row[Any]]:
    """Trials that were not finished, and those that are new: a row for each step, or one alone."""
    trial, step, study = t.trials.c, t.trial_steps.c, t.hpo_study.c
    mine = sa.select(study.study_id).where(study.uuid == study_uuid).scalar_subquery()
    revision = sa.select(study.history_revision).where(study.uuid == study_uuid).scalar_subquery()
    chosen = sa.select(trial.trial_id, trial.state, is_excluded().label("is_excluded")).where(
        trial.study_id == mine
    )
    parts = [chosen.where(trial.trial_id > known.since)]
    if known.named:
        parts.append(chosen.where(trial.trial_id.in_(known.named)))
    found = sa.union_all(*parts).subquery()
    has_ended = sa.and_(step.trial_id == found.c.trial_id, found.c.state == "COMPLETE")
    select = sa.select(
        found.c.trial_id,
        _text(found.c.state),
        found.c.is_excluded,
        *(step.step, step.intermediate_value, _text(step.intermediate_value_type)),
        revision.label("revision"),
    )
    return connection.execute(select.outerjoin(t.trial_steps, has_ended)).all()


def _text(column: sa.ColumnElement[Any]) -> sa.ColumnElement[str]:
    """An enum by its name: there may be a row for each value of a large study."""
    return sa.type_coerce(column, sa.String())


def _take_in(known: _Known, rows: Sequence[Any]) -> None:
    states: dict[int, str] = {}
    curves: defaultdict[int, dict[int, float]] = defaultdict(dict)
    for trial_id, state, is_hidden, step, value, kind, _ in rows:
        states[trial_id] = state
        if state == COMPLETE and not is_hidden:
            curve = curves[trial_id]
            if step is not None:
                curve[step] = value if kind == FINITE else value_of(kind, value)
    for trial_id, state in sorted(states.items()):
        is_finished = TrialState[state].is_finished
        if known.see(trial_id, is_finished=is_finished) and trial_id in curves:
            known.values.add(curves[trial_id])
