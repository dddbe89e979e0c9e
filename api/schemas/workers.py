"""Workers and the objectives that they offer."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal
from uuid import UUID

from pydantic import ConfigDict, Field, FiniteFloat, model_validator

from api.figures import DeviceFigures, Sample
from api.schemas.base import (
    WHOLE,
    Body,
    Count,
    Int,
    JsonObject,
    Name,
    Reply,
    Text,
)
from api.schemas.space import SpaceBody, space_reply, to_space
from api.schemas.study_create import ObjectivePath
from hpo.errors import VersionMismatch
from hpo.numbers import strict
from hpo.objective import Descriptor
from hpo.setting_rules import rules_from_json, rules_to_json
from hpo.study import Direction
from hpo.version import PROTOCOL_VERSION, __version__
from storage.records import HeldTrial, LeaseTimes, Offer, WorkerRecord, WorkerRegistration

Token = Annotated[Text, Field(min_length=1, max_length=64)]
Device = Annotated[Name, Field(max_length=64)]
Bytes = Annotated[int, Field(strict=True, ge=0, le=2**53), WHOLE]


class SettingRuleBody(Body):
    """What a setting may be; a study is refused whose settings are something else."""

    type: Literal["int", "float", "bool", "str"]
    optional: bool = False
    choices: Annotated[list[Name], Field(max_length=100, default_factory=list)]
    minimum: FiniteFloat | None = None
    maximum: FiniteFloat | None = None
    above: FiniteFloat | None = None
    below: FiniteFloat | None = None
    excludes: Annotated[list[Name], Field(max_length=100, default_factory=list)]


class ObjectiveBody(Body):
    """An objective that a worker can run, with what it says of itself."""

    objective: ObjectivePath
    summary: Annotated[Text, Field(max_length=1000)] = ""
    direction: Direction | None = None
    metric: Name | None = None
    max_steps: Count | None = None
    space: SpaceBody | None = None
    settings: Annotated[JsonObject, Field(default_factory=dict)]
    setting_rules: Annotated[dict[Name, SettingRuleBody], Field(default_factory=dict)]

    def to_descriptor(self) -> Descriptor:
        return Descriptor(
            summary=self.summary,
            direction=self.direction,
            metric=self.metric,
            max_steps=self.max_steps,
            space=to_space(self.space),
            settings=self.settings,
            setting_rules=rules_from_json(
                {name: rule.model_dump() for name, rule in self.setting_rules.items()}
            ),
        )


class WorkerRegister(Body):
    """A worker process and what it can run; `id` is a UUID of the process."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "6f1a6b0e-31d7-4b39-a5d5-3a7c2f4f9d10",
                    "name": "node7:4711",
                    "version": __version__,
                    "protocol": PROTOCOL_VERSION,
                    "slots": 2,
                    "devices": ["cuda:0", "cuda:1"],
                    "allow": ["objectives.*"],
                    "objectives": [{"objective": "objectives.digits:mlp", "max_steps": 20}],
                }
            ]
        }
    )

    id: UUID
    name: Name
    version: Annotated[Name, Field(max_length=64)]
    protocol: Int
    slots: Annotated[int, Field(strict=True, ge=1, le=1024), WHOLE]
    devices: Annotated[list[Device], Field(max_length=1024)]
    allow: Annotated[list[Name], Field(max_length=1000)]
    objectives: Annotated[list[ObjectiveBody], Field(max_length=1000, default_factory=list)]

    @model_validator(mode="before")
    @classmethod
    def _check_protocol(cls, document: Any) -> Any:
        """Before all else: a worker of another release may well send other fields."""
        protocol = document.get("protocol") if isinstance(document, dict) else None
        if type(protocol) is int and protocol != PROTOCOL_VERSION:
            raise VersionMismatch(
                f"The worker speaks protocol {protocol}, this server {PROTOCOL_VERSION}; "
                f"install hpo {__version__} on the worker, or the worker's release here.",
                worker_protocol=protocol,
                server_protocol=PROTOCOL_VERSION,
                server_version=__version__,
            )
        return document

    def to_registration(self) -> WorkerRegistration:
        return WorkerRegistration(
            id=self.id,
            name=self.name,
            version=self.version,
            slots=self.slots,
            devices=self.devices,
            allow=self.allow,
            objectives={item.objective: item.to_descriptor() for item in self.objectives},
        )


