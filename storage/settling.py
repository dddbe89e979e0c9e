"""The end of an attempt: outcome, trial and lease change together, in one transaction.

The transaction begins with the lock on Optuna's `studies` row, so whether the study is complete
is decided once. Each call is idempotent by its token: repeated, it gets its first answer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from hpo.numbers import encode_number, strict
from hpo.study import OnFault, StudyDefinition, ValueRule
from hpo.trial import RETRIED_REASONS, Failure, Reason, TrialState
from storage import leases
from storage import tables as t
from storage.curves import steps_of
from storage.ending import end_if_done
from storage.engine import Database, db_now, naive_utc
from storage.records import Lease, Settled
from storage.studies import definition_of

MAX_PAUSE_SECONDS = 600.0
# A trial that is given back again and again without a single report is not preempted, it is stuck.
MAX_IDLE_RELEASES = 10
MAX_MESSAGE, MAX_TRACEBACK = 4_000, 64_000


@dataclass(frozen=True, kw_only=True, slots=True)
class _End:
    """How an attempt ends. `state` None: the trial waits `pause_seconds` for its next attempt."""

    outcome: str  # complete, pruned, failed, released
    state: TrialState | None
    value: float | None = None
    reason: Reason | None = None
    message: str = ""
    traceback: str = ""
    pause_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Held:
    """The trial whose lease is being ended, as it stands."""

    connection: sa.Connection
    study: Any
    definition: StudyDefinition
    lease: Any
    trial: Any

    @property
    def told(self) -> Mapping[str, Any] | None:
        """The verdict that told it to end."""
        told: Mapping[str, Any] | None = self.trial.told
        return told

    def ended_attempts(self, outcome: str) -> int:
        attempt = t.hpo_attempt.c
        count = sa.select(sa.func.count()).where(
            attempt.study_uuid == self.study.uuid,
            attempt.number == self.trial.number,
            attempt.outcome == outcome,
        )
        return int(self.connection.execute(count).scalar_one())


class Settling:
    """Ends attempts, by their workers' word or because nobody renewed the lease."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def complete(self, lease: Lease, value: float | None, attrs: Mapping[str, Any]) -> Settled:
        """Ends a trial with a value; None: the study's value rule picks one of its reports."""
        return self._settle(lease, "complete", lambda held: _complete(held, value), attrs)

    def prune(self, lease: Lease, attrs: Mapping[str, Any]) -> Settled:
        return self._settle(lease, "pruned", _prune, attrs)

    def fail(self, lease: Lease, failure: Failure, attrs: Mapping[str, Any]) -> Settled:
        """Ends an attempt that failed; its reason decides between another attempt and the end."""
        return self._settle(lease, "failed", lambda held: _fail(held, failure), attrs)

    def release(self, lease: Lease) -> Settled:
        """Gives a trial back: another attempt goes on at once, and none has failed."""
        return self._settle(lease, "released", _release, {})

    def expire(self, lease: Lease, silent_seconds: float) -> Settled | None:
        """Ends a lease that ran out as `lost`; None when it was renewed meanwhile."""
        message = f"The worker was silent for {silent_seconds:.0f} s."
        failure = Failure(reason=Reason.LOST, message=message)

        def transaction(connection: sa.Connection) -> Settled | None:
            held = _hold(connection, lease, t.hpo_lease.c.acquired_until < db_now())
            return None if held is None else _write(held, _fail(held, failure))

        return self._database.write(transaction)

    def _settle(
        self,
        lease: Lease,
        asked: str,
        choose: Callable[[_Held], _End],
        attrs: Mapping[str, Any],
    ) -> Settled:
        def transaction(connection: sa.Connection) -> Settled:
            held = _hold(connection, lease, sa.true())
            if held is None:
                return _repeated(connection, lease, asked)
            set_user_attrs(connection, held.lease.trial_id, attrs)
            return _write(held, choose(held), asked=asked)

        return self._database.write(transaction)


