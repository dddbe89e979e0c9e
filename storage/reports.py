"""Reports: a measurement goes in, a verdict comes out, and both stand in the database.

Value and verdict are written in one transaction where the verdict follows from what is at hand:
an order to stop, or a pruner that compares percentiles. Other pruners write attributes of their
own, so there it takes three steps: write the value under the lease, ask the pruner without holding
anything, write the verdict. A report that is repeated, also after a crash in between, gets one and
the same verdict.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from hpo.errors import InvalidField, StepReported, TrialFinished
from hpo.events import EventKind
from hpo.numbers import encode_number, strict
from hpo.search.percentiles import decide_from, is_known
from hpo.space import Choice, Parameter
from hpo.study import StudyDefinition
from hpo.trial import Decision, Measurement, Reason, Verdict
from storage import leases
from storage import tables as t
from storage.cancelling import order_to_trial
from storage.curves import steps_of, to_step_columns
from storage.engine import Database, insert_if_new, upsert
from storage.events import StudyKey, append
from storage.lifecycle import order_to
from storage.records import Lease, Remarks
from storage.remarks import store_remarks
from storage.search import Search, param_row
from storage.step_history import StepHistory
from storage.studies import row_and_definition

# Optuna's key (5.0) for the value at which a trial has reached a rung.
RUNG_PREFIX = "completed_rung_"


class Reports:
    """What a running attempt says of itself before its end."""

    def __init__(self, database: Database, search: Search, *, lease_seconds: float) -> None:
        self._database, self._search = database, search
        self._lease_seconds = lease_seconds
        self._history = StepHistory()

    def start(self, lease: Lease, resumed_from_step: int | None) -> None:
        """Says which step an attempt goes on from; later ones stay with the attempt before.

        So curve, pruner and checkpoint agree. Raises InvalidField for a step never reported.
        """
        if resumed_from_step is not None and resumed_from_step < 0:
            raise InvalidField("resumed_from_step", f"must be 0 or more, got {resumed_from_step}")

        def transaction(connection: sa.Connection) -> None:
            held = leases.hold(connection, lease, lease_seconds=self._lease_seconds)
            connection.execute(
                t.hpo_attempt.update()
                .where(t.hpo_attempt.c.token == lease.token)
                .values(resumed_from_step=resumed_from_step)
            )
            _archive_later_steps(
                connection, held, -1 if resumed_from_step is None else resumed_from_step
            )
            if resumed_from_step is not None:
                study = StudyKey(held.study_uuid, lease.study_name)
                facts = {"attempt": held.attempt, "resumed_from_step": resumed_from_step}
                append(connection, EventKind.ATTEMPT_RESUMED, study, held.number, **facts)

        self._database.write(transaction)

    def suggest(self, lease: Lease, name: str, parameter: Parameter) -> Choice:
        """The value of a parameter that the study does not declare; asked again, the same."""

        def begin(connection: sa.Connection) -> tuple[Any, Any, StudyDefinition, Any]:
            held = leases.hold(connection, lease, lease_seconds=self._lease_seconds)
            study, definition = row_and_definition(connection, lease.study_name)
            relative = connection.execute(
                sa.select(t.hpo_trial.c.relative_params).where(_trial(held))
            ).scalar_one()
            return held, study, definition, relative or {}

        held, study, definition, relative = self._database.write(begin)
        if name in (definition.space or {}):
            raise InvalidField(
                "name",
                f"{name!r} is not part of this trial: its condition (when) does not hold; ask "
                "trial.params whether it is there",
            )
        if definition.space is not None:
            raise InvalidField(
                "name",
                f"{name!r} is not in the study's space, which was declared when it was created "
                f"({', '.join(definition.space)}); declare it or fix it in settings",
            )
        drawn = self._search.suggest(definition, study, held.trial_id, name, parameter, relative)

        def write(connection: sa.Connection) -> None:
            leases.hold(connection, lease, lease_seconds=self._lease_seconds)
            param = t.trial_params.c
            mine = sa.and_(param.trial_id == held.trial_id, param.param_name == name)
            if connection.execute(sa.select(param.param_id).where(mine)).first() is None:
                row = {"trial_id": held.trial_id, **param_row(name, drawn)}
                connection.execute(t.trial_params.insert().values(row))

        self._database.write(write)
        return drawn.value

    def report(self, lease: Lease, measurement: Measurement, remarks: Remarks) -> Decision:
        """Stores one value and answers whether to go on.

        Raises StepReported for another value at a step that this attempt has reported.
        """

        def write(connection: sa.Connection) -> tuple[Any, Any, StudyDefinition, Decision | None]:
            held = leases.hold(connection, lease, lease_seconds=self._lease_seconds)
            study, definition = row_and_definition(connection, lease.study_name)
            _check_step(definition, measurement.step)
            store_remarks(connection, held, remarks)
            at_once = self._at_once(connection, study, definition, held, measurement)
            return held, study, definition, _store(connection, study, held, measurement, at_once)

        held, study, definition, decision = self._database.write(write)
        if decision is not None:
            return decision
        decision = self._asked(study, definition, held)

        def write_verdict(connection: sa.Connection) -> Decision:
            # Once more: meanwhile the lease may have gone to another attempt, which must not
            # be told what this one is told.
            leases.hold(connection, lease, lease_seconds=self._lease_seconds)
            return _store_verdict(connection, study, held, measurement, decision)

        return self._database.write(write_verdict)

    def _at_once(
        self,
        connection: sa.Connection,
        study: Any,
        definition: StudyDefinition,
        held: Any,
        measurement: Measurement,
    ) -> Decision | None:
        """The verdict that needs no pruner of Optuna's; None where it does."""
        order = order_to_trial(held) or order_to(study)
        if order is not None and order.verdict is not Verdict.PAUSE:
            return order
        if not math.isfinite(measurement.value):
            # Optuna's pruners compare the best value so far, so they would let it go on.
            evidence = {"step": measurement.step, "value": measurement.value}
            return Decision(verdict=Verdict.PRUNE, reason=Reason.DIVERGED, evidence=evidence)
        if not is_known(definition):
            return None

        def curve() -> Mapping[int, float]:
            earlier = steps_of(connection, [held.trial_id])[held.trial_id]
            return {**earlier, measurement.step: measurement.value}

        decision = decide_from(definition, curve, lambda: self._history.of(connection, study))
        return _or_pause(decision, order)

    def _asked(self, study: Any, definition: StudyDefinition, held: Any) -> Decision:
        """What Optuna's own pruner says."""
        decision = self._search.decide(definition, study, held.trial_id)
        return _or_pause(decision, order_to_trial(held) or order_to(study))


