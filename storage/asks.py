"""Ask and tell: any program takes trials of a study without an objective, and tells what they gave.

A trial that was asked for is held as a worker holds one, under a lease of the length that was
asked for, since a shell sends no heartbeats: each report renews it.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

from hpo.errors import Conflict
from hpo.study import StudyState
from storage import tables as t
from storage.claims import Claims
from storage.engine import Database
from storage.records import Asked, AskRequest, Claimed, ClaimRequest
from storage.requests import answered, once
from storage.studies import row_and_definition

KIND = "ask"
# The workers' table knows processes by their UUID; a program that asks is known by its name.
_NAMESPACE = uuid.UUID("5f1b8e0c-6a5e-4d5c-9d3b-2b3f6c0a7e11")


class Asks:
    """Hands out trials of one study to whoever asks."""

    def __init__(self, database: Database, claims: Claims) -> None:
        self._database, self._claims = database, claims

    def ask(self, study_name: str, request: AskRequest) -> Asked:
        """Up to `count` trials, as many as there are at the moment.

        Raises NotFound, Conflict for a study whose trials are run by workers, and
        IdempotencyKeyReused.
        """
        study = self._database.read(lambda c: _study_for_asking(c, study_name))
        mine = (request.key, KIND, request.fingerprint)
        first = self._database.read(lambda c: answered(c, *mine))
        trials: list[Claimed] = []
        if first is None:
            trials = list(self._taken(study, request))
            if trials:  # an answer without trials has done nothing, so the next one may differ
                answer = {"tokens": [trial.token for trial in trials]}
                first = self._database.write(lambda c: once(c, *mine, lambda: answer))
        if first is not None:
            again = (self._claims.again(token, request.lease_seconds) for token in first["tokens"])
            trials = [trial for trial in again if trial is not None]
        state, reason = self._database.read(lambda c: _standing(c, study_name))
        return Asked(trials=trials, state=state, reason=None if trials else reason)

    def _taken(self, study: Any, request: AskRequest) -> Iterator[Claimed]:
        for claim_key in _claim_keys(study.uuid, request):
            claim = ClaimRequest(
                worker_id=uuid.uuid5(_NAMESPACE, request.worker),
                claim_key=claim_key,
                device="",
                worker_name=request.worker,
                lease_seconds=request.lease_seconds,
            )
            claimed = self._claims.claim_of(study.study_id, claim)
            if claimed is None:
                return
            yield claimed


def _claim_keys(study_uuid: str, request: AskRequest) -> Iterator[str]:
    """The same for a request that comes again, or twice at once."""
    unique = uuid.uuid4().hex if request.key is None else request.key
    digest = hashlib.sha256(f"{study_uuid}/{unique}".encode()).hexdigest()
    for place in range(request.count):
        yield f"{KIND}-{digest}-{place}"


def _study_for_asking(connection: sa.Connection, study_name: str) -> Any:
    study, definition = row_and_definition(connection, study_name)
    if definition.objective is not None:
        raise Conflict(
            f"The trials of study {study_name!r} are run by workers, which allow "
            f"{definition.objective!r}; create a study without `objective` for ask and tell.",
            study=study_name,
            objective=definition.objective,
        )
    return study


def _standing(connection: sa.Connection, study_name: str) -> tuple[StudyState, str]:
    """The state of the study, and why it has no trial to give."""
    study, _ = row_and_definition(connection, study_name)
    state = StudyState(study.state)
    if state is not StudyState.RUNNING:
        return state, f"The study is {state}: {study.reason}"
    count = sa.select(sa.func.count()).where(t.hpo_lease.c.study_uuid == study.uuid)
    n_running = connection.execute(count).scalar_one()
    if study.n_started >= study.n_trials:
        reason = (
            f"All {study.n_trials} trials have been started and {n_running} of them run; "
            "one that is lost can be asked for again."
        )
    elif study.max_parallel_trials is not None and n_running >= study.max_parallel_trials:
        reason = f"{n_running} trials run, and max_parallel_trials is {study.max_parallel_trials}."
    else:
        reason = "There is no trial at the moment; ask again."
    return state, reason
