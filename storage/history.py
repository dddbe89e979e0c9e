"""The trials that samplers and pruners may learn from: all but the excluded ones."""

from __future__ import annotations

from collections.abc import Container
from typing import Any, cast

import sqlalchemy as sa
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from storage.engine import Database
from storage.exclusions import excluded_ids


class History:
    """Optuna storages that hide the excluded trials of one study each.

    Which ones these are is read again when the study's `history_revision` has changed, which the
    caller has in its row of hpo_study anyway: a study without exclusions costs nothing.
    """

    def __init__(self, database: Database, storage: BaseStorage) -> None:
        self._database, self._storage = database, storage
        self._known: dict[str, tuple[int, frozenset[int]]] = {}

    def of(self, study: sa.Row[Any]) -> BaseStorage:
        """The storage as the samplers and pruners of this study see it."""
        hidden = self._hidden(study) if study.history_revision else frozenset()
        if not hidden:
            return self._storage
        return cast(BaseStorage, _WithoutExcluded(self._storage, hidden))

    def _hidden(self, study: sa.Row[Any]) -> frozenset[int]:
        revision, hidden = self._known.get(study.uuid, (0, frozenset[int]()))
        if revision != study.history_revision:
            hidden = self._database.read(lambda c: excluded_ids(c, study))
            self._known[study.uuid] = (study.history_revision, hidden)
        return hidden


class _WithoutExcluded:
    """A storage without some of its trials, for those who ask for all or for the best."""

    def __init__(self, storage: BaseStorage, hidden: frozenset[int]) -> None:
        self._storage, self._hidden_ids = storage, hidden

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def get_all_trials(
        self,
        study_id: int,
        deepcopy: bool = True,
        states: Container[TrialState] | None = None,
    ) -> list[FrozenTrial]:
        trials = self._storage.get_all_trials(study_id, deepcopy, states)
        return [trial for trial in trials if trial._trial_id not in self._hidden_ids]

    def get_best_trial(self, study_id: int) -> FrozenTrial:
        # Optuna's own definition of the best, over the trials that are left.
        return BaseStorage.get_best_trial(cast(BaseStorage, self), study_id)
