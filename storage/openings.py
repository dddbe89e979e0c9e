"""Which of the claims that wait may be given a trial: one statement, however many they are."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from hpo.objective import is_allowed
from hpo.study import StudyState
from storage import tables as t
from storage.candidates import is_abandoned, is_due
from storage.lists import is_listed, list_of
from storage.records import ClaimRequest


@dataclass(slots=True)
class _Opening:
    """A study that has trials to give, and how many."""

    module: str
    n_trials: int

    @classmethod
    def of(cls, row: sa.Row[Any]) -> _Opening:
        n_trials = max(0, row.n_new) + row.n_due
        if row.max_parallel_trials is not None:
            n_trials = min(n_trials, row.max_parallel_trials - row.n_running)
        return cls(row.objective.partition(":")[0], max(n_trials, row.n_abandoned))

    def take(self, allow: Sequence[str]) -> bool:
        """Whether there was one more for a worker that allows these modules."""
        if self.n_trials <= 0 or not is_allowed(self.module, allow):
            return False
        self.n_trials -= 1
        return True


def callable_claims(connection: sa.Connection, waiting: Sequence[ClaimRequest]) -> Collection[str]:
    """Their keys, the first ones first: no more than there are trials for them.

    Those whose trial is there already are among them, and those of workers that are not
    registered any more: they have to be told.
    """
    names = {
        "worker_ids": sorted({str(request.worker_id) for request in waiting}),
        "claim_keys": [request.claim_key for request in waiting],
    }
    rows = connection.execute(_OPENINGS, names).all()
    allow = {row.name: row.allow for row in rows if row.allow is not None}
    openings = {row.id: _Opening.of(row) for row in rows if row.objective is not None}

    def has_one(request: ClaimRequest) -> bool:
        patterns = allow.get(str(request.worker_id))
        return patterns is None or any(one.take(patterns) for one in openings.values())

    repeated = {row.name for row in rows if row.allow is None}
    return repeated | {request.claim_key for request in waiting if has_one(request)}


def _openings() -> sa.CompoundSelect[Any]:
    study, worker, lease = t.hpo_study.c, t.hpo_worker.c, t.hpo_lease.c
    running = t.hpo_lease.alias("running").c
    n_running = sa.select(sa.func.count()).where(running.study_uuid == study.uuid).scalar_subquery()
    limit = study.max_parallel_trials
    has_room = sa.or_(limit.is_(None), n_running < limit)
    has_trials = sa.or_(study.n_started < study.n_trials, is_due(study.uuid))
    is_open = sa.and_(
        study.state == StudyState.RUNNING.value,
        sa.or_(sa.and_(has_trials, has_room), is_abandoned(study.uuid)),
    )
    by_worker = sa.select(
        worker.id.label("name"),
        worker.allow,
        study.id,
        study.definition["objective"].as_string().label("objective"),
        (study.n_trials - study.n_started).label("n_new"),
        sa.case((is_due(study.uuid), 1), else_=0).label("n_due"),
        sa.case((is_abandoned(study.uuid), 1), else_=0).label("n_abandoned"),
        limit,
        n_running.label("n_running"),
    ).select_from(t.hpo_worker.outerjoin(t.hpo_study, is_open))
    nothing = [sa.cast(sa.null(), column.type) for column in by_worker.selected_columns][1:]
    return sa.union_all(
        by_worker.where(is_listed(worker.id, _place("worker_ids"))),
        sa.select(lease.claim_key, *nothing).where(
            is_listed(lease.claim_key, _place("claim_keys"))
        ),
    )


def _place(name: str) -> sa.BindParameter[Sequence[str]]:
    return sa.bindparam(name, type_=list_of(sa.Text()))


_OPENINGS = _openings()
