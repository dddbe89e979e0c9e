"""What this process knows of attempts that run, so that a report need not read it again.

It is true for as long as the lease has the revision that goes with it, which every write compares:
another API process may have written meanwhile, and then what was known is dropped.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import sqlalchemy as sa

from hpo.study import StudyDefinition
from hpo.trial import Decision, Measurement, Verdict
from storage import tables as t
from storage.curves import steps_of
from storage.records import Claimed, Lease

# One that is dropped is read again at its next report.
MAX_ATTEMPTS = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """A running attempt and its trial's curve; `told` is the verdict that told it to end."""

    study_name: str
    study_uuid: str
    definition: StudyDefinition
    number: int
    attempt: int
    revision: int = 0
    curve: Mapping[int, float] = field(default_factory=dict)
    told: Mapping[str, Any] | None = None

    def after(self, measurement: Measurement, decision: Decision | None, revision: int) -> Attempt:
        """What is known once a value is written, and its verdict if there is one yet."""
        curve = {**self.curve, measurement.step: measurement.value}
        return replace(self, curve=curve).hearing(decision, revision)

    def hearing(self, decision: Decision | None, revision: int) -> Attempt:
        """What is known once a verdict is written; the first order says why a trial ended."""
        told = self.told
        if decision is not None and (
            decision.verdict is Verdict.PRUNE or (decision.verdict is Verdict.STOP and told is None)
        ):
            told = told_by(decision)
        return replace(self, revision=revision, told=told)


def told_by(decision: Decision) -> dict[str, Any]:
    """A verdict as our tables keep it."""
    reason = decision.reason
    return {
        "verdict": decision.verdict.value,
        "reason": None if reason is None else reason.value,
        "evidence": dict(decision.evidence),
    }


def read_attempt(
    connection: sa.Connection, held: Any, study_name: str, definition: StudyDefinition
) -> Attempt:
    """The attempt of a lease that was just held, as it stands."""
    trial = t.hpo_trial.c
    told = sa.select(trial.told).where(
        trial.study_uuid == held.study_uuid, trial.number == held.number
    )
    return Attempt(
        study_name=study_name,
        study_uuid=held.study_uuid,
        definition=definition,
        number=held.number,
        attempt=held.attempt,
        revision=held.revision,
        curve=steps_of(connection, [held.trial_id])[held.trial_id],
        told=connection.execute(told).scalar_one(),
    )


class Attempts:
    """The attempts that this process has heard of last, by their tokens."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Attempt] = OrderedDict()

    def find(self, lease: Lease) -> Attempt | None:
        """What is known of the trial that a lease names."""
        with self._lock:
            known = self._known.get(lease.token)
        if known is None or (known.study_name, known.number) != (lease.study_name, lease.number):
            return None
        return known

    def begin(self, claimed: Claimed) -> None:
        """Takes in what was just handed over. Another attempt than the first has a past."""
        if claimed.attempt == 1:
            attempt = Attempt(
                study_name=claimed.study_name,
                study_uuid=str(claimed.study_uuid),
                definition=claimed.definition,
                number=claimed.number,
                attempt=claimed.attempt,
            )
            self.learn(claimed.token, attempt)

    def learn(self, token: str, attempt: Attempt) -> None:
        """Takes in what is newer than what is known."""
        with self._lock:
            known = self._known.pop(token, attempt)
            self._known[token] = max(known, attempt, key=lambda one: one.revision)
            while len(self._known) > MAX_ATTEMPTS:
                self._known.popitem(last=False)

    def forget(self, token: str) -> None:
        with self._lock:
            self._known.pop(token, None)