def _or_pause(decision: Decision, order: Decision | None) -> Decision:
    """A trial that is pruned anyhow need not be paused."""
    return order if order is not None and decision.verdict is Verdict.CONTINUE else decision


def _check_step(definition: StudyDefinition, step: int) -> None:
    if definition.max_steps is not None and step >= definition.max_steps:
        raise InvalidField(
            "step",
            f"must be below the study's max_steps ({definition.max_steps}), got {step}; "
            "steps count from 0",
        )


def _store(
    connection: sa.Connection,
    study: Any,
    held: Any,
    measurement: Measurement,
    decision: Decision | None,
) -> Decision | None:
    """Writes a value, with its verdict if that is known; answers the verdict that stands.

    Raises StepReported when this attempt has reported another value before.
    """
    decision = decision and _strict(decision)
    row = {
        "study_uuid": held.study_uuid,
        "number": held.number,
        "attempt": held.attempt,
        "step": measurement.step,
        "value": None if math.isnan(measurement.value) else measurement.value,
        "elapsed_seconds": measurement.elapsed_seconds,
        "metrics": strict(dict(measurement.metrics)),
        **({} if decision is None else _columns(decision)),
    }
    if not insert_if_new(connection, t.hpo_verdict, row):
        return _earlier(connection, held, measurement)
    key = {"trial_id": held.trial_id, "step": measurement.step}
    upsert(connection, t.trial_steps, key, to_step_columns(measurement.value))
    if decision is not None:
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