def set_user_attrs(connection: sa.Connection, trial_id: int, attrs: Mapping[str, Any]) -> None:
    """Stores JSON values with a trial, the last one of each key."""
    if not attrs:
        return
    attr = t.trial_user_attrs
    mine = sa.and_(attr.c.trial_id == trial_id, attr.c.key.in_(list(attrs)))
    connection.execute(attr.delete().where(mine))
    rows = [
        {"trial_id": trial_id, "key": key, "value_json": json.dumps(strict(value))}
        for key, value in attrs.items()
    ]
    connection.execute(attr.insert(), rows)


def _hold(
    connection: sa.Connection, lease: Lease, condition: sa.ColumnElement[bool]
) -> _Held | None:
    select = sa.select(t.hpo_study).where(t.hpo_study.c.name == lease.study_name)
    study_id = sa.select(t.hpo_study.c.study_id).where(t.hpo_study.c.name == lease.study_name)
    lock = sa.select(t.studies.c.study_id).where(t.studies.c.study_id == study_id.scalar_subquery())
    connection.execute(lock.with_for_update()).all()
    study = connection.execute(select).one_or_none()
    ended = None if study is None else leases.end(connection, lease, condition)
    if study is None or ended is None:
        return None
    trial = connection.execute(
        sa.select(t.hpo_trial).where(
            t.hpo_trial.c.study_uuid == study.uuid, t.hpo_trial.c.number == ended.number
        )
    ).one()
    return _Held(
        connection=connection,
        study=study,
        definition=definition_of(study),
        lease=ended,
        trial=trial,
    )


def _complete(held: _Held, value: float | None) -> _End:
    if _is_diverged(held):
        return _prune(held)  # it went on and returned a number all the same
    if value is None:
        value = _value_by_rule(held)
    if value is None:
        return _End(
            outcome="failed",
            state=TrialState.FAIL,
            reason=Reason.INVALID_RESULT,
            message="The objective returned no value and reported none.",
        )
    if not math.isfinite(value):
        message = f"The objective returned {encode_number(value)}."
        return _blame(held, held.definition.on_diverged, Reason.DIVERGED, message)
    return _End(outcome="complete", state=TrialState.COMPLETE, value=value)


def _value_by_rule(held: _Held) -> float | None:
    curve = steps_of(held.connection, [held.lease.trial_id])[held.lease.trial_id]
    values = [value for _, value in sorted(curve.items())]
    if not values:
        return None
    if held.definition.value_rule is ValueRule.LAST:
        return values[-1]
    finite = [value for value in values if math.isfinite(value)] or values[-1:]
    return held.definition.direction.best(finite)


def _prune(held: _Held) -> _End:
    if held.told is not None and _is_diverged(held):
        return _blame(held, held.definition.on_diverged, Reason.DIVERGED, _told_message(held.told))
    return _pruned(held)


def _is_diverged(held: _Held) -> bool:
    return held.told is not None and held.told["reason"] == Reason.DIVERGED


def _pruned(held: _Held, reason: Reason | None = None, message: str = "") -> _End:
    """As Optuna's `tell` does, a pruned trial keeps its last value if that is finite."""
    curve = steps_of(held.connection, [held.lease.trial_id])[held.lease.trial_id]
    last = curve[max(curve)] if curve else math.nan
    value = last if math.isfinite(last) else None
    return _End(
        outcome="pruned", state=TrialState.PRUNED, value=value, reason=reason, message=message
    )


def _fail(held: _Held, failure: Failure) -> _End:
    message, traceback = failure.message[:MAX_MESSAGE], failure.traceback[-MAX_TRACEBACK:]
    if failure.reason in RETRIED_REASONS:
        if held.told is not None:
            return _prune(held)  # it was told to end; its worker died before saying so
        n_failed = held.ended_attempts("failed") + 1
        if n_failed < held.definition.max_attempts:
            pause = held.definition.retry_backoff_seconds * 2 ** (n_failed - 1)
            return _End(
                outcome="failed",
                state=None,
                reason=failure.reason,
                message=message,
                traceback=traceback,
                pause_seconds=min(pause, MAX_PAUSE_SECONDS),
            )
    blamed = {
        Reason.DIVERGED: held.definition.on_diverged,
        Reason.OUT_OF_MEMORY: held.definition.on_out_of_memory,
    }
    if failure.reason in blamed:
        return _blame(held, blamed[failure.reason], failure.reason, message, traceback)
    return _End(
        outcome="failed",
        state=TrialState.FAIL,
        reason=failure.reason,
        message=message,
        traceback=traceback,
    )


