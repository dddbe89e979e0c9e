"""Models: the files that the best trials of a study leave behind, usually their weights.

An attempt offers its model before it completes, and sends it if it would be among the best. Which
ones stay is decided when a trial completes, in the same transaction. A row is there before its
file and goes after it: `sweep` removes what was displaced, and what a crash left half way.
"""

from __future__ import annotations

import json
import logging
import math
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa
from optuna.artifacts import ArtifactMeta
from optuna.artifacts._upload import ARTIFACTS_ATTR_PREFIX, DEFAULT_MIME_TYPE

from hpo.errors import Conflict, ModelRefused, NotFound
from hpo.study import Direction, StudyDefinition
from storage import leases
from storage import tables as t
from storage.artifacts import Arrival, Artifacts
from storage.curves import steps_of
from storage.engine import Database, db_now
from storage.exclusions import is_result
from storage.model_rows import DROPPED, KEPT, OFFERED, models_of, offer_of
from storage.outcomes import values_by_rule
from storage.records import Lease, ModelOffer, ModelRecord
from storage.studies import definition_of, row_and_definition, study_row

logger = logging.getLogger(__name__)

NO_FOLDER = "The API has no folder for models; start it with --artifacts."

_model = t.hpo_model.c


class Models:
    """Takes models in, hands them out and removes those that are no longer wanted."""

    def __init__(
        self,
        database: Database,
        artifacts: Artifacts | None,
        *,
        max_bytes: int,
        lease_seconds: float,
    ) -> None:
        self._database, self._artifacts = database, artifacts
        self.max_bytes, self._lease_seconds = max_bytes, lease_seconds

    @property
    def obstacle(self) -> str | None:
        """Why no models are stored here; None when they are."""
        return NO_FOLDER if self._artifacts is None else None

    def offer(self, lease: Lease, offer: ModelOffer, value: float | None) -> str | None:
        """None when the model is wanted; else why it is not.

        `value` is what the trial will complete with; None takes it from the reports. Raises
        LeaseLost, TrialFinished or NotFound.
        """

        def transaction(connection: sa.Connection) -> str | None:
            held = self._hold(connection, lease)
            refusal = self._refusal(connection, held, offer, value)
            if refusal is None:
                _enter(connection, held, offer)
            return refusal

        return self._database.write(transaction)

    def receive(self, lease: Lease) -> Arrival:
        """Begins to take in the model that was offered, or once more the one that has come.

        Raises ModelRefused, or as `offer` does.
        """

        def transaction(connection: sa.Connection) -> sa.Row[Any] | None:
            held = self._hold(connection, lease)
            mine = sa.and_(_is_of(held), _model.token == held.token, _model.state != DROPPED)
            newest = sa.select(t.hpo_model).where(mine).order_by((_model.state == OFFERED).desc())
            return connection.execute(newest.limit(1)).one_or_none()

        row = self._database.write(transaction)
        if row is None or self._artifacts is None:
            raise ModelRefused("No model of this attempt is awaited; offer it first.")
        return self._artifacts.receive(row.artifact_id, offer_of(row))

    def keep(self, lease: Lease, arrival: Arrival) -> None:
        """Makes what has arrived the trial's model. Raises InvalidField, or as `receive` does."""
        arrival.move()

        def transaction(connection: sa.Connection) -> None:
            held = self._hold(connection, lease)
            mine = sa.and_(_model.artifact_id == arrival.artifact_id, _model.state != DROPPED)
            row = connection.execute(sa.select(t.hpo_model).where(mine)).one_or_none()
            if row is None:
                raise ModelRefused("The trial has gone on without this model.")
            drop(connection, sa.and_(_is_of(held), _model.artifact_id != row.artifact_id))
            if row.state == OFFERED:
                connection.execute(t.hpo_model.update().where(mine).values(state=KEPT))
                _show_in_dashboard(connection, row, lease.study_name)

        try:
            self._database.write(transaction)
        except Conflict:
            self._forget_unless_known(arrival.artifact_id)
            raise

    def get(self, study_name: str, number: int) -> tuple[ModelRecord, Path]:
        """The model of a trial and its file. Raises NotFound."""

        def read(connection: sa.Connection) -> ModelRecord | None:
            study, _ = row_and_definition(connection, study_name)
            return models_of(connection, [(study.uuid, number)]).get((study.uuid, number))

        found = self._database.read(read)
        if found is None:
            raise NotFound(f"Trial {study_name}/{number} has no model.")
        path = None if self._artifacts is None else self._artifacts.path(found.artifact_id)
        if path is None or not path.is_file():
            raise NotFound(
                f"The model of trial {study_name}/{number} is not in this API's folder; do all API "
                "processes share the one that --artifacts names?"
            )
        return found, path

    def sweep(self) -> int:
        """Removes the files of models that are no longer wanted; answers how many."""
        if self._artifacts is None:
            return 0
        if self._database.read(lambda c: c.execute(_useless()).first()) is not None:
            self._database.write(lambda c: drop(c, _model.artifact_id.in_(_useless())))
        dropped = sa.select(_model.artifact_id).where(_model.state == DROPPED)
        gone = [
            artifact_id
            for artifact_id in self._database.read(lambda c: c.execute(dropped).scalars().all())
            if self._discard(artifact_id)
        ]
        if gone:
            delete = t.hpo_model.delete().where(_model.artifact_id.in_(gone))
            self._database.write(lambda c: c.execute(delete))
        return len(gone)

    def _forget_unless_known(self, artifact_id: str) -> None:
        """Files that have a row are for the sweep; this one's may have been swept already."""
        select = sa.select(_model.state).where(_model.artifact_id == artifact_id)
        if self._database.read(lambda c: c.execute(select).first()) is None:
            self._discard(artifact_id)

    def _discard(self, artifact_id: str) -> bool:
        assert self._artifacts is not None
        try:
            self._artifacts.discard(artifact_id)
        except OSError as error:
            logger.warning("a model that is no longer wanted stays: %s", error)
            return False
        return True

    def _hold(self, connection: sa.Connection, lease: Lease) -> sa.Row[Any]:
        return leases.hold(connection, lease, lease_seconds=self._lease_seconds)

    def _refusal(
        self, connection: sa.Connection, held: sa.Row[Any], offer: ModelOffer, value: float | None
    ) -> str | None:
        study = study_row(connection, t.hpo_study.c.uuid == held.study_uuid)
        assert study is not None, "a held lease has a study"
        definition = definition_of(study)
        if definition.keep_models == 0:
            return "The study keeps no models: its keep_models is 0."
        if self.obstacle is not None:
            return self.obstacle
        if definition.is_multi_objective:
            return "The study has several directions, and no trial of it is the best one."
        if offer.size_bytes > self.max_bytes:
            return (
                f"It has {offer.size_bytes} bytes, the API takes {self.max_bytes} at most; start "
                "it with a higher --max-model-bytes."
            )
        if _is_here(connection, held, offer):
            return "It is stored already."
        if value is None:
            curve = steps_of(connection, [held.trial_id])[held.trial_id]
            value = next(iter(values_by_rule(curve, definition)), None)
        return _refusal_of_value(connection, held, definition, value)


