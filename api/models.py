"""Models of trials: offered and sent by workers, fetched by users; streamed, never held whole."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Header, Request
from fastapi.responses import FileResponse
from starlette.requests import ClientDisconnect

from api.claims import HELD, TrialOf
from api.errors import problems
from api.schemas.models import ModelOfferBody, WantedReply
from api.schemas.workers import Token
from api.service import PreparedDep, StoreDep, StudyName
from api.trials import Number
from storage.records import Lease

MEDIA_TYPE = "application/octet-stream"
PIECE_BYTES = 1024 * 1024

sending = APIRouter(prefix="/studies/{study}/trials/{number}", tags=["worker protocol"])
router = APIRouter(prefix="/studies/{study}/trials/{number}", tags=["trials"])

LeaseToken = Annotated[Token, Header(alias="Lease-Token", description="The token of the lease")]
BODY = {"content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}}


@sending.post("/model", summary="Whether the attempt's model is wanted", responses=HELD)
def offer_model(trial: TrialOf, body: ModelOfferBody, store: StoreDep) -> WantedReply:
    study, number = trial
    lease = Lease(study_name=study, number=number, token=body.token)
    return WantedReply.of(store.models.offer(lease, body.to_offer(), body.value))


@sending.put(
    "/model",
    summary="The model that was offered and is wanted",
    status_code=204,
    responses=problems("not_found", "lease_lost", "trial_finished", "model_refused"),
    openapi_extra={"requestBody": {"required": True, **BODY}},
)
async def put_model(
    trial: TrialOf, lease_token: LeaseToken, request: Request, service: PreparedDep
) -> None:
    study, number = trial
    lease = Lease(study_name=study, number=number, token=lease_token)
    models = service.store.models
    arrival = await anyio.to_thread.run_sync(models.receive, lease)
    try:
        async for piece in _pieces(request.stream()):
            await anyio.to_thread.run_sync(arrival.write, piece)
        await anyio.to_thread.run_sync(models.keep, lease, arrival)
    except ClientDisconnect:
        pass  # nobody waits for an answer; the worker offers the model again, or has gone
    finally:
        arrival.close()


async def _pieces(stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Few large pieces of many small ones: each is one change of the thread."""
    waiting = bytearray()
    async for piece in stream:
        waiting += piece
        if len(waiting) >= PIECE_BYTES:
            yield bytes(waiting)
            waiting.clear()
    yield bytes(waiting)


@router.get(
    "/model",
    summary="The model that a trial has left behind",
    response_class=FileResponse,
    responses={
        200: {"description": "The file; its ETag is the SHA-256", **BODY},
        206: {"description": "The part of it that Range names", **BODY},
        **problems("not_found"),
    },
)
def get_model(study: StudyName, number: Number, store: StoreDep) -> FileResponse:
    model, path = store.models.get(study, number)
    return FileResponse(
        path,
        media_type=MEDIA_TYPE,
        filename=model.file_name,
        headers={"ETag": f'"{model.sha256}"'},
    )