class LeaseTimesReply(Reply):
    heartbeat_seconds: float
    lease_seconds: float

    @classmethod
    def of(cls, times: LeaseTimes) -> LeaseTimesReply:
        return cls.taken_from(times)


class DeviceBody(Body):
    """How busy a device is; `utilization` is a share from 0 to 1, null where nobody knows."""

    device: Device
    name: Name | None = None
    utilization: Annotated[float, Field(strict=True, ge=0, le=1)] | None = None
    memory_used_bytes: Bytes
    memory_total_bytes: Bytes

    def to_figures(self) -> DeviceFigures:
        return DeviceFigures(**dict(self))


class Heartbeat(Body):
    """The leases that a worker holds, for only these are renewed, and how busy its devices are."""

    tokens: Annotated[list[Token], Field(max_length=1024)]
    devices: Annotated[list[DeviceBody], Field(max_length=1024, default_factory=list)]


class HeartbeatReply(Reply):
    """Tokens that are no longer valid, and studies that were deleted in the last days.

    Of these the newest, by UUID: whatever a worker stored of them is to go.
    """

    lost: list[str]
    deleted: list[UUID]


class HeldReply(Reply):
    """A trial that a worker runs."""

    study: str
    number: int
    attempt: int
    device: str
    since: dt.datetime

    @classmethod
    def of(cls, held: HeldTrial) -> HeldReply:
        return cls.taken_from(held, study=held.study_name)


class DeviceReply(Reply):
    """A device in the last minutes, in columns, as heartbeats to this API process have told."""

    device: str
    name: str | None
    memory_total_bytes: int
    at: list[dt.datetime]
    utilization: list[float | None]
    memory_used_bytes: list[int]

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> DeviceReply:
        last = samples[-1].figures
        return cls(
            device=last.device,
            name=last.name,
            memory_total_bytes=last.memory_total_bytes,
            at=[sample.at for sample in samples],
            utilization=[sample.figures.utilization for sample in samples],
            memory_used_bytes=[sample.figures.memory_used_bytes for sample in samples],
        )


class WorkerReply(Reply):
    """A worker, the trials that it runs, and how busy its devices were lately."""

    id: UUID
    name: str
    version: str
    slots: int
    devices: list[str]
    allow: list[str]
    is_alive: bool
    registered_at: dt.datetime
    last_seen_at: dt.datetime
    trials: list[HeldReply]
    figures: list[DeviceReply]

    @classmethod
    def of(
        cls, record: WorkerRecord, held: Sequence[HeldTrial], told: Sequence[Sequence[Sample]]
    ) -> WorkerReply:
        return cls.taken_from(
            record,
            trials=[HeldReply.of(trial) for trial in held],
            figures=[DeviceReply.of(samples) for samples in told],
        )


class WorkerList(Reply):
    items: list[WorkerReply]


class OfferReply(Reply):
    """An objective that registered workers offer."""

    objective: str
    summary: str
    direction: Direction | None
    metric: str | None
    max_steps: int | None
    space: dict[str, dict[str, Any]] | None
    settings: dict[str, Any]
    setting_rules: dict[str, dict[str, Any]]
    n_workers: int

    @classmethod
    def of(cls, offer: Offer) -> OfferReply:
        descriptor = offer.descriptor
        return cls.taken_from(
            descriptor,
            objective=offer.objective,
            n_workers=offer.n_workers,
            space=space_reply(descriptor.space),
            settings=strict(dict(descriptor.settings)),
            setting_rules=rules_to_json(descriptor.setting_rules),
        )


class OfferList(Reply):
    items: list[OfferReply]