def settle(
    connection: sa.Connection, study_uuid: str, definition: StudyDefinition, lease: Any
) -> None:
    """Keeps the best models of a study after a trial has completed; called under its lock."""
    is_stale = sa.or_(_model.token != lease.token, _model.state == OFFERED)
    drop(connection, sa.and_(_is_of(lease), is_stale))
    beyond = _ranked(connection, study_uuid, definition)[definition.keep_models :]
    drop(connection, _model.artifact_id.in_([model.artifact_id for model in beyond]))


def drop(connection: sa.Connection, condition: sa.ColumnElement[bool]) -> None:
    """Takes models away: nobody sees them any more, and their files go with the next sweep."""
    rows = connection.execute(
        t.hpo_model.update()
        .where(_model.state != DROPPED, condition)
        .values(state=DROPPED)
        .returning(_model.artifact_id, _model.trial_id)
    ).all()
    attr = t.trial_system_attrs.c
    for row in rows:
        mine = sa.and_(attr.trial_id == row.trial_id, attr.key == _attr_key(row.artifact_id))
        connection.execute(t.trial_system_attrs.delete().where(mine))


def _is_of(held: Any) -> sa.ColumnElement[bool]:
    return sa.and_(_model.study_uuid == held.study_uuid, _model.number == held.number)


