"""The end of an attempt: outcome, trial and lease change together, in one transaction.

The ordinary one takes one statement (`storage.fast_settling`). All others begin with the lock on
Optuna's `studies` row, so whether the study is complete is decided once. Each call is idempotent
by its token: repeated, it gets its first answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import sqlalchemy as sa

from hpo.errors import TrialFinished
from hpo.events import EventKind
from hpo.numbers import decode_number, encode_number
from hpo.trial import RETRIED_REASONS, Failure, Reason, TrialState
from storage import leases, models, outcomes
from storage import tables as t
from storage.attempts import Attempts
from storage.ending import end_if_done
from storage.engine import Database, db_now, naive_utc
from storage.events import append
from storage.fast_settling import NOBODY_ASKED, Asked, FastSettling, ended_facts, settled_answer
from storage.outcomes import End, Ending, Held
from storage.records import Lease, Remarks, Settled
from storage.remarks import store_remarks
from storage.step_history import StepHistory
from storage.studies import definition_of, study_row

T = TypeVar("T")

FINITE = t.ValueType.FINITE


class Settling:
    """Ends attempts, by their workers' word or because nobody renewed the lease."""

    def __init__(self, database: Database, attempts: Attempts, history: StepHistory) -> None:
        self._database, self._attempts, self._history = database, attempts, history
        self._fast = FastSettling(database, attempts, history)

    def complete(self, lease: Lease, values: Sequence[float], remarks: Remarks) -> Settled:
        """Ends a trial with its values; none: the study's value rule picks one of its reports."""
        asked = {"asked": "complete", "values": [encode_number(value) for value in values]}

        def choose(held: Ending) -> End:
            return outcomes.complete(held, values)

        return self._ended(lease, asked, choose, remarks)

    def prune(self, lease: Lease, remarks: Remarks) -> Settled:
        return self._ended(lease, {"asked": "pruned"}, outcomes.prune, remarks)

    def fail(self, lease: Lease, failure: Failure, remarks: Remarks) -> Settled:
        """Ends an attempt that failed; its reason decides between another attempt and the end."""
        asked = {"asked": "failed"}
        if failure.reason in RETRIED_REASONS:
            return self._settle(lease, asked, lambda held: outcomes.fail(held, failure), remarks)
        return self._ended(
            lease, asked, lambda held: outcomes.fail_for_good(held, failure), remarks
        )

    def release(self, lease: Lease) -> Settled:
        """Gives a trial back: another attempt goes on at once, and none has failed."""
        return self._settle(lease, {"asked": "released"}, outcomes.release, Remarks())

    def expire(self, lease: Lease, silent_seconds: float) -> Settled | None:
        """Ends a lease that ran out as `lost`; None when it was renewed meanwhile."""

        def transaction(connection: sa.Connection) -> Settled | None:
            held = _hold(connection, lease, t.hpo_lease.c.acquired_until < db_now())
            if held is None:
                return None
            silent = held.lease.lease_seconds or silent_seconds
            message = f"The worker was silent for {silent:.0f} s."
            failure = Failure(reason=Reason.LOST, message=message)
            return _write(held, outcomes.fail(held, failure))

        return self._carried_out(lease, transaction)

    def stop(self, lease: Lease) -> Settled | None:
        """Ends a trial that did not hear its study's order to stop; None when it just has."""

        def transaction(connection: sa.Connection) -> Settled | None:
            held = _hold(connection, lease, sa.true())
            return None if held is None else _write(held, outcomes.stop(held))

        return self._carried_out(lease, transaction)

    def _ended(
        self, lease: Lease, asked: Asked, choose: Callable[[Ending], End], remarks: Remarks
    ) -> Settled:
        """The end of a trial for good, which its own reports decide."""
        settled = None if remarks else self._fast.settle(lease, asked, choose)
        return settled or self._settle(lease, asked, choose, remarks)

    def _settle(
        self,
        lease: Lease,
        asked: Asked,
        choose: Callable[[Held], End],
        remarks: Remarks,
    ) -> Settled:
        def transaction(connection: sa.Connection) -> Settled:
            held = _hold(connection, lease, sa.true())
            if held is None:
                return _repeated(connection, lease, asked)
            store_remarks(connection, held.lease, remarks)
            return _write(held, choose(held), asked=asked)

        return self._carried_out(lease, transaction)

    def _carried_out(self, lease: Lease, transaction: Callable[[sa.Connection], T]) -> T:
        settled = self._database.write(transaction)
        self._attempts.forget(lease.token)
        self._history.look_again()
        return settled