def _strict(decision: Decision) -> Decision:
    return replace(decision, evidence=strict(dict(decision.evidence)))


def _columns(decision: Decision) -> dict[str, Any]:
    return {
        "verdict": decision.verdict,
        "reason": decision.reason,
        "evidence": decision.evidence,
    }


def _store_verdict(
    connection: sa.Connection, study: Any, held: Any, measurement: Measurement, decision: Decision
) -> Decision:
    """Writes a verdict unless the same report, made twice, already has one."""
    decision = _strict(decision)
    mine = _verdict(held, measurement.step)
    written = connection.execute(
        t.hpo_verdict.update()
        .where(mine, t.hpo_verdict.c.verdict.is_(None))
        .values(_columns(decision))
    ).rowcount
    if written == 0:
        row = connection.execute(sa.select(t.hpo_verdict).where(mine)).one_or_none()
        stored = None if row is None else _decision(row)
        if stored is None:
            raise TrialFinished()
        return stored
    _announce(connection, study, held, measurement, decision)
    return decision


def _announce(
    connection: sa.Connection, study: Any, held: Any, measurement: Measurement, decision: Decision
) -> None:
    """Tells the trial what it was told, and listeners of the report."""
    _tell(connection, held, decision)
    facts = {"attempt": held.attempt, "step": measurement.step, "value": measurement.value}
    append(connection, EventKind.REPORT, study, held.number, **facts, verdict=decision.verdict)


def _tell(connection: sa.Connection, held: Any, decision: Decision) -> None:
    """Notes with the trial that it was told to end; what it was told first says why it did."""
    if decision.verdict not in (Verdict.PRUNE, Verdict.STOP):
        return
    told = _columns(decision)
    update = t.hpo_trial.update().where(_trial(held))
    if decision.verdict is Verdict.STOP:
        update = update.where(t.hpo_trial.c.told.is_(sa.null()))
    connection.execute(update.values(told=told))


def _decision(row: sa.Row[Any]) -> Decision | None:
    if row.verdict is None:
        return None
    return Decision(
        verdict=Verdict(row.verdict),
        reason=None if row.reason is None else Reason(row.reason),
        evidence=row.evidence or {},
    )


def _archive_later_steps(connection: sa.Connection, held: Any, last_step: int) -> None:
    """Takes steps out of the trial's curve; hpo_verdict keeps them with their own attempt.

    The rungs that a pruner noted at these steps go as well: successive halving and Hyperband
    count them, and store with each the value that it was reached with.
    """
    step, attr = t.trial_steps.c, t.trial_system_attrs.c
    later = sa.and_(step.trial_id == held.trial_id, step.step > last_step)
    if connection.execute(t.trial_steps.delete().where(later)).rowcount == 0:
        return
    kept = set(steps_of(connection, [held.trial_id])[held.trial_id].values())
    rungs = connection.execute(
        sa.select(attr.key, attr.value_json)
        .where(attr.trial_id == held.trial_id)
        .where(attr.key.startswith(RUNG_PREFIX, autoescape=True))
    )
    gone = [row.key for row in rungs if json.loads(row.value_json) not in kept]
    mine = sa.and_(attr.trial_id == held.trial_id, attr.key.in_(gone))
    connection.execute(t.trial_system_attrs.delete().where(mine))


def _trial(held: Any) -> sa.ColumnElement[bool]:
    return sa.and_(t.hpo_trial.c.study_uuid == held.study_uuid, t.hpo_trial.c.number == held.number)


def _verdict(held: Any, step: int) -> sa.ColumnElement[bool]:
    return sa.and_(
        t.hpo_verdict.c.study_uuid == held.study_uuid,
        t.hpo_verdict.c.number == held.number,
        t.hpo_verdict.c.attempt == held.attempt,
        t.hpo_verdict.c.step == step,
    )
