"""What complete trials have reported, kept in memory by study and brought up to date by one read.

A trial's curve never changes once it is COMPLETE, so only trials that were not finished at the
last look are looked at again: those beyond the first unfinished one. Optuna's ids of a study
appear in order, because whoever numbers a trial holds the lock on the study's row till it commits.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from hpo.search.percentiles import StepValues
from hpo.trial import TrialState
from storage import tables as t
from storage.curves import steps_of
from storage.exclusions import excluded_ids

MAX_STUDIES = 64
# Databases take 32,000 bound values and more.
CHUNK = 1000


@dataclass
class _Known:
    """What is known of one study; `final` is the Optuna id below which every trial has ended."""

    revision: int
    final: int = -1
    taken: set[int] = field(default_factory=set)  # beyond `final`
    values: StepValues = field(default_factory=StepValues)


class StepHistory:
    """The values of complete trials of the studies that were asked for last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._studies: OrderedDict[str, _Known] = OrderedDict()

    def of(self, connection: sa.Connection, study: sa.Row[Any]) -> StepValues:
        """The values as they stand in this transaction, without excluded trials."""
        with self._lock:
            known = self._studies.pop(study.uuid, None)
            if known is None or known.revision != study.history_revision:
                known = _Known(revision=study.history_revision)
            _bring_up_to_date(connection, study, known)
            self._studies[study.uuid] = known
            while len(self._studies) > MAX_STUDIES:
                self._studies.popitem(last=False)
            return known.values


def _bring_up_to_date(connection: sa.Connection, study: sa.Row[Any], known: _Known) -> None:
    trial = t.trials.c
    rows = connection.execute(
        sa.select(trial.trial_id, trial.state)
        .where(trial.study_id == study.study_id, trial.trial_id > known.final)
        .order_by(trial.trial_id)
    ).all()
    ended = {row.trial_id: TrialState[row.state.name] for row in rows}
    new = [
        trial_id
        for trial_id, state in ended.items()
        if state is TrialState.COMPLETE and trial_id not in known.taken
    ]
    if new:
        hidden = excluded_ids(connection, study) if study.history_revision else frozenset()
        _take_in(connection, [trial_id for trial_id in new if trial_id not in hidden], known)
        known.taken.update(new)
    for trial_id, state in ended.items():
        if not state.is_finished:
            break
        known.final = trial_id
        known.taken.discard(trial_id)


def _take_in(connection: sa.Connection, trial_ids: Sequence[int], known: _Known) -> None:
    for begin in range(0, len(trial_ids), CHUNK):
        chunk = trial_ids[begin : begin + CHUNK]
        for curve in steps_of(connection, chunk).values():
            known.values.add(curve)