def _is_here(connection: sa.Connection, held: sa.Row[Any], offer: ModelOffer) -> bool:
    same = sa.and_(_model.token == held.token, _model.sha256 == offer.sha256)
    select = sa.select(_model.artifact_id).where(_is_of(held), same, _model.state == KEPT)
    return connection.execute(select).first() is not None


def _refusal_of_value(
    connection: sa.Connection,
    held: sa.Row[Any],
    definition: StudyDefinition,
    value: float | None,
) -> str | None:
    if value is None or not math.isfinite(value):
        return "The trial has no finite value."
    mine = (False, _loss(definition, value), held.number)
    ranked = _ranked(connection, held.study_uuid, definition)
    better = [model.number for model in ranked if model[:3] < mine]
    if len(better) < definition.keep_models:
        return None
    return f"The study keeps {definition.keep_models}, and trial {better[0]} has a better one."


def _loss(definition: StudyDefinition, value: float) -> float:
    return -value if definition.direction is Direction.MAXIMIZE else value


class _Ranked(NamedTuple):
    """A model by how good its trial is; those of trials that are no results come last."""

    is_no_result: bool
    loss: float
    number: int
    artifact_id: str


def _ranked(
    connection: sa.Connection, study_uuid: str, definition: StudyDefinition
) -> list[_Ranked]:
    """The models of COMPLETE trials, the best first."""
    trials, values = t.trials.c, t.trial_values.c
    rows = connection.execute(
        sa.select(values.value, _model.number, _model.artifact_id, is_result().label("is_result"))
        .join(t.trials, trials.trial_id == _model.trial_id)
        .join(t.trial_values, values.trial_id == _model.trial_id)
        .where(_model.study_uuid == study_uuid, _model.state == KEPT)
        .where(trials.state == "COMPLETE", values.objective == 0)
    )
    return sorted(
        _Ranked(not row.is_result, _loss(definition, row.value), row.number, row.artifact_id)
        for row in rows
    )


def _enter(connection: sa.Connection, held: sa.Row[Any], offer: ModelOffer) -> None:
    """An offer takes the place of earlier ones; a stored model stays until the new one is here."""
    drop(connection, sa.and_(_is_of(held), _model.state == OFFERED))
    connection.execute(
        t.hpo_model.insert().values(
            artifact_id=str(uuid.uuid4()),
            study_uuid=held.study_uuid,
            number=held.number,
            trial_id=held.trial_id,
            token=held.token,
            state=OFFERED,
            created_at=db_now(),
            **asdict(offer),
        )
    )


def _useless() -> sa.Select[tuple[str]]:
    """Models of trials that will not complete, and of studies that are gone."""
    trials = t.trials.c
    lives = sa.exists().where(
        trials.trial_id == _model.trial_id,
        trials.number == _model.number,
        trials.state.in_(["RUNNING", "COMPLETE"]),
    )
    is_known = sa.exists().where(t.hpo_study.c.uuid == _model.study_uuid)
    return sa.select(_model.artifact_id).where(
        _model.state != DROPPED, sa.not_(sa.and_(lives, is_known))
    )


def _attr_key(artifact_id: str) -> str:
    return ARTIFACTS_ATTR_PREFIX + artifact_id


def _show_in_dashboard(connection: sa.Connection, row: sa.Row[Any], study_name: str) -> None:
    """Writes what `optuna.artifacts.upload_artifact` would: JSON in JSON."""
    meta = ArtifactMeta(
        artifact_id=row.artifact_id,
        filename=f"{study_name}-{row.number}{row.suffix}",
        mimetype=DEFAULT_MIME_TYPE,
        encoding=None,
    )
    connection.execute(
        t.trial_system_attrs.insert().values(
            trial_id=row.trial_id,
            key=_attr_key(row.artifact_id),
            value_json=json.dumps(json.dumps(asdict(meta))),
        )
    )
