"""Studies from others and to elsewhere: clone, warm start, export, import, adopt."""

from __future__ import annotations

import hashlib
import secrets
from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect

from api.errors import InvalidRequest, problems
from api.exporting import MEDIA_TYPES, pieces_of
from api.faults import Fault
from api.idempotency import IdempotencyKey, fingerprint
from api.preconditions import set_etag
from api.schemas.study_create import StudyCreate
from api.schemas.transfer import (
    AdoptReply,
    CloneBody,
    CloneReply,
    ExportQuery,
    ImportQuery,
    ImportReply,
    WarmStartBody,
    WarmStartReply,
    definition_from,
    read_study,
)
from api.service import DoorbellDep, PreparedDep, StoreDep, StudyName
from hpo.seeds import MAX_SEED
from storage.enqueueing import Request as Asked
from storage.importing import Imported
from storage.requests import fingerprint_of
from storage.store import Store

router = APIRouter(prefix="/studies", tags=["studies"])

# The document is described where it is read; a client has it from an export.
DOCUMENT = {"type": "object", "description": "A study and its trials, format 1"}


@router.post(
    "/{study}/clone",
    summary="A new study that is this one with changes, and imports the trials that still fit",
    status_code=201,
    responses=problems("not_found", "study_exists", "conflict", "idempotency_key_reused"),
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
    request = Asked(key=key, fingerprint=fingerprint(body, study=study), extend=body.extend)
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


@router.get(
    "/{study}/export",
    summary="The whole study as JSON that an import reads, or its trials as CSV",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "The file, piece by piece; what runs is told as it stands",
            "content": {"application/json": {"schema": DOCUMENT}, "text/csv": {}},
        },
        **problems("not_found"),
    },
)
def export_study(
    study: StudyName, store: StoreDep, query: Annotated[ExportQuery, Query()]
) -> StreamingResponse:
    return StreamingResponse(
        pieces_of(store, study, query.format),
        media_type=MEDIA_TYPES[query.format],
        headers={"Content-Disposition": f'attachment; filename="{study}.{query.format}"'},
    )


@router.post(
    "/import",
    summary="A study that was exported here or elsewhere: all of it, or nothing",
    status_code=201,
    responses=problems("study_exists", "idempotency_key_reused", "too_large"),
    openapi_extra={
        "requestBody": {"required": True, "content": {"application/json": {"schema": DOCUMENT}}}
    },
)
async def import_study(
    request: Request,
    response: Response,
    service: PreparedDep,
    query: Annotated[ImportQuery, Query()],
    key: IdempotencyKey = None,
) -> ImportReply:
    try:
        body = await request.body()
    except ClientDisconnect:
        raise InvalidRequest([Fault("body", "was cut off; send it again")]) from None
    async with service.import_slots:
        imported = await anyio.to_thread.run_sync(_import, service.store, body, query.name, key)
    service.doorbell.ring()
    response.headers["Location"] = f"/v1/studies/{imported.study.definition.name}"
    set_etag(response, imported.study)
    return ImportReply.of(imported)


def _import(store: Store, body: bytes, name: str | None, key: str | None) -> Imported:
    study, trials = read_study(body, name)
    mark = fingerprint_of({"sha256": hashlib.sha256(body).hexdigest(), "name": name})
    return store.importing.write(study, trials, key=key, fingerprint=mark)


def _seed() -> int:
    return secrets.randbelow(MAX_SEED + 1)
