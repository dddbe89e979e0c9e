"""Models of trials: what workers offer, and what a reply says of one."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from api.schemas.base import WHOLE, Index, Number, Reply
from api.schemas.claims import LeaseBody
from storage.records import ModelOffer, ModelRecord


class ModelOfferBody(LeaseBody):
    """An attempt has a model; `value` null takes the trial's value from its reports.

    `step` is null when nobody said of which step the model is; `suffix` ends the file's name.
    """

    value: Number | None = None
    step: Index | None = None
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    size_bytes: Annotated[int, Field(strict=True, ge=0, le=2**53), WHOLE]
    suffix: Annotated[str, Field(pattern=r"^(\.[A-Za-z0-9_]{1,16}){1,2}$")] = ".pt"

    def to_offer(self) -> ModelOffer:
        return ModelOffer(
            step=self.step, sha256=self.sha256, size_bytes=self.size_bytes, suffix=self.suffix
        )


class WantedReply(Reply):
    """Whether the service wants the model now; if not, why."""

    wanted: bool
    reason: str | None

    @classmethod
    def of(cls, refusal: str | None) -> WantedReply:
        return cls(wanted=refusal is None, reason=refusal)


class ModelReply(Reply):
    """The stored model of a trial; `url` is a path of this service."""

    step: int | None
    sha256: str
    size_bytes: int
    file_name: str
    url: str

    @classmethod
    def of(cls, record: ModelRecord) -> ModelReply:
        url = f"/v1/studies/{record.study_name}/trials/{record.number}/model"
        return cls.taken_from(record, url=url)

    @classmethod
    def or_none(cls, record: ModelRecord | None) -> ModelReply | None:
        return None if record is None else cls.of(record)
