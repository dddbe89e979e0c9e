"""Tokens: make, list, revoke."""

from __future__ import annotations

from fastapi import APIRouter, Response

from api.errors import problems
from api.schemas.tokens import NewTokenReply, TokenCreate, TokenList, TokenReply
from api.service import PreparedDep, StoreDep

router = APIRouter(prefix="/tokens", tags=["tokens"])


@router.post(
    "",
    summary="Make a token; it is shown in this answer and never again",
    status_code=201,
    responses=problems("conflict"),
)
def create_token(body: TokenCreate, response: Response, service: PreparedDep) -> NewTokenReply:
    record, secret = service.store.tokens.create(body.name, body.role, admin_first=True)
    service.guard.forget()
    response.headers["Cache-Control"] = "no-store"
    return NewTokenReply.of_new(record, secret)


@router.get("", summary="Tokens by name, without their secrets", responses=problems())
def list_tokens(store: StoreDep) -> TokenList:
    return TokenList(items=[TokenReply.of(record) for record in store.tokens.page()])


@router.delete(
    "/{name}",
    summary="Revoke a token, at once; safe to repeat",
    status_code=204,
    responses=problems("not_found"),
)
def revoke_token(name: str, service: PreparedDep) -> None:
    service.store.tokens.revoke(name)
    service.guard.forget()
