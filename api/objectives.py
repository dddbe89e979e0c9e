"""The objectives that registered workers offer."""

from __future__ import annotations

from fastapi import APIRouter

from api.errors import problems
from api.schemas.workers import OfferList, OfferReply
from api.service import StoreDep

router = APIRouter(prefix="/objectives", tags=["objectives"])


@router.get("", summary="What registered workers can run", responses=problems())
def list_objectives(store: StoreDep) -> OfferList:
    return OfferList(items=[OfferReply.of(offer) for offer in store.workers.offers()])
