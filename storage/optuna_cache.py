"""Optuna's cache of trials, in lists by state as samplers and pruners ask for them.

The stock cache sorts and filters all trials of a study at each look, 5 ms at 10,000 trials. Here
the lists stay, and only what has changed is put into them.
"""

from __future__ import annotations

import copy
import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Container, Sequence
from typing import Any, TypeAlias

from optuna.storages._cached_storage import _CachedStorage, _StudyInfo
from optuna.trial import FrozenTrial, TrialState

from storage.engine import Database, engine_beside
from storage.optuna_storage import OptunaStorage

States: TypeAlias = frozenset[TrialState]
ALL: States = frozenset(TrialState)
# More changes than this at once, and sorting again is less work.
MANY = 200


class CachedStorage(_CachedStorage):
    """Shared by all threads of a process; nobody may change a trial that it did not copy."""

    _backend: OptunaStorage

    def __init__(self, backend: OptunaStorage) -> None:
        super().__init__(backend)
        self._lists: defaultdict[int, dict[States, list[FrozenTrial]]] = defaultdict(dict)
        self._reading: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)

    def __getstate__(self) -> dict[Any, Any]:
        state = super().__getstate__()
        del state["_reading"]
        return state

    def __setstate__(self, state: dict[Any, Any]) -> None:
        super().__setstate__(state)
        self._reading = defaultdict(threading.Lock)

    def get_all_trials(
        self,
        study_id: int,
        deepcopy: bool = True,
        states: Container[TrialState] | None = None,
    ) -> list[FrozenTrial]:
        self.refresh(study_id)
        trials = self.in_states(study_id, states)
        return copy.deepcopy(trials) if deepcopy else trials

    def in_states(
        self, study_id: int, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """The trials as they stood at the last look, by number; the list is the caller's."""
        wanted = ALL if states is None else frozenset(s for s in TrialState if s in states)
        with self._lock:
            lists = self._lists[study_id]
            if wanted not in lists:
                trials = (
                    self._studies[study_id].trials.values() if study_id in self._studies else ()
                )
                lists[wanted] = sorted((t for t in trials if t.state in wanted), key=_number)
            return list(lists[wanted])

    def refresh(self, study_id: int, *, is_for_sampling: bool = False) -> None:
        """Reads what has changed of a study, in one statement.

        A sampler looks at the parameters of trials that run and at nothing that they report, so
        those whose parameters are known are read again only when they have ended.
        """
        with self._reading[study_id]:
            with self._lock:
                study = self._studies.setdefault(study_id, _StudyInfo())
                open_ids = sorted(study.unfinished_trial_ids)
                known = self._with_params(open_ids) if is_for_sampling else ()
            trials = self._backend.changed(
                study_id, study.last_finished_trial_id, listed=open_ids, known=known
            )
            with self._lock:
                if self._studies.get(study_id) is study:  # not forgotten meanwhile
                    self._take_in(study_id, study, trials)

    def forget(self, study_id: int) -> None:
        """Drops all of a study: SQLite may give its id, and its trials', to others."""
        with self._lock:
            self._lists.pop(study_id, None)
            self._studies.pop(study_id, None)
            trial_ids = self._study_id_and_number_to_trial_id
            for key in [key for key in trial_ids if key[0] == study_id]:
                self._trial_id_to_study_id_and_number.pop(trial_ids.pop(key), None)

    def delete_study(self, study_id: int) -> None:
        self.forget(study_id)
        super().delete_study(study_id)

    def _read_trials_from_remote_storage(self, study_id: int) -> None:
        self.refresh(study_id)

    def _with_params(self, trial_ids: Collection[int]) -> Sequence[int]:
        places = self._trial_id_to_study_id_and_number
        return [
            trial_id
            for trial_id in trial_ids
            if trial_id in places
            and self._studies[places[trial_id][0]].trials[places[trial_id][1]].params
        ]

    def _take_in(self, study_id: int, study: _StudyInfo, trials: list[FrozenTrial]) -> None:
        self._add_trials_to_cache(study_id, trials)
        for trial in trials:
            if trial.state.is_finished():
                study.unfinished_trial_ids.discard(trial._trial_id)
                study.last_finished_trial_id = max(study.last_finished_trial_id, trial._trial_id)
            else:
                study.unfinished_trial_ids.add(trial._trial_id)

    def _add_trials_to_cache(self, study_id: int, trials: list[FrozenTrial]) -> None:
        super()._add_trials_to_cache(study_id, trials)
        lists = self._lists[study_id]
        if len(trials) > MANY:
            lists.clear()
        for states, listed in lists.items():
            for trial in trials:
                _put(listed, trial, belongs=trial.state in states)


def cached(database: Database) -> CachedStorage:
    """The storage with Optuna's cache of finished trials."""
    return CachedStorage(OptunaStorage(database.engine))


def cached_beside(url: str, *, writes: bool) -> CachedStorage:
    """The same for a process beside the one that owns the database, such as the dashboard's."""
    return CachedStorage(OptunaStorage(engine_beside(url, writes=writes)))


def _put(trials: list[FrozenTrial], trial: FrozenTrial, *, belongs: bool) -> None:
    """Replaces, adds or takes away a trial in a list that is sorted by number."""
    place = bisect_left(trials, trial.number, key=_number)
    is_there = place < len(trials) and trials[place].number == trial.number
    trials[place : place + is_there] = [trial] if belongs else []


def _number(trial: FrozenTrial) -> int:
    return trial._number
