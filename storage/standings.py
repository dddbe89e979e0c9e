"""How studies stand: how many trials are in which state, and which are the best.

Kept in memory by study, and brought up to date by one statement, whoever wrote: it reads the
trials that had not ended at the last look, and those that are newer. A trial that has ended stays
as it is, and Optuna's ids of a study appear in order, because whoever numbers a trial holds the
lock on the study's row till it commits. What was excluded or included since is told by the
study's `history_revision`: then all are read again.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sqlalchemy as sa

from hpo.choices import Choice
from hpo.study import Direction
from hpo.trial import TrialState
from storage import tables as t
from storage.engine import is_reading
from storage.exclusions import is_excluded
from storage.params import params_of

# Studies that are remembered, and open trials of one that are asked for by their ids.
MAX_STUDIES, MAX_OPEN = 1000, 500
RANKED = (TrialState.COMPLETE, TrialState.PRUNED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranked:
    """The trial with the best finite value of those in one state; the smaller number of two."""

    trial_id: int
    number: int
    value: float
    params: Mapping[str, Choice] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """A study at one look. Studies with several directions have no best."""

    counts: Mapping[TrialState, int]
    best: Mapping[TrialState, Ranked]
    # For the next look: Optuna's id of the newest trial, and those of the ones that had not ended.
    revision: int = 0
    newest: int = -1
    open: frozenset[int] = frozenset()


class Standings:
    """The studies that were looked at last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Standing] = OrderedDict()

    def of(self, connection: sa.Connection, studies: Sequence[sa.Row[Any]]) -> dict[str, Standing]:
        """Each study, by UUID, as it stands in this transaction; `studies` are from hpo_study.

        Two statements at most; two that look at the same time may both read what is new.
        """
        known = {study.uuid: self._last_look(study) for study in studies}
        found: dict[str, list[sa.Row[Any]]] = {uuid: [] for uuid in known}
        for row in connection.execute(_news(studies, known)) if studies else ():
            if row.uuid in found:  # another one may have had Optuna's id before
                found[row.uuid].append(row)
        moved = {
            study.uuid: _moved(known[study.uuid], study, found[study.uuid]) for study in studies
        }
        standings = _with_params(connection, moved, known)
        if is_reading(connection):  # what a transaction has written may be undone
            self._remember(standings)
        return standings

    def _last_look(self, study: sa.Row[Any]) -> Standing:
        known = self._known.get(study.uuid)
        if known is None or known.revision != study.history_revision or len(known.open) > MAX_OPEN:
            return Standing(counts={}, best={})
        return known

    def _remember(self, standings: Mapping[str, Standing]) -> None:
        with self._lock:
            for uuid, standing in standings.items():
                self._known[uuid] = standing
                self._known.move_to_end(uuid)
            while len(self._known) > MAX_STUDIES:
                self._known.popitem(last=False)


def _news(studies: Sequence[sa.Row[Any]], known: Mapping[str, Standing]) -> sa.Select[Any]:
    """The trials of each study that may differ from the last look."""
    trial, value, ours = t.trials.c, t.trial_values.c, t.hpo_trial.c
    study = t.hpo_study.c
    is_first = sa.and_(value.trial_id == trial.trial_id, value.objective == 0)
    is_ours = sa.and_(ours.study_uuid == study.uuid, ours.number == trial.number)
    is_out = sa.or_(is_excluded(), sa.and_(ours.is_feasible.is_not(None), ~ours.is_feasible))
    return (
        sa.select(
            *(study.uuid, trial.trial_id, trial.number, trial.state, value.value),
            sa.and_(value.value_type == t.ValueType.FINITE, ~is_out).label("is_ranked"),
        )
        .select_from(t.trials)
        .join(t.hpo_study, study.study_id == trial.study_id)
        .outerjoin(t.trial_values, is_first)
        .outerjoin(t.hpo_trial, is_ours)
        .where(sa.or_(*_unknown(studies, known)))
    )


def _unknown(
    studies: Sequence[sa.Row[Any]], known: Mapping[str, Standing]
) -> Iterator[sa.ColumnElement[bool]]:
    trial = t.trials.c
    for study in studies:
        newer = trial.trial_id > known[study.uuid].newest
        yield sa.and_(trial.study_id == study.study_id, newer)
    still_open = [trial_id for standing in known.values() for trial_id in standing.open]
    if still_open:
        yield trial.trial_id.in_(still_open)


def _moved(known: Standing, study: sa.Row[Any], rows: Sequence[sa.Row[Any]]) -> Standing:
    """A study with what was found of it since the last look."""
    counts = Counter({state: n for state, n in known.counts.items() if state.is_finished})
    counts.update(TrialState[row.state.name] for row in rows)
    directions = study.definition["directions"]
    return Standing(
        counts={state: counts[state] for state in TrialState},
        best=dict(_best(known, Direction(directions[0]), rows)) if len(directions) == 1 else {},
        revision=study.history_revision,
        newest=max([known.newest, *(row.trial_id for row in rows)]),
        open=frozenset(row.trial_id for row in rows if not row.state.is_finished()),
    )


def _best(
    known: Standing, direction: Direction, rows: Sequence[sa.Row[Any]]
) -> Iterator[tuple[TrialState, Ranked]]:
    sign = 1.0 if direction is Direction.MINIMIZE else -1.0

    def place(trial: Any) -> tuple[float, int]:
        return sign * trial.value, trial.number

    for state in RANKED:
        ranked = (row for row in rows if row.is_ranked and row.state.name == state)
        best, new = known.best.get(state), min(ranked, key=place, default=None)
        if new is not None and (best is None or place(new) < place(best)):
            best = Ranked(trial_id=new.trial_id, number=new.number, value=new.value)
        if best is not None:
            yield state, best


def _with_params(
    connection: sa.Connection, moved: Mapping[str, Standing], known: Mapping[str, Standing]
) -> dict[str, Standing]:
    """With the parameters of trials that are the best since this look; they never change."""
    new = {
        best.trial_id
        for uuid, standing in moved.items()
        for state, best in standing.best.items()
        if best is not known[uuid].best.get(state)
    }
    params = params_of(connection, sorted(new))

    def filled(best: Ranked) -> Ranked:
        return replace(best, params=params[best.trial_id]) if best.trial_id in new else best

    return {
        uuid: replace(standing, best={state: filled(best) for state, best in standing.best.items()})
        for uuid, standing in moved.items()
    }
