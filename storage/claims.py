"""Claims: take a trial under a lease, sample its parameters, hand it over.

Two short transactions around the sampling, which may take 100 ms and more. The first locks
Optuna's `studies` row (as Optuna does when it numbers a trial), so the budget is exact with any
number of claimants, and picks a trial (`storage.picking`). The second, one statement, writes the
parameters if the lease is still held (`storage.handing_over`). A claim carries a key of its own:
repeated, it gets the same trial.
"""

from __future__ import annotations

import functools
import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from hpo.errors import NotFound
from hpo.events import EventKind
from hpo.seeds import trial_seed
from hpo.space import Choice
from hpo.study import StudyDefinition, StudyState
from hpo.trial import Reason
from storage import leases
from storage import tables as t
from storage.candidates import outlook
from storage.ending import end_if_done, fail_study
from storage.engine import Database, db_now, naive_utc
from storage.events import append
from storage.handing_over import handing_over
from storage.limits import seconds_left
from storage.params import params_of
from storage.picking import Queues, pick
from storage.records import Claimed, ClaimRequest
from storage.search import Sampled, SamplerFault, Search, new_trial
from storage.studies import definition_of, lock_study

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
    is_new: bool = False  # its number was made just now


class Claims:
    """Hands out trials of running studies."""

    def __init__(self, database: Database, search: Search, *, lease_seconds: float) -> None:
        self._database, self._search = database, search
        self._lease_seconds = lease_seconds
        self._queues = Queues()

    def claim(self, request: ClaimRequest) -> Claimed | None:
        """A trial that this worker may run, None when there is none at the moment.

        Raises NotFound for an unregistered worker.
        """
        seen = self._database.read_one(lambda c: outlook(c, request))
        named = replace(request, worker_name=seen.worker_name)
        return self._claim(named, seen.study_ids, is_repeated=seen.is_repeated)

    def claim_of(self, study_id: int, request: ClaimRequest) -> Claimed | None:
        """A trial of one study, for whoever asks for it."""
        return self._claim(request, [study_id], is_repeated=True)

    def again(self, token: str, lease_seconds: float) -> Claimed | None:
        """What an attempt was handed over with, also after its end; None when it is gone."""
        taken = self._database.read(lambda c: _handed_over(c, token))
        return None if taken is None else self._claimed(taken, lease_seconds, None)

    def _claim(
        self, request: ClaimRequest, study_ids: Sequence[int], *, is_repeated: bool
    ) -> Claimed | None:
        """`is_repeated`: this may be so, and has to be looked at first."""
        taken = self._replayed(request) if is_repeated else None
        if taken is None and study_ids:
            try:
                taken = self._take_any(request, study_ids)
            except sa.exc.IntegrityError:  # the same claim was made twice at once
                taken = self._replayed(request)
        return None if taken is None else self._handed(taken, request)

    def _handed(self, taken: _Taken, request: ClaimRequest) -> Claimed | None:
        seconds = self._seconds(request)
        if taken.phase == leases.RUNNING:
            return self._claimed(taken, seconds, None)
        sampled = self._sample(taken, request)
        if sampled is not None:
            return self._claimed(taken, seconds, sampled)
        # Either lost, or handed over by the same claim in another thread.
        again = self._replayed(request)
        if again is None or again.phase == leases.SAMPLING:
            return None
        return self._claimed(again, seconds, None)

    def _replayed(self, request: ClaimRequest) -> _Taken | None:
        return self._database.read(lambda c: _replay(c, request))

    def _seconds(self, request: ClaimRequest) -> float:
        return request.lease_seconds or self._lease_seconds

    def _take_any(self, request: ClaimRequest, study_ids: Sequence[int]) -> _Taken | None:
        for study_id in study_ids:
            taken = self._database.write(functools.partial(self._take, study_id, request))
            if taken is not None:
                return taken
        # A take whose answer got lost was tried again, and found that the study had no more.
        return self._replayed(request)

    def _take(
        self, study_id: int, request: ClaimRequest, connection: sa.Connection
    ) -> _Taken | None:
        study = self._queues.locked(connection, study_id)
        if study is None:
            return None  # deleted by another Optuna program; the reaper sweeps up
        if study.state != StudyState.RUNNING:
            return None
        if study.is_over_time:
            end_if_done(connection, study)
            return None
        token = secrets.token_hex(16)
        picked = pick(connection, study, self._lease(request, token))
        if picked is None:
            return None
        taken = _Taken(
            study=study, definition=definition_of(study), token=token, **picked._asdict()
        )
        if taken.phase == leases.RUNNING:
            _begin_attempt(connection, taken, request)
        return taken

    def _lease(self, request: ClaimRequest, token: str) -> dict[str, Any]:
        return {
            "token": token,
            "claim_key": request.claim_key,
            "worker_id": str(request.worker_id),
            "device": request.device,
            "lease_seconds": request.lease_seconds,
            "seconds": self._seconds(request),
        }

    def _sample(self, taken: _Taken, request: ClaimRequest) -> Sampled | None:
        """What was drawn, if the trial was handed over; not when its lease ran out meanwhile."""
        trial = new_trial(taken.number, taken.trial_id) if taken.is_new else taken.trial_id
        try:
            with self._search.sampled(taken.definition, taken.study, trial) as sampled:
                return sampled if self._hand_over(taken, request, sampled) else None
        except NotFound:  # the study is being deleted
            return None
        except SamplerFault as fault:
            logger.exception("sampler of study %s", taken.definition.name)
            self._database.write(functools.partial(_give_up, taken, str(fault)))
            return None

    def _hand_over(self, taken: _Taken, request: ClaimRequest, sampled: Sampled) -> bool:
        statement, drawn = handing_over(sampled)
        values = {
            **drawn,
            "token": taken.token,
            "seconds": self._seconds(request),
            "worker_id": str(request.worker_id),
            "worker_name": request.worker_name,
            "device": request.device,
            "study_name": taken.study.name,
            "event_data": _started(taken, request),
        }
        return statement.write(self._database, values) is not None

    def _claimed(self, taken: _Taken, lease_seconds: float, sampled: Sampled | None) -> Claimed:
        """What a worker gets; from memory when its parameters have just been drawn."""
        if sampled is None:
            params, left = self._database.read(lambda c: _read(c, taken))
        else:
            params, left = sampled.params, taken.study.trial_timeout_seconds
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


def _read(connection: sa.Connection, taken: _Taken) -> tuple[Mapping[str, Choice], float | None]:
    params = params_of(connection, [taken.trial_id])[taken.trial_id]
    return params, seconds_left(connection, taken.study, taken.number, taken.attempt)


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


def _begin_attempt(connection: sa.Connection, taken: _Taken, request: ClaimRequest) -> None:
    """Another attempt than the first, whose parameters are there."""
    connection.execute(
        t.hpo_attempt.insert().values(
            study_uuid=taken.study.uuid,
            number=taken.number,
            attempt=taken.attempt,
            token=taken.token,
            worker_id=str(request.worker_id),
            worker_name=request.worker_name,
            device=request.device,
            started_at=db_now(),
            message="",
            traceback="",
        )
    )
    facts = _started(taken, request)
    append(connection, EventKind.ATTEMPT_STARTED, taken.study, taken.number, **facts)


def _started(taken: _Taken, request: ClaimRequest) -> dict[str, Any]:
    return {"attempt": taken.attempt, "worker": request.worker_name, "device": request.device}


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
