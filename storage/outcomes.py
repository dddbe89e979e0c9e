"""How an attempt ends and its trial with it: from what the worker says, what the trial was told
and what the study wants.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import sqlalchemy as sa

from hpo.errors import InvalidResult
from hpo.numbers import encode_number
from hpo.study import OnFault, StudyDefinition, StudyState, ValueRule
from hpo.trial import RETRIED_REASONS, Failure, Reason, TrialState, Verdict
from storage import tables as t
from storage.curves import steps_of

MAX_PAUSE_SECONDS = 600.0
# A trial that is given back again and again without a single report is not preempted, it is stuck.
MAX_IDLE_RELEASES = 10
MAX_MESSAGE, MAX_TRACEBACK = 4_000, 64_000


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """How an attempt ends. `state` None: the trial waits `pause_seconds` for its next attempt."""

    outcome: str  # complete, pruned, failed, stopped, released
    state: TrialState | None
    values: tuple[float, ...] = ()
    reason: Reason | None = None
    message: str = ""
    traceback: str = ""
    pause_seconds: float = 0.0


class Ending(Protocol):
    """A trial that is about to end, as far as its own reports tell how."""

    @property
    def definition(self) -> StudyDefinition: ...
    @property
    def told(self) -> Mapping[str, Any] | None:
        """The verdict that told it to end."""
        ...

    @property
    def curve(self) -> Mapping[int, float]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """The trial whose lease is being ended, as it stands."""

    connection: sa.Connection
    study: Any
    definition: StudyDefinition
    lease: Any
    trial: Any

    @property
    def curve(self) -> Mapping[int, float]:
        return steps_of(self.connection, [self.lease.trial_id])[self.lease.trial_id]

    @property
    def told(self) -> Mapping[str, Any] | None:
        told: Mapping[str, Any] | None = self.trial.told
        return told

    @property
    def may_go_on(self) -> bool:
        """Whether the study will have another attempt for it."""
        state = StudyState(self.study.state)
        if state is StudyState.RUNNING:
            return not self.study.is_over_time
        return state is StudyState.PAUSED

    def ended_attempts(self, outcome: str) -> int:
        attempt = t.hpo_attempt.c
        count = sa.select(sa.func.count()).where(
            attempt.study_uuid == self.study.uuid,
            attempt.number == self.trial.number,
            attempt.outcome == outcome,
        )
        return int(self.connection.execute(count).scalar_one())


def complete(held: Ending, values: Sequence[float]) -> End:
    """Raises InvalidResult, and the attempt goes on, when there is not one value a direction."""
    if _is_diverged(held):
        return prune(held)  # it went on and returned a number all the same
    n_wanted = len(held.definition.directions)
    if not values and n_wanted == 1:
        values = values_by_rule(held.curve, held.definition)
    if len(values) != n_wanted:
        raise _wrong_number(len(values), n_wanted)
    for value in values:
        if not math.isfinite(value):
            message = f"The objective returned {encode_number(value)}."
            return _blame(held, held.definition.on_diverged, Reason.DIVERGED, message)
    return End(outcome="complete", state=TrialState.COMPLETE, values=tuple(values))


def _wrong_number(n_values: int, n_wanted: int) -> InvalidResult:
    if n_wanted == 1 and n_values == 0:
        return InvalidResult("value", "is required, as the trial has reported none")
    given = f"{n_values} value{'' if n_values == 1 else 's'}"
    wanted = "one number" if n_wanted == 1 else f"{n_wanted} numbers, one for each direction"
    return InvalidResult("values", f"must be {wanted} of the study, got {given}")


def values_by_rule(curve: Mapping[int, float], definition: StudyDefinition) -> Sequence[float]:
    """The value of a trial whose objective returns none; empty when it has reported none either."""
    values = [value for _, value in sorted(curve.items())]
    if definition.value_rule is ValueRule.LAST or not values:
        return values[-1:]
    finite = [value for value in values if math.isfinite(value)] or values[-1:]
    return [definition.direction.best(finite)]


def prune(held: Ending) -> End:
    """Ends a trial that was told to end; also one whose worker died before it could."""
    told = held.told or {}
    if told.get("verdict") == Verdict.STOP:
        return _stopped(Reason(told["reason"]), told["evidence"]["message"])
    if _is_diverged(held):
        return _blame(held, held.definition.on_diverged, Reason.DIVERGED, _told_message(told))
    return _pruned(held)


def _is_diverged(held: Ending) -> bool:
    return held.told is not None and held.told["reason"] == Reason.DIVERGED


def _pruned(held: Ending, reason: Reason | None = None, message: str = "") -> End:
    """As Optuna's `tell` does, a pruned trial keeps its last value if that is finite."""
    curve = held.curve
    last = curve[max(curve)] if curve else math.nan
    is_value = math.isfinite(last) and not held.definition.is_multi_objective
    return End(
        outcome="pruned",
        state=TrialState.PRUNED,
        values=(last,) if is_value else (),
        reason=reason,
        message=message,
    )


