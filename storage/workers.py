"""Workers: who is registered, who is alive, what they offer and which studies nobody can serve."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.dml import UpdateBase

from hpo.errors import NotFound
from hpo.events import EventKind
from hpo.objective import Descriptor, descriptor_to_json, is_allowed
from storage import tables as t
from storage.documents import descriptor_from_json
from storage.engine import Database, db_now
from storage.events import append
from storage.records import HeldTrial, LeaseTimes, Offer, WorkerRecord, WorkerRegistration

# A worker that missed this many heartbeats is not counted on; its leases live on until they expire.
MISSED_HEARTBEATS = 3
# Rows of workers that are gone are kept this long, for the history of attempts they name.
FORGET_AFTER_SECONDS = 7 * 24 * 3600


class Workers:
    """The registered workers of one database."""

    def __init__(self, database: Database, times: LeaseTimes) -> None:
        self._database, self._times = database, times

    def register(self, worker: WorkerRegistration) -> LeaseTimes:
        """Adds a worker or renews its entry; answers how often it must renew its leases."""
        row = {
            "name": worker.name,
            "version": worker.version,
            "slots": worker.slots,
            "devices": list(worker.devices),
            "allow": list(worker.allow),
            "objectives": {
                path: descriptor_to_json(descriptor)
                for path, descriptor in worker.objectives.items()
            },
        }

        def write(connection: sa.Connection) -> None:
            mine = t.hpo_worker.c.id == str(worker.id)
            update = t.hpo_worker.update().where(mine).values(**row, last_seen_at=db_now())
            if connection.execute(update).rowcount == 0:
                times = {"registered_at": db_now(), "last_seen_at": db_now()}
                insert = t.hpo_worker.insert().values(id=str(worker.id), **row, **times)
                connection.execute(insert)
                kind = EventKind.WORKER_REGISTERED
                append(connection, kind, worker=str(worker.id), name=worker.name)
            forgotten = t.hpo_worker.c.last_seen_at < db_now(-FORGET_AFTER_SECONDS)
            connection.execute(t.hpo_worker.delete().where(forgotten))

        self._database.write(write)
        return self._times

    def page(self) -> list[WorkerRecord]:
        """All workers known, the alive ones first."""

        def read(connection: sa.Connection) -> list[WorkerRecord]:
            select = sa.select(t.hpo_worker, self.is_alive().label("is_alive"))
            select = select.order_by(sa.desc("is_alive"), t.hpo_worker.c.registered_at.desc())
            return [_record(row) for row in connection.execute(select)]

        return self._database.read(read)

    def held(self) -> dict[uuid.UUID, list[HeldTrial]]:
        """The trials that each worker runs, by its id."""
        lease, study = t.hpo_lease.c, t.hpo_study.c
        select = (
            sa.select(t.hpo_lease, study.name)
            .join(t.hpo_study, study.uuid == lease.study_uuid)
            .where(lease.phase == "running")
            .order_by(lease.acquired_at, lease.number)
        )

        def read(connection: sa.Connection) -> dict[uuid.UUID, list[HeldTrial]]:
            found: dict[uuid.UUID, list[HeldTrial]] = {}
            for row in connection.execute(select):
                held = HeldTrial(
                    study_name=row.name,
                    number=row.number,
                    attempt=row.attempt,
                    device=row.device,
                    since=row.acquired_at,
                )
                found.setdefault(uuid.UUID(row.worker_id), []).append(held)
            return found

        return self._database.read(read)

    def offers(self) -> list[Offer]:
        """Each objective that an alive worker offers, by name."""

        def read(connection: sa.Connection) -> list[Offer]:
            found: dict[str, list[Descriptor]] = {}
            for row in self._alive(connection):
                for path, document in row.objectives.items():
                    found.setdefault(path, []).append(descriptor_from_json(document))
            return [
                Offer(objective=path, descriptor=descriptors[0], n_workers=len(descriptors))
                for path, descriptors in sorted(found.items())
            ]

        return self._database.read(read)

    def descriptor(self, objective: str) -> Descriptor | None:
        """What the worker seen last says of an objective; None when nobody describes it."""

        def read(connection: sa.Connection) -> Descriptor | None:
            select = sa.select(t.hpo_worker.c.objectives).order_by(
                t.hpo_worker.c.last_seen_at.desc()
            )
            for (objectives,) in connection.execute(select):
                if objective in objectives:
                    return descriptor_from_json(objectives[objective])
            return None

        return self._database.read(read)

    def blocked_by(self, connection: sa.Connection) -> Callable[[str], str | None]:
        """A function that says why no worker can serve an objective, None when one can."""
        alive = [row.allow for row in self._alive(connection)]

        def reason(objective: str) -> str | None:
            module = objective.partition(":")[0]
            if any(is_allowed(module, allow) for allow in alive):
                return None
            if not alive:
                return "No worker is connected; start one with `hpo worker --url …`."
            return (
                f"No connected worker allows the module {module!r}; start one with "
                f"`hpo worker --url … --code DIR --allow {module!r}`."
            )

        return reason

    def is_alive(self) -> sa.ColumnElement[bool]:
        silence = MISSED_HEARTBEATS * self._times.heartbeat_seconds
        return t.hpo_worker.c.last_seen_at > db_now(-silence)

    def _alive(self, connection: sa.Connection) -> Sequence[sa.Row[Any]]:
        return connection.execute(sa.select(t.hpo_worker).where(self.is_alive())).all()


def seen(worker_id: uuid.UUID) -> UpdateBase:
    """Notes a sign of life; it finds no worker where none of this id is registered."""
    worker = t.hpo_worker.c
    update = t.hpo_worker.update().where(worker.id == str(worker_id))
    return update.values(last_seen_at=db_now()).returning(worker.id)


def unregistered(worker_id: uuid.UUID) -> NotFound:
    """What a worker is told that is to register again."""
    return NotFound(f"Worker {worker_id} is not registered; register it again.")


def _record(row: sa.Row[Any]) -> WorkerRecord:
    return WorkerRecord(
        id=uuid.UUID(row.id),
        name=row.name,
        version=row.version,
        slots=row.slots,
        devices=row.devices,
        allow=row.allow,
        objectives={
            path: descriptor_from_json(document) for path, document in row.objectives.items()
        },
        registered_at=row.registered_at,
        last_seen_at=row.last_seen_at,
        is_alive=bool(row.is_alive),
    )
