"""Claims: take a trial under a lease, sample its parameters, hand it over.

Two short transactions around the sampling, which may take 100 ms and more. The first locks
Optuna's `studies` row (as Optuna does when it numbers a trial), so the budget is exact with any
number of claimants, and picks a trial (`storage.picking`). The second writes the parameters if
the lease is still held. A claim carries a key of its own: repeated, it gets the same trial.
"""

from __future__ import annotations

import functools
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from hpo.errors import HpoError, NotFound
from hpo.events import EventKind
from hpo.objective import is_allowed
from hpo.seeds import trial_seed
from hpo.space import Choice
from hpo.study import StudyDefinition, StudyState
from hpo.trial import Reason
from storage import leases, workers
from storage import tables as t
from storage.ending import end_if_done, fail_study
from storage.engine import Database, db_now, naive_utc
from storage.events import append
from storage.limits import seconds_left
from storage.params import params_of
from storage.picking import pick
from storage.records import Claimed, ClaimRequest
from storage.search import Sampled, Search
from storage.studies import definition_of, lock_study, study_row

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Taken:
    """A trial under a new lease; `phase` says whether its parameters are still to be sampled."""

    study: Any
    definition: StudyDefinition
    number: int
    trial_id: int
    attempt: int
    token: str
    phase: str


