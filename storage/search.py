"""Where Optuna's samplers and pruners meet the database: what they read, and under which lock.

A study samples one trial at a time: a sampler that repels running trials must see the one before.
For samplers that write what the next one reads (a counter of points, grid cells, generations) this
holds over all processes; the others ask no database for a lock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import sqlalchemy as sa
from optuna.distributions import distribution_to_json
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from hpo.errors import HpoError, NotFound
from hpo.search.importances import Importances, importances
from hpo.search.pruning import decide
from hpo.search.samplers import SAMPLERS, Turn
from hpo.search.sampling import Drawn, SearchStudy, sample, suggest_one
from hpo.space import Choice, Parameter
from hpo.study import StudyDefinition
from hpo.trial import Decision
from storage.engine import Database, naive_utc, outages
from storage.history import History
from storage.optuna_cache import CachedStorage


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampled:
    """Rows for Optuna's trial_params, and what an objective that suggests may still take.

    `attrs` has the JSON of what the sampler says of the trial.
    """

    params: Mapping[str, Choice]
    rows: Sequence[Mapping[str, Any]]
    attrs: Mapping[str, str]
    relative_params: Mapping[str, Any] | None


class SamplerFault(Exception):
    """A sampler's own fault, which every trial of its study would meet."""

    def __init__(self, definition: StudyDefinition, error: Exception) -> None:
        name = definition.sampler.name
        super().__init__(f"The sampler {name!r} failed: {type(error).__name__}: {error}")


class Search:
    """Samples and prunes through an Optuna storage on the same database."""

    def __init__(self, database: Database, optuna_storage: CachedStorage) -> None:
        self._database, self._storage = database, optuna_storage
        self._history = History(database, optuna_storage)
        self._uuids: dict[int, str] = {}  # by Optuna's id, of the studies that the cache may hold
        self._deleted: frozenset[str] = frozenset()

    @contextlib.contextmanager
    def alone(self, study_id: int, *, everywhere: bool = True) -> Iterator[None]:
        """While nobody else samples this study in this process, or in any."""
        with self._database.mutex(f"hpo/sample/{study_id}", everywhere=everywhere):
            yield

    def forget(self, deleted: Collection[str]) -> None:
        """Drops what is cached of studies that are gone, by their UUIDs, and reads none anew."""
        self._deleted = frozenset(deleted)
        for study_id in [key for key, uuid in list(self._uuids.items()) if uuid in self._deleted]:
            self.drop(study_id)

    def drop(self, study_id: int) -> None:
        """Drops what is cached of a study, by Optuna's id; another one may have it next."""
        self._uuids.pop(study_id, None)
        self._storage.forget(study_id)

    @contextlib.contextmanager
    def sampled(
        self, definition: StudyDefinition, row: sa.Row[Any], trial: FrozenTrial | int
    ) -> Iterator[Sampled]:
        """The parameters of a trial, to be handed over before those of the next one are drawn.

        `trial` is one that was just made, or Optuna's id of another one. Raises NotFound for a
        study that is being deleted, Unavailable, and SamplerFault.
        """
        with self._turn(definition, row.study_id):
            try:
                with outages():
                    sampled = self._sampled(definition, row, trial)
            except HpoError:
                raise
            except Exception as error:
                raise SamplerFault(definition, error) from error
            yield sampled

    def _sampled(
        self, definition: StudyDefinition, row: sa.Row[Any], trial: FrozenTrial | int
    ) -> Sampled:
        self._check(definition, row)
        known = self._storage.get_trial(trial) if isinstance(trial, int) else trial
        view = self._history.for_sampling(row, known)
        study = SearchStudy(definition, cast(BaseStorage, view), row.study_id)
        sampled = sample(study, known)
        return Sampled(
            params=sampled.params,
            rows=[param_row(name, drawn) for name, drawn in sampled.drawn.items()],
            attrs=view.attrs,
            relative_params=dict(sampled.relative) if definition.space is None else None,
        )

    def _turn(
        self, definition: StudyDefinition, study_id: int
    ) -> contextlib.AbstractContextManager[None]:
        turn = SAMPLERS[definition.sampler.name].turn
        if turn is Turn.NONE and definition.pruner.name != "hyperband":  # which looks at trials
            return contextlib.nullcontext()
        return self.alone(study_id, everywhere=turn is Turn.EVERYWHERE)

    def suggest(
        self,
        definition: StudyDefinition,
        row: sa.Row[Any],
        trial_id: int,
        name: str,
        parameter: Parameter,
        relative_params: Mapping[str, Choice],
    ) -> Drawn:
        """Draws one parameter for an objective that defines its space by running."""
        with self._turn(definition, row.study_id), outages():
            study = self._study(definition, row)
            trial = self._storage.get_trial(trial_id)
            return suggest_one(study, trial, name, parameter, relative_params)

    def decide(self, definition: StudyDefinition, row: sa.Row[Any], trial_id: int) -> Decision:
        """The pruner's verdict on a trial after its newest report."""
        with outages():
            study = self._study(definition, row)
            return decide(study, self._storage.get_trial(trial_id))

    def importances(self, definition: StudyDefinition, row: sa.Row[Any], index: int) -> Importances:
        """How much each parameter matters for one of the values. Raises TooFewTrials."""
        with outages():
            return importances(self._study(definition, row), index)

    def _study(self, definition: StudyDefinition, row: sa.Row[Any]) -> SearchStudy:
        """Optuna's view of a study as its row in hpo_study stands, without excluded trials."""
        self._check(definition, row)
        return SearchStudy(definition, self._history.of(row), row.study_id)

    def _check(self, definition: StudyDefinition, row: sa.Row[Any]) -> None:
        """Raises NotFound for a study that is being deleted, whose id may be another's by now."""
        if row.uuid in self._deleted:
            raise NotFound(f"There is no study {definition.name!r}.")
        if self._uuids.setdefault(row.study_id, row.uuid) != row.uuid:
            self.drop(row.study_id)  # another Optuna program deleted the one before
            self._uuids[row.study_id] = row.uuid


def new_trial(number: int, trial_id: int) -> FrozenTrial:
    """A trial that has just begun, as Optuna would read it."""
    return FrozenTrial(
        number=number,
        state=TrialState.RUNNING,
        value=None,
        datetime_start=naive_utc(),
        datetime_complete=None,
        params={},
        distributions={},
        user_attrs={},
        system_attrs={},
        intermediate_values={},
        trial_id=trial_id,
    )


def param_row(name: str, drawn: Drawn) -> dict[str, Any]:
    """A row of Optuna's trial_params, its trial apart."""
    return {
        "param_name": name,
        "param_value": drawn.internal,
        "distribution_json": distribution_to_json(drawn.distribution),
    }
