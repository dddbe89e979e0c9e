"""Studies from others and to elsewhere: clone, warm start, export, import, adopt."""

from __future__ import annotations

import secrets

from fastapi import APIRouter, Response

from api.errors import problems
from api.idempotency import IdempotencyKey, fingerprint
from api.preconditions import set_etag
from api.schemas.study_create import StudyCreate
from api.schemas.transfer import (
    AdoptReply,
    CloneBody,
    CloneReply,
    WarmStartBody,
    WarmStartReply,
    definition_from,
)
from api.service import DoorbellDep, StoreDep, StudyName
from hpo.seeds import MAX_SEED
from storage.enqueueing import Request

router = APIRouter(prefix="/studies", tags=["studies"])


@router.post(
    "/{study}/clone",
    summary="A new study that is this one with changes, and imports the trials that still fit",
    status_code=201,
    responses=problems("not_found", "study_exists", "idempotency_key_reused"),
)
def clone_study(
    study: StudyName,
    body: CloneBody,
    response: Response,
    store: StoreDep,
    doorbell: DoorbellDep,
    key: IdempotencyKey = None,
) -> CloneReply:
    document = body.changed(store.studies.get(study).definition)
    objective = document.get("objective")
    descriptor = store.workers.descriptor(objective) if isinstance(objective, str) else None
    cloned = store.cloning.clone(
        study,
        definition_from(document, "changes", descriptor=descriptor, draw_seed=_seed),
        import_trials=body.import_trials,
        key=key,
        fingerprint=fingerprint(body, study=study),
    )
    doorbell.ring()
    made = store.studies.get(body.name)
    response.headers["Location"] = f"/v1/studies/{body.name}"
    set_etag(response, made)
    return CloneReply.of(made, cloned)


@router.post(
    "/{study}/warm-start",
    summary="Enqueue the best trials of another study whose parameters this one has",
    status_code=201,
    responses=problems("not_found", "conflict", "idempotency_key_reused"),
)
def warm_start(
    study: StudyName,
    body: WarmStartBody,
    store: StoreDep,
    doorbell: DoorbellDep,
    key: IdempotencyKey = None,
) -> WarmStartReply:
    request = Request(key=key, fingerprint=fingerprint(body, study=study), extend=body.extend)
    started = store.cloning.warm_start(study, body.source, body.k, request)
    doorbell.ring()
    return WarmStartReply(study=study, numbers=started.numbers, misfits=dict(started.misfits))


@router.post(
    "/adopt",
    summary="Make a study of plain Optuna in this database one of the service",
    status_code=201,
    responses=problems("not_found", "study_exists"),
)
def adopt_study(
    body: StudyCreate, response: Response, store: StoreDep, doorbell: DoorbellDep
) -> AdoptReply:
    definition = body.to_definition(
        None if body.objective is None else store.workers.descriptor(body.objective),
        draw_seed=_seed,
    )
    adopted = store.adoption.adopt(definition, given=body.given)
    doorbell.ring()
    response.headers["Location"] = f"/v1/studies/{definition.name}"
    set_etag(response, adopted.study)
    return AdoptReply.of(adopted)


def _seed() -> int:
    return secrets.randbelow(MAX_SEED + 1)