class Claims:
    """Hands out trials of running studies."""

    def __init__(self, database: Database, search: Search, *, lease_seconds: float) -> None:
        self._database, self._search = database, search
        self._lease_seconds = lease_seconds

    def claim(self, request: ClaimRequest) -> Claimed | None:
        """A trial that this worker may run, None when there is none at the moment.

        Raises NotFound for an unregistered worker.
        """
        return self._claim(request, lambda connection: _candidates(connection, request))

    def claim_of(self, study_id: int, request: ClaimRequest) -> Claimed | None:
        """A trial of one study, for whoever asks for it."""
        return self._claim(request, lambda _: [study_id])

    def again(self, token: str, lease_seconds: float) -> Claimed | None:
        """What an attempt was handed over with, also after its end; None when it is gone."""
        taken = self._database.read(lambda c: _handed_over(c, token))
        return None if taken is None else self._claimed(taken, lease_seconds)

    def _claim(
        self, request: ClaimRequest, candidates: Callable[[sa.Connection], Sequence[int]]
    ) -> Claimed | None:
        taken = self._database.read(lambda c: _replay(c, request))
        if taken is None:
            try:
                taken = self._take_any(request, candidates)
            except sa.exc.IntegrityError:  # the same claim was made twice at once
                taken = self._database.read(lambda c: _replay(c, request))
        if taken is None:
            return None
        if taken.phase == leases.SAMPLING and not self._sample(taken, request):
            return None
        return self._claimed(taken, request.lease_seconds or self._lease_seconds)

    def _take_any(
        self, request: ClaimRequest, candidates: Callable[[sa.Connection], Sequence[int]]
    ) -> _Taken | None:
        study_ids = self._database.read(candidates)
        for study_id in study_ids:
            taken = self._database.write(functools.partial(self._take, study_id, request))
            if taken is not None:
                return taken
        # A take whose answer got lost was tried again, and found that the study had no more.
        return self._database.read(lambda c: _replay(c, request)) if study_ids else None

    def _take(
        self, study_id: int, request: ClaimRequest, connection: sa.Connection
    ) -> _Taken | None:
        if not lock_study(connection, study_id):
            return None  # deleted by another Optuna program; the reaper sweeps up
        study = study_row(connection, t.hpo_study.c.study_id == study_id)
        if study is None or study.state != StudyState.RUNNING:
            return None
        if study.is_over_time:
            end_if_done(connection, study)
            return None
        picked = pick(connection, study)
        if picked is None:
            return None
        taken = _Taken(
            study=study,
            definition=definition_of(study),
            number=picked.number,
            trial_id=picked.trial_id,
            attempt=picked.attempt,
            token=secrets.token_hex(16),
            phase=picked.phase,
        )
        self._insert_lease(connection, taken, request)
        if taken.phase == leases.RUNNING:
            _begin_attempt(connection, taken, request)
        return taken

    def _insert_lease(
        self, connection: sa.Connection, taken: _Taken, request: ClaimRequest
    ) -> None:
        connection.execute(
            t.hpo_lease.insert().values(
                study_uuid=taken.study.uuid,
                number=taken.number,
                trial_id=taken.trial_id,
                attempt=taken.attempt,
                token=taken.token,
                claim_key=request.claim_key,
                phase=taken.phase,
                worker_id=str(request.worker_id),
                device=request.device,
                acquired_at=db_now(),
                acquired_until=db_now(request.lease_seconds or self._lease_seconds),
                lease_seconds=request.lease_seconds,
            )
        )

    def _sample(self, taken: _Taken, request: ClaimRequest) -> bool:
        """Whether the trial was handed over; not when its lease ran out meanwhile."""
        try:
            sampled = self._search.sample(taken.definition, taken.study, taken.trial_id)
        except NotFound:  # the study is being deleted
            return False
        except HpoError:
            raise
        except Exception as error:  # a sampler's own fault: it would meet every trial
            logger.exception("sampler of study %s", taken.definition.name)
            self._database.write(functools.partial(_give_up, taken, _describe(taken, error)))
            return False
        return self._database.write(functools.partial(self._hand_over, taken, request, sampled))

    def _hand_over(
        self, taken: _Taken, request: ClaimRequest, sampled: Sampled, connection: sa.Connection
    ) -> bool:
        mine = sa.and_(t.hpo_lease.c.token == taken.token, t.hpo_lease.c.phase == leases.SAMPLING)
        update = (
            t.hpo_lease.update()
            .where(mine)
            .values(
                phase=leases.RUNNING,
                acquired_until=db_now(request.lease_seconds or self._lease_seconds),
            )
        )
        if connection.execute(update).rowcount == 0:
            # Either lost, or handed over by the same claim in another thread.
            again = sa.select(t.hpo_lease.c.phase).where(t.hpo_lease.c.token == taken.token)
            return connection.execute(again).scalar_one_or_none() == leases.RUNNING
        if sampled.rows:
            rows = [{"trial_id": taken.trial_id, **row} for row in sampled.rows]
            connection.execute(t.trial_params.insert(), rows)
        trial = sa.and_(
            t.hpo_trial.c.study_uuid == taken.study.uuid, t.hpo_trial.c.number == taken.number
        )
        connection.execute(
            t.hpo_trial.update()
            .where(trial)
            .values(relative_params=sampled.relative_params, n_attempts=taken.attempt)
        )
        _begin_attempt(connection, taken, request)
        return True

    def _claimed(self, taken: _Taken, lease_seconds: float) -> Claimed:
        def read(connection: sa.Connection) -> tuple[Mapping[str, Choice], float | None]:
            params = params_of(connection, [taken.trial_id])[taken.trial_id]
            return params, seconds_left(connection, taken.study, taken.number, taken.attempt)

        params, left = self._database.read(read)
        return Claimed(
            study_name=taken.definition.name,
            study_uuid=UUID(taken.study.uuid),
            definition=taken.definition,
            number=taken.number,
            attempt=taken.attempt,
            token=taken.token,
            params=params,
            seed=trial_seed(taken.definition.seed, taken.number),
            lease_seconds=lease_seconds,
            seconds_left=left,
        )


def _replay(connection: sa.Connection, request: ClaimRequest) -> _Taken | None:
    """The trial that an earlier call with this key has taken."""
    row = connection.execute(
        sa.select(t.hpo_lease).where(t.hpo_lease.c.claim_key == request.claim_key)
    ).one_or_none()
    if row is None:
        return None
    return _taken(connection, row)


def _handed_over(connection: sa.Connection, token: str) -> _Taken | None:
    """A trial as its attempt was handed over."""
    attempt, trial = t.hpo_attempt.c, t.hpo_trial.c
    mine = sa.and_(trial.study_uuid == attempt.study_uuid, trial.number == attempt.number)
    row = connection.execute(
        sa.select(
            *(attempt.study_uuid, attempt.number, attempt.attempt, attempt.token, trial.trial_id),
            sa.literal(leases.RUNNING).label("phase"),
        )
        .join(t.hpo_trial, mine)
        .where(attempt.token == token)
    ).one_or_none()
    return None if row is None else _taken(connection, row)


