"""The ordinary report: lease, value, verdict and event in one statement.

What the verdict follows from lies in memory; the statement writes only if that is still so: the
lease has the revision that is known, and the study and its trial go on as before. Whatever else
may be true of a report is for `storage.reports` to find out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.dml import UpdateBase

from hpo.events import EventKind
from hpo.numbers import strict
from hpo.search.percentiles import StepValues, decide_from, is_known
from hpo.trial import Decision, Measurement, Verdict
from storage import leases
from storage import tables as t
from storage.attempts import Attempt, Attempts, told_by
from storage.curves import to_step_columns
from storage.engine import Database, db_now
from storage.events import appended
from storage.limits import goes_on
from storage.records import Lease
from storage.statements import Guarded, Held, Prepared, given, inserted
from storage.step_history import StepHistory
from storage.verdicts import diverged, measured, report_facts, strict_decision


class FastReports:
    """Reports of attempts that this process knows."""

    def __init__(
        self,
        database: Database,
        attempts: Attempts,
        history: StepHistory,
        *,
        lease_seconds: float,
    ) -> None:
        self._database, self._attempts, self._history = database, attempts, history
        self._lease_seconds = lease_seconds

    def start(self, lease: Lease) -> bool:
        """Whether an attempt was begun that has no past; if not, nothing was written."""
        known = self._attempts.find(lease)
        if known is None or known.revision:
            return False
        values = {**_names(lease, known), "usual_seconds": self._lease_seconds}
        found = self._database.write_one(lambda c: _RENEW(c, values).first())
        return found is not None

    def report(self, lease: Lease, measurement: Measurement) -> Decision | None:
        """The verdict, once it is stored; None when nothing was written."""
        known = self._attempts.find(lease)
        if known is None or not _is_ordinary(known, measurement):
            return None
        decision, revision = self._decide(known, measurement)
        values = {
            **_names(lease, known),
            **_report(known, measurement, decision),
            "usual_seconds": self._lease_seconds,
            "history_revision": revision,
        }
        statement = _GO_ON if decision.verdict is Verdict.CONTINUE else _PRUNE
        if statement.write(self._database, values) is None:
            self._attempts.forget(lease.token)
            return None
        self._attempts.learn(lease.token, known.after(measurement, decision, known.revision + 1))
        return decision

    def _decide(self, known: Attempt, measurement: Measurement) -> tuple[Decision, int | None]:
        """The verdict, and the revision of the history that it follows from, if it does."""
        revision = None

        def complete() -> StepValues:
            nonlocal revision
            values, revision = self._history.view(known.study_uuid)
            return values

        decision = diverged(measurement) or decide_from(
            known.definition,
            lambda: {**known.curve, measurement.step: measurement.value},
            complete,
        )
        return strict_decision(decision), revision


def _is_ordinary(known: Attempt, measurement: Measurement) -> bool:
    last = known.definition.max_steps
    return (
        is_known(known.definition)
        and measurement.step not in known.curve
        and (last is None or measurement.step < last)
    )


def _names(lease: Lease, known: Attempt) -> dict[str, Any]:
    return {
        "token": lease.token,
        "study_uuid": known.study_uuid,
        "number": known.number,
        "revision": known.revision,
    }


def _report(known: Attempt, measurement: Measurement, decision: Decision) -> dict[str, Any]:
    told = told_by(decision)
    return {
        **measured(measurement),
        **to_step_columns(measurement.value),
        **told,
        "told": told,
        "has_no_past": not known.curve,
        "study_name": known.study_name,
        "event_data": strict(report_facts(known.attempt, measurement, decision)),
    }


def _renewed() -> sa.Update:
    usual: sa.ColumnElement[float] = sa.bindparam("usual_seconds", type_=sa.Double())
    until = db_now(leases.length(usual))
    is_held = sa.and_(leases.is_as_known(), leases.is_running())
    return t.hpo_lease.update().where(is_held).values(acquired_until=until)


def _has_steps() -> sa.ColumnElement[bool]:
    return sa.exists().where(t.trial_steps.c.trial_id == t.hpo_lease.c.trial_id)


def _guard() -> Any:
    """Renews the lease if the verdict may be told."""
    lease, study = t.hpo_lease.c, t.hpo_study.c
    revision = given(study.history_revision)
    is_same = sa.or_(revision.is_(None), study.history_revision == revision)
    has_no_past: sa.ColumnElement[bool] = sa.bindparam("has_no_past", type_=sa.Boolean())
    return (
        _renewed()
        .where(sa.exists().where(goes_on(lease.study_uuid), is_same))
        # A trial that another program has made may begin with a curve.
        .where(sa.or_(sa.not_(has_no_past), sa.not_(_has_steps())))
        .values(revision=lease.revision + 1)
        .returning(lease.study_uuid, lease.number, lease.trial_id, lease.attempt)
    )


def _stored(held: Held) -> Iterator[UpdateBase]:
    verdict, step = t.hpo_verdict.c, t.trial_steps.c
    measured = ("step", "value", "elapsed_seconds", "metrics", "verdict", "reason", "evidence")
    key = {name: getattr(held, name) for name in ("study_uuid", "number", "attempt")}
    yield inserted(t.hpo_verdict, {**key, **{name: given(verdict[name]) for name in measured}})
    valued = ("step", "intermediate_value", "intermediate_value_type")
    columns = {name: given(step[name]) for name in valued}
    yield inserted(t.trial_steps, {"trial_id": held.trial_id, **columns})
    yield appended(EventKind.REPORT, held)


def _told(held: Held) -> Iterator[UpdateBase]:
    trial = t.hpo_trial.c
    mine = sa.and_(trial.study_uuid == held.study_uuid, trial.number == held.number)
    yield from _stored(held)
    yield t.hpo_trial.update().where(mine).values(told=given(trial.told))


_RENEW = Prepared(_renewed().where(sa.not_(_has_steps())).returning(t.hpo_lease.c.attempt))
_GO_ON = Guarded(_guard(), lambda held: list(_stored(held)))
_PRUNE = Guarded(_guard(), lambda held: list(_told(held)))
