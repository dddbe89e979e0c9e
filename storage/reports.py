"""Reports: a measurement goes in, a verdict comes out, and both stand in the database.

The ordinary one takes one statement (`storage.fast_reports`). All others are decided here, and
value and verdict are written in one transaction where the verdict follows from what is at hand:
an order to stop, or a pruner that compares percentiles. Other pruners write attributes of their
own, so there it takes three steps: write the value under the lease, ask the pruner without holding
anything, write the verdict. A report that is repeated, also after a crash in between, gets one and
the same verdict.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from hpo.errors import InvalidField
from hpo.events import EventKind
from hpo.search.percentiles import decide_from, is_known
from hpo.space import Choice, Parameter
from hpo.study import StudyDefinition
from hpo.trial import Decision, Measurement, Verdict
from storage import leases
from storage import tables as t
from storage.attempts import Attempt, Attempts, read_attempt
from storage.cancelling import order_to_trial
from storage.curves import steps_of
from storage.engine import Database
from storage.events import StudyKey, append
from storage.fast_reports import FastReports
from storage.lifecycle import order_to
from storage.records import Lease, Remarks
from storage.remarks import store_remarks
from storage.search import Search, param_row
from storage.step_history import StepHistory
from storage.studies import row_and_definition
from storage.verdicts import diverged, store, store_verdict

# Optuna's key (5.0) for the value at which a trial has reached a rung.
RUNG_PREFIX = "completed_rung_"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Reported:
    """A report whose value is stored; `decision` None: the pruner is still to be asked."""

    study: Any
    definition: StudyDefinition
    held: Any
    attempt: Attempt
    decision: Decision | None


class Reports:
    """What a running attempt says of itself before its end."""

    def __init__(
        self,
        database: Database,
        search: Search,
        attempts: Attempts,
        history: StepHistory,
        *,
        lease_seconds: float,
    ) -> None:
        self._database, self._search = database, search
        self._attempts, self._history = attempts, history
        self._lease_seconds = lease_seconds
        self._fast = FastReports(database, attempts, history, lease_seconds=lease_seconds)

    def start(self, lease: Lease, resumed_from_step: int | None) -> None:
        """Says which step an attempt goes on from; later ones stay with the attempt before.

        So curve, pruner and checkpoint agree. Raises InvalidField for a step never reported.
        """
        if resumed_from_step is not None and resumed_from_step < 0:
            raise InvalidField("resumed_from_step", f"must be 0 or more, got {resumed_from_step}")
        if resumed_from_step is None and self._fast.start(lease):
            return

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
            held = self._keep(connection, lease)
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
            self._keep(connection, lease)
            param = t.trial_params.c
            mine = sa.and_(param.trial_id == held.trial_id, param.param_name == name)
            if connection.execute(sa.select(param.param_id).where(mine)).first() is None:
                row = {"trial_id": held.trial_id, **param_row(name, drawn)}
                connection.execute(t.trial_params.insert().values(row))

        self._database.write(write)
        return drawn.value

    def _keep(self, connection: sa.Connection, lease: Lease) -> Any:
        return leases.hold(connection, lease, lease_seconds=self._lease_seconds, is_revised=False)

    def report(self, lease: Lease, measurement: Measurement, remarks: Remarks) -> Decision:
        """Stores one value and answers whether to go on.

        Raises StepReported for another value at a step that this attempt has reported.
        """
        decision = None if remarks else self._fast.report(lease, measurement)
        return decision or self._report(lease, measurement, remarks)

    def _report(self, lease: Lease, measurement: Measurement, remarks: Remarks) -> Decision:
        def write(connection: sa.Connection) -> _Reported:
            held = leases.hold(connection, lease, lease_seconds=self._lease_seconds)
            study, definition = row_and_definition(connection, lease.study_name)
            _check_step(definition, measurement.step)
            store_remarks(connection, held, remarks)
            known = self._known(connection, lease, held, definition)
            at_once = self._at_once(connection, study, known, held, measurement)
            stored = store(connection, study, held, measurement, at_once)
            attempt = known.hearing(None, held.revision)
            if stored.is_new:
                attempt = known.after(measurement, stored.decision, held.revision)
            return _Reported(
                study=study,
                definition=definition,
                held=held,
                attempt=attempt,
                decision=stored.decision,
            )

        reported = self._database.write(write)
        # Only now: had it not come to a commit, another write would have this revision.
        self._attempts.learn(lease.token, reported.attempt)
        return reported.decision or self._ask(lease, reported, measurement)

    def _known(
        self, connection: sa.Connection, lease: Lease, held: Any, definition: StudyDefinition
    ) -> Attempt:
        known = self._attempts.find(lease)
        if known is not None and known.revision == held.revision - 1:
            return known
        return read_attempt(connection, held, lease.study_name, definition)

    def _ask(self, lease: Lease, reported: _Reported, measurement: Measurement) -> Decision:
        """The verdict of Optuna's own pruner, once it is stored."""
        study, held = reported.study, reported.held
        decision = self._search.decide(reported.definition, study, held.trial_id)
        decision = _or_pause(decision, order_to_trial(held) or order_to(study))

        def write_verdict(connection: sa.Connection) -> tuple[Any, Decision]:
            # Once more: meanwhile the lease may have gone to another attempt, which must not
            # be told what this one is told.
            again = leases.hold(connection, lease, lease_seconds=self._lease_seconds)
            return again, store_verdict(connection, study, held, measurement, decision)

        again, stands = self._database.write(write_verdict)
        if again.revision == held.revision + 1:
            self._attempts.learn(lease.token, reported.attempt.hearing(stands, again.revision))
        return stands

    def _at_once(
        self,
        connection: sa.Connection,
        study: Any,
        known: Attempt,
        held: Any,
        measurement: Measurement,
    ) -> Decision | None:
        """The verdict that needs no pruner of Optuna's; None where it does."""
        order = order_to_trial(held) or order_to(study)
        if order is not None and order.verdict is not Verdict.PAUSE:
            return order
        decision = diverged(measurement)
        if decision is not None:
            return decision
        if not is_known(known.definition):
            return None
        decision = decide_from(
            known.definition,
            lambda: {**known.curve, measurement.step: measurement.value},
            lambda: self._history.of(connection, study.uuid),
        )
        return _or_pause(decision, order)


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