def _taken(connection: sa.Connection, row: sa.Row[Any]) -> _Taken:
    study = connection.execute(
        sa.select(t.hpo_study).where(t.hpo_study.c.uuid == row.study_uuid)
    ).one()
    return _Taken(
        study=study,
        definition=definition_of(study),
        number=row.number,
        trial_id=row.trial_id,
        attempt=row.attempt,
        token=row.token,
        phase=row.phase,
    )


def _candidates(connection: sa.Connection, request: ClaimRequest) -> Sequence[int]:
    """Studies with work for this worker: by priority, then by fewest running trials."""
    allow = workers.allowed(connection, request.worker_id)
    running = (
        sa.select(t.hpo_lease.c.study_uuid, sa.func.count().label("n_leases"))
        .group_by(t.hpo_lease.c.study_uuid)
        .subquery()
    )
    study = t.hpo_study.c
    rows = connection.execute(
        sa.select(study.study_id, study.definition)
        .outerjoin(running, running.c.study_uuid == study.uuid)
        .where(study.state == StudyState.RUNNING.value)
        .where(sa.or_(study.n_started < study.n_trials, _is_due(), _was_never_handed_over()))
        .order_by(study.priority.desc(), sa.func.coalesce(running.c.n_leases, 0), study.id)
    )
    return [row.study_id for row in rows if _is_for_workers(row.definition, allow)]


def _is_for_workers(definition: Mapping[str, Any], allow: Sequence[str]) -> bool:
    objective = definition["objective"]
    return objective is not None and is_allowed(objective.partition(":")[0], allow)


def _is_due() -> sa.ColumnElement[bool]:
    trial = t.hpo_trial.c
    mine = trial.study_uuid == t.hpo_study.c.uuid
    return sa.exists().where(mine, trial.next_attempt_at <= db_now())


def _was_never_handed_over() -> sa.ColumnElement[bool]:
    lease = t.hpo_lease.c
    mine = lease.study_uuid == t.hpo_study.c.uuid
    expired = lease.acquired_until < db_now()
    return sa.exists().where(mine, lease.phase == leases.SAMPLING, expired)


def _begin_attempt(connection: sa.Connection, taken: _Taken, request: ClaimRequest) -> None:
    known = sa.select(t.hpo_worker.c.name).where(t.hpo_worker.c.id == str(request.worker_id))
    worker_name = connection.execute(
        t.hpo_attempt.insert()
        .values(
            study_uuid=taken.study.uuid,
            number=taken.number,
            attempt=taken.attempt,
            token=taken.token,
            worker_id=str(request.worker_id),
            worker_name=request.worker_name or known.scalar_subquery(),
            device=request.device,
            started_at=db_now(),
            message="",
            traceback="",
        )
        .returning(t.hpo_attempt.c.worker_name)
    ).scalar_one()
    facts = {"attempt": taken.attempt, "worker": worker_name, "device": request.device}
    kind = EventKind.TRIAL_STARTED if taken.attempt == 1 else EventKind.ATTEMPT_STARTED
    append(connection, kind, taken.study, taken.number, **facts)


def _describe(taken: _Taken, error: Exception) -> str:
    sampler = taken.definition.sampler.name
    return f"The sampler {sampler!r} failed: {type(error).__name__}: {error}"


def _give_up(taken: _Taken, message: str, connection: sa.Connection) -> None:
    """Fails the trial that could not be sampled, and with it the study."""
    lock_study(connection, taken.study.study_id)
    lease = t.hpo_lease.delete().where(t.hpo_lease.c.token == taken.token)
    if connection.execute(lease).rowcount == 0:
        return
    trial = sa.and_(
        t.hpo_trial.c.study_uuid == taken.study.uuid, t.hpo_trial.c.number == taken.number
    )
    facts = {"reason": Reason.OBJECTIVE_ERROR, "message": message}
    connection.execute(t.hpo_trial.update().where(trial).values(facts))
    connection.execute(
        t.trials.update()
        .where(t.trials.c.trial_id == taken.trial_id, t.trials.c.state == "RUNNING")
        .values(state="FAIL", datetime_complete=naive_utc())
    )
    append(connection, EventKind.TRIAL_ENDED, taken.study, taken.number, state="FAIL", **facts)
    fail_study(connection, taken.study, message)
