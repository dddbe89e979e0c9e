"""Rows of hpo_model as records: read beside trials and studies."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from storage import tables as t
from storage.records import ModelOffer, ModelRecord

OFFERED, KEPT, DROPPED = "offered", "kept", "dropped"

Key = tuple[str, int]  # a study's UUID and a trial's number


def models_of(connection: sa.Connection, trials: Collection[Key]) -> dict[Key, ModelRecord]:
    """The stored models of COMPLETE trials."""
    if not trials:
        return {}
    model = t.hpo_model.c
    rows = connection.execute(
        sa.select(t.hpo_model, t.hpo_study.c.name)
        .join(t.trials, t.trials.c.trial_id == model.trial_id)
        .join(t.hpo_study, t.hpo_study.c.uuid == model.study_uuid)
        .where(sa.tuple_(model.study_uuid, model.number).in_(list(trials)))
        .where(model.state == KEPT, t.trials.c.state == "COMPLETE")
    )
    return {
        (row.study_uuid, row.number): ModelRecord(
            study_name=row.name,
            number=row.number,
            artifact_id=row.artifact_id,
            **asdict(offer_of(row)),
        )
        for row in rows
    }


def offer_of(row: sa.Row[Any]) -> ModelOffer:
    """What was offered, of a row."""
    return ModelOffer(
        step=row.step, sha256=row.sha256, size_bytes=row.size_bytes, suffix=row.suffix
    )