def _blame(held: _Held, policy: OnFault, reason: Reason, message: str, traceback: str = "") -> _End:
    """The end of a trial whose parameters are at fault."""
    if policy is OnFault.PRUNE:
        return _pruned(held, reason, message)
    return _End(
        outcome="failed",
        state=TrialState.FAIL,
        reason=reason,
        message=message,
        traceback=traceback,
    )


def _release(held: _Held) -> _End:
    if held.told is not None:
        return _prune(held)
    if held.ended_attempts("released") >= MAX_IDLE_RELEASES and not _has_reported(held):
        message = f"Given back {MAX_IDLE_RELEASES + 1} times without a single report."
        return _End(
            outcome="failed", state=TrialState.FAIL, reason=Reason.PREEMPTED, message=message
        )
    return _End(outcome="released", state=None, reason=Reason.PREEMPTED)


def _has_reported(held: _Held) -> bool:
    verdict = t.hpo_verdict.c
    mine = sa.and_(verdict.study_uuid == held.study.uuid, verdict.number == held.trial.number)
    return held.connection.execute(sa.select(verdict.step).where(mine).limit(1)).first() is not None


def _told_message(told: Mapping[str, Any]) -> str:
    evidence = told["evidence"]
    return f"Reported {evidence.get('value')} at step {evidence.get('step')}."


def _write(held: _Held, end: _End, *, asked: str | None = None) -> Settled:
    """Writes the trial's row, the attempt and the study's end."""
    connection = held.connection
    state = TrialState.RUNNING if end.state is None else _end_trial(held, end, end.state)
    settled = Settled(state=state, awaiting_attempt=end.state is None, reason=end.reason)
    due = None if end.state is not None else db_now(end.pause_seconds)
    connection.execute(
        t.hpo_trial.update()
        .where(
            t.hpo_trial.c.study_uuid == held.study.uuid,
            t.hpo_trial.c.number == held.trial.number,
        )
        .values(next_attempt_at=due, reason=end.reason, message=end.message)
    )
    answer = {"asked": asked, "state": state, "awaiting": end.state is None, "reason": end.reason}
    connection.execute(
        t.hpo_attempt.update()
        .where(t.hpo_attempt.c.token == held.lease.token)
        .values(
            ended_at=db_now(),
            outcome=end.outcome,
            reason=end.reason,
            message=end.message,
            traceback=end.traceback,
            settled=answer,
        )
    )
    end_if_done(connection, held.study)
    return settled


def _end_trial(held: _Held, end: _End, state: TrialState) -> TrialState:
    """Writes state and value; answers the state that stands, which another program may have set."""
    connection, trial_id = held.connection, held.lease.trial_id
    update = (
        t.trials.update()
        .where(t.trials.c.trial_id == trial_id, t.trials.c.state == "RUNNING")
        .values(state=state.value, datetime_complete=naive_utc())
    )
    if connection.execute(update).rowcount == 0:
        return leases.state_of(connection, trial_id) or state
    if end.value is not None:
        connection.execute(
            t.trial_values.insert().values(
                trial_id=trial_id, objective=0, value=end.value, value_type=t.ValueType.FINITE
            )
        )
    return state


def _repeated(connection: sa.Connection, lease: Lease, asked: str) -> Settled:
    """The first answer to a call that is made again; any other call is refused."""
    select = sa.select(t.hpo_attempt.c.settled).where(t.hpo_attempt.c.token == lease.token)
    settled = connection.execute(select).scalar_one_or_none()
    if settled is None or settled["asked"] != asked:
        leases.refuse(connection, lease)
    reason = settled["reason"]
    return Settled(
        state=TrialState(settled["state"]),
        awaiting_attempt=settled["awaiting"],
        reason=None if reason is None else Reason(reason),
    )
