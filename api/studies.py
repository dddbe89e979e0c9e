"""Studies: create, list, show, best, amend, delete, and the states that users put them in."""

from __future__ import annotations

import secrets
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Request, Response
from pydantic import ValidationError

from api.errors import InvalidRequest, problems
from api.faults import fault_of
from api.idempotency import IdempotencyKey, fingerprint
from api.preconditions import Versions, set_etag
from api.schemas.studies import (
    BestOfStudyReply,
    StudyCancel,
    StudyCheckReply,
    StudyDelete,
    StudyDraftReply,
    StudyPage,
    StudyQuery,
    StudyReply,
    StudyWait,
)
from api.schemas.study_amend import StudyAmend
from api.schemas.study_create import StudyCreate
from api.service import DoorbellDep, PreparedDep, StoreDep, StudyName
from api.waiting import waited
from hpo.errors import StudyExists
from hpo.seeds import MAX_SEED
from hpo.study import StudyDefinition
from storage.store import Store

router = APIRouter(prefix="/studies", tags=["studies"])

OUTCOMES: dict[int | str, dict[str, Any]] = {
    200: {"model": StudyReply, "description": "The same study exists already"},
    201: {"description": "Created; Location names it"},
}


@router.post(
    "",
    summary="Create a study, or find the same one again",
    status_code=201,
    responses={**OUTCOMES, **problems("study_exists", "idempotency_key_reused")},
)
def create_study(
    body: StudyCreate,
    response: Response,
    store: StoreDep,
    doorbell: DoorbellDep,
    key: IdempotencyKey = None,
) -> StudyReply:
    definition = _definition_of(body, store)
    study, created = store.studies.create(
        definition, given=body.given, key=key, fingerprint=fingerprint(body)
    )
    doorbell.ring()
    response.status_code = 201 if created else 200
    response.headers["Location"] = f"/v1/studies/{study.definition.name}"
    set_etag(response, study)
    return StudyReply.of(study)


# Whatever one has written so far: what is wrong with it is the answer, and no refusal.
AnyDocument = Annotated[dict[str, Any], Body(description="As for creating a study.")]


def _definition_of(body: StudyCreate, store: Store) -> StudyDefinition:
    return body.to_definition(
        None if body.objective is None else store.workers.descriptor(body.objective),
        draw_seed=lambda: secrets.randbelow(MAX_SEED + 1),
    )


@router.post(
    "/check",
    summary="Every fault of a study document, or what it would make; creates nothing",
    responses=problems(),
)
def check_study(document: AnyDocument, store: StoreDep) -> StudyCheckReply:
    try:
        body = StudyCreate.model_validate(document)
        definition, exists = store.studies.check(_definition_of(body, store), given=body.given)
    except ValidationError as unreadable:
        faults = map(fault_of, unreadable.errors(include_url=False))
        return StudyCheckReply.faulty((fault.field or "body", fault.message) for fault in faults)
    except InvalidRequest as refused:
        return StudyCheckReply.faulty((fault.field, fault.message) for fault in refused.faults)
    except StudyExists as taken:
        return StudyCheckReply.faulty([("name", str(taken))])
    return StudyCheckReply(errors=[], exists=exists, study=StudyDraftReply.of(definition))


@router.get("", summary="Studies, newest first", responses=problems())
def list_studies(query: Annotated[StudyQuery, Query()], store: StoreDep) -> StudyPage:
    return StudyPage.of(store.studies.page(query.to_filter(), limit=query.limit, after=query.after))


@router.get(
    "/{study}",
    summary="A study and how it stands; it may be waited for",
    responses=problems("not_found"),
)
async def get_study(
    study: StudyName,
    query: Annotated[StudyWait, Query()],
    request: Request,
    response: Response,
    service: PreparedDep,
) -> StudyReply:
    found = await waited(service, study, query, request)
    set_etag(response, found)
    return StudyReply.of(found)


@router.get(
    "/{study}/best",
    summary="The best trial so far",
    responses=problems("not_found", "no_completed_trial"),
)
def get_best(study: StudyName, store: StoreDep) -> BestOfStudyReply:
    return BestOfStudyReply.of_study(study, store.studies.best(study))


@router.patch(
    "/{study}",
    summary="Change what a study may spend, and its labels; more trials reopen an ended one",
    responses=problems("not_found", "conflict", "precondition_failed"),
)
def amend_study(
    study: StudyName,
    body: StudyAmend,
    response: Response,
    store: StoreDep,
    doorbell: DoorbellDep,
    versions: Versions,
) -> StudyReply:
    amended = store.lifecycle.amend(study, body.changes, versions=versions)
    doorbell.ring()
    set_etag(response, amended)
    return StudyReply.of(amended)


@router.post(
    "/{study}/pause",
    summary="Hand out nothing more; running trials are given back at their next report",
    responses=problems("not_found", "conflict"),
)
def pause_study(study: StudyName, store: StoreDep) -> StudyReply:
    return StudyReply.of(store.lifecycle.pause(study))


@router.post(
    "/{study}/resume",
    summary="Let a paused study go on",
    responses=problems("not_found", "conflict"),
)
def resume_study(study: StudyName, store: StoreDep, doorbell: DoorbellDep) -> StudyReply:
    resumed = store.lifecycle.resume(study)
    doorbell.ring()
    return StudyReply.of(resumed)


@router.post(
    "/{study}/stop",
    summary="Start no more trials; the study ends when the running ones have",
    responses=problems("not_found", "conflict"),
)
def stop_study(study: StudyName, store: StoreDep) -> StudyReply:
    return StudyReply.of(store.lifecycle.stop(study))


@router.post(
    "/{study}/cancel",
    summary="Stop, and end running trials at their next report, or now",
    responses=problems("not_found", "conflict"),
)
def cancel_study(study: StudyName, store: StoreDep, body: StudyCancel | None = None) -> StudyReply:
    return StudyReply.of(store.lifecycle.cancel(study, now=(body or StudyCancel()).now))


@router.post(
    "/{study}/archive",
    summary="Leave a study out of lists; it has ended or is paused",
    responses=problems("not_found", "conflict"),
)
def archive_study(study: StudyName, store: StoreDep) -> StudyReply:
    return StudyReply.of(store.lifecycle.archive(study))


@router.post(
    "/{study}/unarchive",
    summary="List an archived study again, and let it go on",
    responses=problems("not_found", "conflict"),
)
def unarchive_study(study: StudyName, store: StoreDep) -> StudyReply:
    return StudyReply.of(store.lifecycle.unarchive(study))


@router.delete(
    "/{study}",
    summary="Delete a study with all that is stored of it; its name is free when it is gone",
    status_code=202,
    responses=problems("not_found", "conflict"),
)
def delete_study(
    study: StudyName, query: Annotated[StudyDelete, Query()], service: PreparedDep
) -> StudyReply:
    deleted = StudyReply.of(service.store.deleting.mark(study, force=query.force))
    service.upkeep.hurry()
    return deleted
