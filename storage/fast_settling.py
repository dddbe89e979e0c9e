"""The ordinary end of a trial: outcome, trial, lease and event in one statement.

As with reports, what decides lies in memory, and the statement writes only if the lease has the
revision that is known. The study's row is not locked: it is after the commit that one looks
whether the study is at its end, and the reaper looks again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy.sql.dml import UpdateBase

from hpo.errors import HpoError, InvalidResult
from hpo.events import EventKind
from hpo.numbers import strict
from hpo.trial import TrialState
from storage import leases
from storage import tables as t
from storage.attempts import Attempt, Attempts
from storage.ending import end_if_done
from storage.engine import Database, db_now, naive_utc
from storage.events import appended
from storage.limits import goes_on
from storage.outcomes import End, Ending
from storage.records import Lease, Settled
from storage.statements import Guarded, Held, given, inserted
from storage.step_history import StepHistory
from storage.studies import lock_study, study_row

logger = logging.getLogger(__name__)

# What a caller asks for; with the answer it is kept, to be compared when it is asked again.
Asked: TypeAlias = Mapping[str, Any]
NOBODY_ASKED: Asked = MappingProxyType({"asked": None})


class FastSettling:
    """Ends attempts that this process knows."""

    def __init__(self, database: Database, attempts: Attempts, history: StepHistory) -> None:
        self._database, self._attempts, self._history = database, attempts, history

    def settle(self, lease: Lease, asked: Asked, choose: Callable[[Ending], End]) -> Settled | None:
        """What became of the trial; None when nothing was written."""
        known = self._attempts.find(lease)
        if known is None:
            return None
        try:
            end = choose(known)
        except InvalidResult:  # judged by what is stored, not by what this process knows
            return None
        if end.state is None or len(end.values) > 1:
            return None
        statement = _WITH_VALUE if end.values else _WITHOUT_VALUE
        found = statement.write(self._database, _values(lease, known, asked, end, end.state))
        self._attempts.forget(lease.token)
        if found is None:
            return None
        if end.state is TrialState.COMPLETE:
            self._history.add(known.study_uuid, found.trial_id, known.curve)
        if found.is_spent or end.state is TrialState.FAIL:
            self._end_study(known.study_uuid)
        return Settled(state=end.state, awaiting_attempt=False, reason=end.reason)

    def _end_study(self, study_uuid: str) -> None:
        def transaction(connection: sa.Connection) -> None:
            study = study_row(connection, t.hpo_study.c.uuid == study_uuid)
            if study is not None and lock_study(connection, study.study_id):
                end_if_done(connection, study)

        try:
            self._database.write(transaction)
        except HpoError as error:  # the trial has ended all the same
            logger.warning("the reaper will see whether study %s has ended: %s", study_uuid, error)


def settled_answer(asked: Asked, end: End, state: TrialState) -> dict[str, Any]:
    """What the call that ended an attempt was told, for when it is made again."""
    return {**asked, "state": state, "awaiting": end.state is None, "reason": end.reason}


def ended_facts(attempt: int, end: End, state: TrialState) -> dict[str, Any]:
    """What listeners learn of a trial's end."""
    return {
        "attempt": attempt,
        "reason": end.reason,
        "message": end.message,
        "state": state,
        "value": end.values[0] if len(end.values) == 1 else None,
        "values": list(end.values),
    }


def _values(
    lease: Lease, known: Attempt, asked: Asked, end: End, state: TrialState
) -> dict[str, Any]:
    return {
        "token": lease.token,
        "study_uuid": known.study_uuid,
        "number": known.number,
        "revision": known.revision,
        "state": state.value,
        "datetime_complete": naive_utc(),
        "value": end.values[0] if end.values else None,
        "outcome": end.outcome,
        "reason": end.reason,
        "message": end.message,
        "traceback": end.traceback,
        "settled": settled_answer(asked, end, state),
        "study_name": known.study_name,
        "event_data": strict(ended_facts(known.attempt, end, state)),
    }


def _guard() -> sa.Select[Any]:
    lease, study, model = t.hpo_lease.c, t.hpo_study.c, t.hpo_model.c
    has_model = sa.exists().where(
        model.study_uuid == lease.study_uuid, model.number == lease.number
    )
    return (
        sa.select(
            *(lease.token, lease.study_uuid, lease.number, lease.trial_id),
            (study.n_started >= study.n_trials).label("is_spent"),
        )
        .join(t.trials, t.trials.c.trial_id == lease.trial_id)
        .join(t.hpo_study, study.uuid == lease.study_uuid)
        .where(leases.is_as_known(), goes_on(lease.study_uuid), sa.not_(has_model))
        .where(t.trials.c.state == "RUNNING")
        .with_for_update(of=[t.hpo_lease, t.trials], key_share=True)
    )


def _ended(held: Held) -> Iterator[UpdateBase]:
    lease, trial, ours, attempt = t.hpo_lease.c, t.trials.c, t.hpo_trial.c, t.hpo_attempt.c
    yield t.hpo_lease.delete().where(lease.token == held.token)
    yield (
        t.trials.update()
        .where(trial.trial_id == held.trial_id)
        .values(state=given(trial.state), datetime_complete=given(trial.datetime_complete))
    )
    mine = sa.and_(ours.study_uuid == held.study_uuid, ours.number == held.number)
    why = {"reason": given(ours.reason), "message": given(ours.message)}
    yield t.hpo_trial.update().where(mine).values(next_attempt_at=None, **why)
    names = ("outcome", "reason", "message", "traceback", "settled")
    yield (
        t.hpo_attempt.update()
        .where(attempt.token == held.token)
        .values(ended_at=db_now(), **{name: given(attempt[name]) for name in names})
    )
    yield appended(EventKind.TRIAL_ENDED, held)


def _ended_with_value(held: Held) -> Iterator[UpdateBase]:
    value = t.trial_values.c
    yield from _ended(held)
    columns = {
        "trial_id": held.trial_id,
        "objective": sa.literal(0),
        "value": given(value.value),
        "value_type": sa.literal(t.ValueType.FINITE, value.value_type.type),
    }
    yield inserted(t.trial_values, columns)


_WITHOUT_VALUE = Guarded(_guard(), lambda held: list(_ended(held)))
_WITH_VALUE = Guarded(_guard(), lambda held: list(_ended_with_value(held)))
