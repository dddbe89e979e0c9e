"""Verdicts as they are stored: one for each step of an attempt, told to listeners and the trial."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import sqlalchemy as sa

from hpo.errors import StepReported, TrialFinished
from hpo.events import EventKind
from hpo.numbers import encode_number, strict
from hpo.trial import Decision, Measurement, Reason, Verdict
from storage import tables as t
from storage.attempts import told_by
from storage.curves import to_step_columns
from storage.engine import insert_if_new, upsert
from storage.events import append


class Stored(NamedTuple):
    """The verdict that stands, None while there is none, and whether the report was the first."""

    decision: Decision | None
    is_new: bool


def diverged(measurement: Measurement) -> Decision | None:
    """The verdict on a value that is no number: pruners compare the best, and would go on."""
    if math.isfinite(measurement.value):
        return None
    evidence = {"step": measurement.step, "value": measurement.value}
    return Decision(verdict=Verdict.PRUNE, reason=Reason.DIVERGED, evidence=evidence)


def strict_decision(decision: Decision) -> Decision:
    """A decision with evidence that strict JSON can carry."""
    return replace(decision, evidence=strict(dict(decision.evidence)))


def measured(measurement: Measurement) -> dict[str, Any]:
    """A measurement as columns of hpo_verdict."""
    return {
        "step": measurement.step,
        "value": None if math.isnan(measurement.value) else measurement.value,
        "elapsed_seconds": measurement.elapsed_seconds,
        "metrics": strict(dict(measurement.metrics)),
    }


def report_facts(attempt: int, measurement: Measurement, decision: Decision) -> dict[str, Any]:
    """What listeners learn of a report."""
    return {
        "attempt": attempt,
        "step": measurement.step,
        "value": measurement.value,
        "verdict": decision.verdict,
    }


def store(
    connection: sa.Connection,
    study: Any,
    held: Any,
    measurement: Measurement,
    decision: Decision | None,
) -> Stored:
    """Writes a value, with its verdict if that is known.

    Raises StepReported when this attempt has reported another value before.
    """
    decision = decision and strict_decision(decision)
    row = {
        "study_uuid": held.study_uuid,
        "number": held.number,
        "attempt": held.attempt,
        **measured(measurement),
        **({} if decision is None else told_by(decision)),
    }
    if not insert_if_new(connection, t.hpo_verdict, row):
        return Stored(_earlier(connection, held, measurement), is_new=False)
    key = {"trial_id": held.trial_id, "step": measurement.step}
    upsert(connection, t.trial_steps, key, to_step_columns(measurement.value))
    if decision is not None:
        _announce(connection, study, held, measurement, decision)
    return Stored(decision, is_new=True)


def store_verdict(
    connection: sa.Connection, study: Any, held: Any, measurement: Measurement, decision: Decision
) -> Decision:
    """Writes a verdict unless the same report, made twice, already has one."""
    decision = strict_decision(decision)
    mine = _verdict(held, measurement.step)
    written = connection.execute(
        t.hpo_verdict.update()
        .where(mine, t.hpo_verdict.c.verdict.is_(None))
        .values(told_by(decision))
    ).rowcount
    if written == 0:
        row = connection.execute(sa.select(t.hpo_verdict).where(mine)).one_or_none()
        stored = None if row is None else _decision(row)
        if stored is None:
            raise TrialFinished()
        return stored
    _announce(connection, study, held, measurement, decision)
    return decision


def _earlier(connection: sa.Connection, held: Any, measurement: Measurement) -> Decision | None:
    """The verdict on a report that was made before; None when it has none yet."""
    select = sa.select(t.hpo_verdict).where(_verdict(held, measurement.step))
    before = connection.execute(select).one()
    value = None if math.isnan(measurement.value) else measurement.value
    if before.value != value:
        raise StepReported(
            f"Step {measurement.step} was reported as "
            f"{encode_number(math.nan if before.value is None else before.value)} before; "
            "report the next step.",
            step=measurement.step,
        )
    return _decision(before)


def _announce(
    connection: sa.Connection, study: Any, held: Any, measurement: Measurement, decision: Decision
) -> None:
    """Tells the trial what it was told, and listeners of the report."""
    _tell(connection, held, decision)
    facts = report_facts(held.attempt, measurement, decision)
    append(connection, EventKind.REPORT, study, held.number, **facts)


def _tell(connection: sa.Connection, held: Any, decision: Decision) -> None:
    """Notes with the trial that it was told to end; what it was told first says why it did."""
    if decision.verdict not in (Verdict.PRUNE, Verdict.STOP):
        return
    trial = t.hpo_trial.c
    mine = sa.and_(trial.study_uuid == held.study_uuid, trial.number == held.number)
    update = t.hpo_trial.update().where(mine)
    if decision.verdict is Verdict.STOP:
        update = update.where(trial.told.is_(sa.null()))
    connection.execute(update.values(told=told_by(decision)))


def _decision(row: sa.Row[Any]) -> Decision | None:
    if row.verdict is None:
        return None
    evidence: Mapping[str, Any] = row.evidence or {}
    return Decision(
        verdict=Verdict(row.verdict),
        reason=None if row.reason is None else Reason(row.reason),
        evidence=evidence,
    )


def _verdict(held: Any, step: int) -> sa.ColumnElement[bool]:
    return sa.and_(
        t.hpo_verdict.c.study_uuid == held.study_uuid,
        t.hpo_verdict.c.number == held.number,
        t.hpo_verdict.c.attempt == held.attempt,
        t.hpo_verdict.c.step == step,
    )