def _hold(
    connection: sa.Connection, lease: Lease, condition: sa.ColumnElement[bool]
) -> Held | None:
    named = t.hpo_study.c.name == lease.study_name
    study_id = sa.select(t.hpo_study.c.study_id).where(named)
    lock = sa.select(t.studies.c.study_id).where(t.studies.c.study_id == study_id.scalar_subquery())
    connection.execute(lock.with_for_update()).all()
    study = study_row(connection, named)
    ended = None if study is None else leases.end(connection, lease, condition)
    if study is None or ended is None:
        return None
    trial = connection.execute(
        sa.select(t.hpo_trial).where(
            t.hpo_trial.c.study_uuid == study.uuid, t.hpo_trial.c.number == ended.number
        )
    ).one()
    return Held(
        connection=connection,
        study=study,
        definition=definition_of(study),
        lease=ended,
        trial=trial,
    )


def _write(held: Held, end: End, *, asked: Asked = NOBODY_ASKED) -> Settled:
    """Writes the trial's row, the attempt and the study's end."""
    connection = held.connection
    state = TrialState.RUNNING if end.state is None else _end_trial(held, end, end.state)
    settled = Settled(state=state, awaiting_attempt=end.state is None, reason=end.reason)
    if state is TrialState.COMPLETE:
        models.settle(connection, held.study.uuid, held.definition, held.lease)
    due = None if end.state is not None else db_now(end.pause_seconds)
    connection.execute(
        t.hpo_trial.update()
        .where(
            t.hpo_trial.c.study_uuid == held.study.uuid,
            t.hpo_trial.c.number == held.trial.number,
        )
        .values(next_attempt_at=due, reason=end.reason, message=end.message)
    )
    connection.execute(
        t.hpo_attempt.update()
        .where(t.hpo_attempt.c.token == held.lease.token)
        .values(
            ended_at=db_now(),
            outcome=end.outcome,
            reason=end.reason,
            message=end.message,
            traceback=end.traceback,
            settled=settled_answer(asked, end, state),
        )
    )
    _tell(held, end, state)
    end_if_done(connection, held.study)
    return settled


def _tell(held: Held, end: End, state: TrialState) -> None:
    facts = ended_facts(held.lease.attempt, end, state)
    kind = EventKind.TRIAL_ENDED
    if end.state is None:
        kind = EventKind.ATTEMPT_ENDED
        facts = {name: facts[name] for name in ("attempt", "reason", "message")}
    append(held.connection, kind, held.study, held.trial.number, **facts)


def _end_trial(held: Held, end: End, state: TrialState) -> TrialState:
    """Writes state and value; answers the state that stands, which another program may have set."""
    connection, trial_id = held.connection, held.lease.trial_id
    update = (
        t.trials.update()
        .where(t.trials.c.trial_id == trial_id, t.trials.c.state == "RUNNING")
        .values(state=state.value, datetime_complete=naive_utc())
    )
    if connection.execute(update).rowcount == 0:
        return leases.state_of(connection, trial_id) or state
    if end.values:
        rows = [
            {"trial_id": trial_id, "objective": index, "value": value, "value_type": FINITE}
            for index, value in enumerate(end.values)
        ]
        connection.execute(t.trial_values.insert(), rows)
    return state


def _repeated(connection: sa.Connection, lease: Lease, asked: Asked) -> Settled:
    """The first answer to a call that is made again; any other call is refused."""
    select = sa.select(t.hpo_attempt.c.settled).where(t.hpo_attempt.c.token == lease.token)
    settled = connection.execute(select).scalar_one_or_none()
    if settled is None or settled["asked"] != asked["asked"]:
        leases.refuse(connection, lease)
    if (first := _numbers(settled)) != (told := _numbers(asked)):
        raise _told_otherwise(lease, first, told)
    reason = settled["reason"]
    return Settled(
        state=TrialState(settled["state"]),
        awaiting_attempt=settled["awaiting"],
        reason=None if reason is None else Reason(reason),
    )


def _numbers(asked: Asked) -> list[float | str]:
    """The values of a request as they can be compared: NaN equals NaN, 1e300 its whole number."""
    return [encode_number(decode_number(value)) for value in asked.get("values", ())]


def _told_otherwise(
    lease: Lease, first: Sequence[float | str], told: Sequence[float | str]
) -> TrialFinished:
    field = "value" if max(len(first), len(told)) == 1 else "values"
    was, now = (", ".join(map(str, numbers)) or "none" for numbers in (first, told))
    message = f"the trial was completed with {was}, which stands; got {now}"
    return TrialFinished(
        f"{lease.study_name}/{lease.number}: {field}: {message}",
        study=lease.study_name,
        number=lease.number,
        errors=[{"field": field, "message": message}],
    )