def fail(held: Held, failure: Failure) -> End:
    if failure.reason in RETRIED_REASONS:
        message, traceback = _shortened(failure)
        if held.told is not None:
            return prune(held)  # it was told to end; its worker died before saying so
        if not held.may_go_on:
            return _CANCELLED
        n_failed = held.ended_attempts("failed") + 1
        if n_failed < held.definition.max_attempts:
            pause = held.definition.retry_backoff_seconds * 2 ** (n_failed - 1)
            return End(
                outcome="failed",
                state=None,
                reason=failure.reason,
                message=message,
                traceback=traceback,
                pause_seconds=min(pause, MAX_PAUSE_SECONDS),
            )
    return fail_for_good(held, failure)


def fail_for_good(held: Ending, failure: Failure) -> End:
    """The end of a trial that another attempt would not save."""
    message, traceback = _shortened(failure)
    blamed = {
        Reason.DIVERGED: held.definition.on_diverged,
        Reason.OUT_OF_MEMORY: held.definition.on_out_of_memory,
    }
    if failure.reason in blamed:
        return _blame(held, blamed[failure.reason], failure.reason, message, traceback)
    return End(
        outcome="failed",
        state=TrialState.FAIL,
        reason=failure.reason,
        message=message,
        traceback=traceback,
    )


def _shortened(failure: Failure) -> tuple[str, str]:
    return failure.message[:MAX_MESSAGE], failure.traceback[-MAX_TRACEBACK:]


def _blame(held: Ending, policy: OnFault, reason: Reason, message: str, traceback: str = "") -> End:
    """The end of a trial whose parameters are at fault."""
    if policy is OnFault.PRUNE:
        return _pruned(held, reason, message)
    return End(
        outcome="failed",
        state=TrialState.FAIL,
        reason=reason,
        message=message,
        traceback=traceback,
    )


def release(held: Held) -> End:
    if held.told is not None:
        return prune(held)
    if not held.may_go_on:
        return _CANCELLED
    if held.ended_attempts("released") >= MAX_IDLE_RELEASES and not _has_reported(held):
        message = f"Given back {MAX_IDLE_RELEASES + 1} times without a single report."
        return End(
            outcome="failed", state=TrialState.FAIL, reason=Reason.PREEMPTED, message=message
        )
    return End(outcome="released", state=None, reason=Reason.PREEMPTED)


def stop(held: Held) -> End:
    """The end of a trial that was told to stop, alone or with its study."""
    if held.lease.stop_reason is not None and held.told is not None:
        return prune(held)
    return _stopped(Reason(held.study.stop_reason or Reason.CANCELLED), held.study.reason or "")


def _stopped(reason: Reason, message: str) -> End:
    return End(outcome="stopped", state=TrialState.FAIL, reason=reason, message=message)


_CANCELLED = _stopped(Reason.CANCELLED, "The study ended before its next attempt.")


def _has_reported(held: Held) -> bool:
    verdict = t.hpo_verdict.c
    mine = sa.and_(verdict.study_uuid == held.study.uuid, verdict.number == held.trial.number)
    return held.connection.execute(sa.select(verdict.step).where(mine).limit(1)).first() is not None


def _told_message(told: Mapping[str, Any]) -> str:
    evidence = told["evidence"]
    return f"Reported {evidence.get('value')} at step {evidence.get('step')}."
