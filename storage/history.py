"""What samplers and pruners see of a study: all trials but the excluded ones, read once."""

from __future__ import annotations

import copy
import json
from collections.abc import Container, Mapping
from typing import Any, cast

from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from storage.engine import Database
from storage.exclusions import excluded_ids
from storage.optuna_cache import CachedStorage


class History:
    """Makes the views of studies, without their excluded trials.

    Which ones these are is read again when the study's `history_revision` has changed, which the
    caller has in its row of hpo_study anyway: a study without exclusions costs nothing.
    """

    def __init__(self, database: Database, storage: CachedStorage) -> None:
        self._database, self._storage = database, storage
        self._known: dict[str, tuple[int, frozenset[int]]] = {}

    def of(self, study: Any) -> BaseStorage:
        """The storage as the pruners of this study see it, for one decision."""
        return cast(BaseStorage, View(self._storage, study, self._hidden(study)))

    def for_sampling(self, study: Any, trial: FrozenTrial) -> SamplingView:
        """The storage as the sampler of this study sees it, for one trial."""
        return SamplingView(self._storage, study, self._hidden(study), trial)

    def _hidden(self, study: Any) -> frozenset[int]:
        if not study.history_revision:
            return frozenset()
        revision, hidden = self._known.get(study.uuid, (0, frozenset[int]()))
        if revision != study.history_revision:
            hidden = self._database.read(lambda c: excluded_ids(c, study))
            self._known[study.uuid] = (study.history_revision, hidden)
        return hidden


class View:
    """A storage that looks for changes once, and leaves hidden trials out of lists and best."""

    is_for_sampling = False

    def __init__(self, storage: CachedStorage, study: Any, hidden: frozenset[int]) -> None:
        self._storage, self._study, self._hidden_ids = storage, study, hidden
        self._lists: dict[frozenset[TrialState] | None, list[FrozenTrial]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def get_all_trials(
        self,
        study_id: int,
        deepcopy: bool = True,
        states: Container[TrialState] | None = None,
    ) -> list[FrozenTrial]:
        if not self._lists:
            self._storage.refresh(study_id, is_for_sampling=self.is_for_sampling)
        key = None if states is None else frozenset(s for s in TrialState if s in states)
        if key not in self._lists:
            trials = self._storage.in_states(study_id, states)
            if self._hidden_ids:
                trials = [trial for trial in trials if trial._trial_id not in self._hidden_ids]
            self._lists[key] = trials
        return copy.deepcopy(self._lists[key]) if deepcopy else self._lists[key]

    def get_study_id_from_name(self, study_name: str) -> int:
        # Asked for by Hyperband's study of one bracket, which has the name from the same row.
        return int(self._study.study_id)

    def get_best_trial(self, study_id: int) -> FrozenTrial:
        # Optuna's own definition of the best, over the trials that are left.
        return BaseStorage.get_best_trial(cast(BaseStorage, self), study_id)


class SamplingView(View):
    """Keeps what a sampler writes of its own trial, for whoever hands the trial over.

    So attributes cost no statements of their own, and none is left behind by one who lost it.
    """

    is_for_sampling = True

    def __init__(
        self, storage: CachedStorage, study: Any, hidden: frozenset[int], trial: FrozenTrial
    ) -> None:
        super().__init__(storage, study, hidden)
        self._trial = trial
        self._attrs: dict[str, str] = {}

    @property
    def attrs(self) -> Mapping[str, str]:
        """The JSON of each attribute that is still to be stored."""
        return self._attrs

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        # One that another program has given to an enqueued trial is there already.
        if trial_id == self._trial._trial_id and key not in self._trial.system_attrs:
            self._attrs[key] = json.dumps(value)
        else:
            self._storage.set_trial_system_attr(trial_id, key, value)

    def get_trial_system_attrs(self, trial_id: int) -> dict[str, Any]:
        if trial_id != self._trial._trial_id:
            return dict(self._storage.get_trial_system_attrs(trial_id))
        # A trial that has attributes may have got others since it was read.
        stored = self._storage.get_trial_system_attrs(trial_id) if self._trial.system_attrs else {}
        return {**stored, **{key: json.loads(document) for key, document in self._attrs.items()}}
