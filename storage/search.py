"""Where Optuna's samplers and pruners meet the database: what they read, and under which lock.

One study samples at a time, over all processes: samplers write attributes (grid cells, CMA-ES
optimizers), and a sampler that repels running trials must see the one before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from optuna.distributions import distribution_to_json

from hpo.errors import NotFound
from hpo.search.importances import Importances, importances
from hpo.search.pruning import decide
from hpo.search.sampling import Drawn, SearchStudy, sample, suggest_one
from hpo.space import Choice, Parameter
from hpo.study import StudyDefinition
from hpo.trial import Decision
from storage.engine import Database, outages
from storage.history import History
from storage.optuna_cache import CachedStorage


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampled:
    """Rows for Optuna's trial_params, and what an objective that suggests may still take."""

    rows: Sequence[Mapping[str, Any]]
    relative_params: Mapping[str, Any] | None


class Search:
    """Samples and prunes through an Optuna storage on the same database."""

    def __init__(self, database: Database, optuna_storage: CachedStorage) -> None:
        self._database, self._storage = database, optuna_storage
        self._history = History(database, optuna_storage)
        self._uuids: dict[int, str] = {}  # by Optuna's id, of the studies that the cache may hold
        self._deleted: frozenset[str] = frozenset()

    @contextlib.contextmanager
    def alone(self, study_id: int) -> Iterator[None]:
        """While nobody samples this study: one does at a time, over all processes."""
        with self._database.mutex(f"hpo/sample/{study_id}"):
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

    def sample(self, definition: StudyDefinition, row: sa.Row[Any], trial_id: int) -> Sampled:
        """Draws the parameters of a trial; writes none of them."""
        with self.alone(row.study_id), outages():
            study = self._study(definition, row)
            sampled = sample(study, self._storage.get_trial(trial_id))
        return Sampled(
            rows=[param_row(name, drawn) for name, drawn in sampled.drawn.items()],
            relative_params=dict(sampled.relative) if definition.space is None else None,
        )

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
        with self.alone(row.study_id), outages():
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
        """Optuna's view of a study as its row in hpo_study stands, without excluded trials.

        Raises NotFound for one that is being deleted, whose id may be another's by now.
        """
        if row.uuid in self._deleted:
            raise NotFound(f"There is no study {definition.name!r}.")
        if self._uuids.setdefault(row.study_id, row.uuid) != row.uuid:
            self.drop(row.study_id)  # another Optuna program deleted the one before
            self._uuids[row.study_id] = row.uuid
        return SearchStudy(definition, self._history.of(row), row.study_id)


def param_row(name: str, drawn: Drawn) -> dict[str, Any]:
    """A row of Optuna's trial_params, its trial apart."""
    return {
        "param_name": name,
        "param_value": drawn.internal,
        "distribution_json": distribution_to_json(drawn.distribution),
    }
