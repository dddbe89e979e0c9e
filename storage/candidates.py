"""What a claim has to know before it takes anything, in one statement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from hpo.objective import is_allowed
from hpo.study import StudyState
from storage import leases, workers
from storage import tables as t
from storage.engine import db_now
from storage.records import ClaimRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class Outlook:
    """Studies with work for a worker, the first one first; or that the claim came before."""

    worker_name: str
    is_repeated: bool
    study_ids: Sequence[int] = ()


def outlook(connection: sa.Connection, request: ClaimRequest) -> Outlook:
    """By priority, then by fewest running trials. Raises NotFound for an unregistered worker."""
    names = {"worker_id": str(request.worker_id), "claim_key": request.claim_key}
    rows = connection.execute(_OUTLOOK, names).all()
    first = rows[0]
    if first.token is not None:
        return Outlook(worker_name=first.worker_name or "", is_repeated=True)
    if first.worker_name is None:
        raise workers.unregistered(request.worker_id)
    return Outlook(
        worker_name=first.worker_name,
        is_repeated=False,
        study_ids=[row.study_id for row in rows if _is_for(row.objective, first.allow)],
    )


def _is_for(objective: str | None, allow: Sequence[str]) -> bool:
    return objective is not None and is_allowed(objective.partition(":")[0], allow)


def is_due(study_uuid: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """Whether a trial waits for an attempt whose time has come."""
    trial = t.hpo_trial.c
    return sa.exists().where(trial.study_uuid == study_uuid, trial.next_attempt_at <= db_now())


def is_abandoned(study_uuid: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """Whether a claimant has died before it got the parameters of its trial."""
    lease = t.hpo_lease.alias("sampling").c
    mine = sa.and_(lease.study_uuid == study_uuid, lease.phase == leases.SAMPLING)
    return sa.exists().where(mine, lease.acquired_until < db_now())


def _outlook() -> sa.Select[Any]:
    study, lease, worker = t.hpo_study.c, t.hpo_lease.c, t.hpo_worker.c
    running = t.hpo_lease.alias("running").c
    n_running = sa.select(sa.func.count()).where(running.study_uuid == study.uuid)
    has_work = sa.or_(study.n_started < study.n_trials, is_due(study.uuid),
                      is_abandoned(study.uuid))  # fmt: skip
    return (
        sa.select(
            worker.name.label("worker_name"), worker.allow, lease.token, study.study_id,
            study.definition["objective"].as_string().label("objective"),
        )
        .select_from(sa.select(sa.literal(1).label("one")).subquery())
        .outerjoin(t.hpo_worker, worker.id == sa.bindparam("worker_id"))
        .outerjoin(t.hpo_lease, lease.claim_key == sa.bindparam("claim_key"))
        .outerjoin(t.hpo_study, sa.and_(study.state == StudyState.RUNNING.value, has_work))
        .order_by(study.priority.desc(), n_running.scalar_subquery(), study.id)
    )  # fmt: skip


_OUTLOOK = _outlook()
