"""Who asks: what a page, or a program, may do with the token that it has."""

from __future__ import annotations

from fastapi import APIRouter, Request

from api.access import Caller
from api.errors import problems
from api.schemas.tokens import SessionReply
from api.service import StoreDep

router = APIRouter(prefix="/session", tags=["session"])


@router.get("", summary="Whose token this is, and its role", responses=problems())
async def get_session(request: Request, store: StoreDep) -> SessionReply:
    caller: Caller = request.scope["hpo.caller"]
    return SessionReply.of(caller.name, caller.role, is_session=caller.is_session)
