"""Trials as their owners look at them: parameters, curve, attempts, the reason of the end."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from hpo.errors import NotFound
from hpo.numbers import decode_number
from hpo.trial import Reason, TrialState, Verdict
from storage import tables as t
from storage.curves import steps_of
from storage.engine import Database
from storage.enqueueing import fixed_params_of
from storage.exclusions import exclusions_of
from storage.model_rows import models_of
from storage.params import params_of
from storage.records import AttemptRecord, CurvePoint, TrialRecord, TrialsPage
from storage.remarks import constraints_of
from storage.studies import row_and_definition
from storage.trial_order import TrialFilter, TrialOrder, beyond, place_of, value_of


class Trials:
    """Reads a page of trials with a fixed number of statements."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def page(
        self,
        study_name: str,
        *,
        states: Collection[TrialState] = (),
        wanted: TrialFilter | None = None,
        order: TrialOrder | None = None,
        limit: int = 50,
        after: int | str | None = None,
        curves: bool = False,
    ) -> TrialsPage:
        """By ascending number unless `order` says otherwise, beyond `after`. Raises NotFound.

        Raises InvalidField for an `after` that no page in this order has given.
        """
        order = order or TrialOrder()
        conditions = [beyond(order, after), *(wanted or TrialFilter()).conditions()]
        if states:
            conditions.append(t.trials.c.state.in_([state.value for state in states]))

        def read(connection: sa.Connection) -> TrialsPage:
            study, _ = row_and_definition(connection, study_name)
            rows = _rows(connection, study, sa.and_(*conditions), limit + 1, order)
            records = _records(connection, study, rows[:limit], details=curves)
            following = place_of(order, rows[limit - 1]) if len(rows) > limit else None
            return TrialsPage(items=records, next=following)

        return self._database.read(read)

    def get(self, study_name: str, number: int) -> TrialRecord:
        """One trial with its curve and attempts. Raises NotFound."""

        def read(connection: sa.Connection) -> TrialRecord:
            study, _ = row_and_definition(connection, study_name)
            rows = _rows(connection, study, t.trials.c.number == number, 1, TrialOrder())
            if not rows:
                raise NotFound(f"There is no trial {study_name}/{number}.")
            return _records(connection, study, rows, details=True)[0]

        return self._database.read(read)


def _rows(
    connection: sa.Connection,
    study: sa.Row[Any],
    condition: sa.ColumnElement[bool],
    limit: int,
    order: TrialOrder,
) -> Sequence[Any]:
    """The rows of a page; what is shown of them is looked up for the chosen ones only."""
    trial, ours, attempt = t.trials.c, t.hpo_trial.c, t.hpo_attempt.c
    chosen = (
        sa.select(trial.trial_id)
        .select_from(_with_ours(study))
        .where(trial.study_id == study.study_id, condition)
        .order_by(*order.clauses())
        .limit(limit)
    )
    select = (
        sa.select(
            *(trial.trial_id, trial.number, trial.state),
            *(trial.datetime_start, trial.datetime_complete),
            *(t.trial_values.c.value, t.trial_values.c.value_type),
            *(ours.n_attempts, ours.next_attempt_at, ours.told, ours.reason, ours.message),
            ours.is_feasible,
            *(attempt.worker_name, attempt.device),
            order.key.label("sort_key"),
        )
        .select_from(_with_last_attempt(study))
        .where(trial.trial_id.in_(chosen))
        .order_by(*order.clauses())
    )
    return connection.execute(select).all()


def _with_ours(study: sa.Row[Any]) -> sa.Join:
    """Optuna's trials beside what we know of them; foreign trials have nothing there."""
    trial, value, ours = t.trials.c, t.trial_values.c, t.hpo_trial.c
    is_value = sa.and_(value.trial_id == trial.trial_id, value.objective == 0)
    is_ours = sa.and_(ours.study_uuid == study.uuid, ours.number == trial.number)
    return t.trials.outerjoin(t.trial_values, is_value).outerjoin(t.hpo_trial, is_ours)


def _with_last_attempt(study: sa.Row[Any]) -> sa.Join:
    attempt = t.hpo_attempt.c
    is_last = sa.and_(
        attempt.study_uuid == study.uuid,
        attempt.number == t.trials.c.number,
        attempt.attempt == t.hpo_trial.c.n_attempts,
    )
    return _with_ours(study).outerjoin(t.hpo_attempt, is_last)


def _records(
    connection: sa.Connection, study: sa.Row[Any], rows: Sequence[sa.Row[Any]], *, details: bool
) -> list[TrialRecord]:
    ids = [row.trial_id for row in rows]
    params, attrs, steps = (
        params_of(connection, ids),
        _attrs(connection, ids),
        steps_of(connection, ids),
    )
    numbers = [row.number for row in rows]
    enqueued, excluded = fixed_params_of(connection, ids), exclusions_of(connection, study, numbers)
    models = models_of(connection, [(study.uuid, number) for number in numbers])
    records = [
        replace(
            _record(row, params[row.trial_id], attrs[row.trial_id], steps[row.trial_id]),
            enqueued=enqueued.get(row.trial_id),
            exclusion=excluded.get(row.number),
            model=models.get((study.uuid, row.number)),
        )
        for row in rows
    ]
    records = _with_values(connection, study, rows, records)
    if not details:
        return records
    attempts = _attempts(connection, study.uuid, numbers)
    facts = _step_facts(connection, study.uuid, numbers)
    return [
        replace(
            record,
            attempts=attempts[record.number],
            curve=_curve(steps[row.trial_id], facts[record.number]),
        )
        for record, row in zip(records, rows, strict=True)
    ]


def _record(
    row: sa.Row[Any],
    params: Mapping[str, Any],
    attrs: Mapping[str, Any],
    steps: Mapping[int, float],
) -> TrialRecord:
    state = TrialState[row.state.name]
    last_step = max(steps) if steps else None
    return TrialRecord(
        number=row.number,
        state=state,
        value=value_of(row),
        params=params,
        user_attrs=attrs,
        reason=None if row.reason is None else Reason(row.reason),
        message=row.message or "",
        attempt=row.n_attempts or 0,
        awaiting_attempt=row.next_attempt_at is not None,
        worker_name=row.worker_name,
        device=row.device,
        last_step=last_step,
        last_value=None if last_step is None else steps[last_step],
        prune=row.told["evidence"] if row.told and state is TrialState.PRUNED else None,
        started_at=aware(row.datetime_start),
        ended_at=aware(row.datetime_complete),
    )


def _with_values(
    connection: sa.Connection,
    study: sa.Row[Any],
    rows: Sequence[sa.Row[Any]],
    records: Sequence[TrialRecord],
) -> list[TrialRecord]:
    """With all values where the study has several directions, and with the constraints."""
    judged = [row.trial_id for row in rows if row.is_feasible is not None]
    constraints = constraints_of(connection, judged) if judged else {}
    several = len(study.definition["directions"]) > 1
    values = values_of(connection, [row.trial_id for row in rows]) if several else {}
    return [
        replace(
            record,
            value=None if several else record.value,
            values=values.get(row.trial_id, () if record.value is None else (record.value,)),
            constraints=constraints.get(row.trial_id, {}),
        )
        for row, record in zip(rows, records, strict=True)
    ]


def values_of(connection: sa.Connection, trial_ids: Sequence[int]) -> dict[int, list[float]]:
    """Each trial's values in the order of the study's directions."""
    found: dict[int, list[float]] = {trial_id: [] for trial_id in trial_ids}
    value = t.trial_values.c
    rows = connection.execute(
        sa.select(value.trial_id, value.value, value.value_type)
        .where(value.trial_id.in_(trial_ids))
        .order_by(value.trial_id, value.objective)
    )
    for row in rows:
        number = value_of(row)
        assert number is not None
        found[row.trial_id].append(number)
    return found


def aware(time: dt.datetime | None) -> dt.datetime | None:
    """Optuna 5 stores naive UTC."""
    return None if time is None else time.replace(tzinfo=dt.UTC)


def _attrs(connection: sa.Connection, trial_ids: Sequence[int]) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {trial_id: {} for trial_id in trial_ids}
    attr = t.trial_user_attrs.c
    rows = connection.execute(
        sa.select(attr.trial_id, attr.key, attr.value_json).where(attr.trial_id.in_(trial_ids))
    )
    for trial_id, key, document in rows:
        found[trial_id][key] = json.loads(document)
    return found


def _attempts(
    connection: sa.Connection, study_uuid: str, numbers: Sequence[int]
) -> dict[int, list[AttemptRecord]]:
    found: dict[int, list[AttemptRecord]] = {number: [] for number in numbers}
    attempt = t.hpo_attempt.c
    rows = connection.execute(
        sa.select(t.hpo_attempt)
        .where(attempt.study_uuid == study_uuid, attempt.number.in_(numbers))
        .order_by(attempt.number, attempt.attempt)
    )
    for row in rows:
        record = AttemptRecord(
            attempt=row.attempt,
            worker_id=uuid.UUID(row.worker_id),
            worker_name=row.worker_name,
            device=row.device,
            started_at=row.started_at,
            ended_at=row.ended_at,
            resumed_from_step=row.resumed_from_step,
            outcome=row.outcome,
            reason=None if row.reason is None else Reason(row.reason),
            message=row.message,
            traceback=row.traceback,
        )
        found[row.number].append(record)
    return found


def _step_facts(
    connection: sa.Connection, study_uuid: str, numbers: Sequence[int]
) -> dict[int, dict[int, sa.Row[Any]]]:
    """By trial and step, what its last attempt said of it."""
    found: dict[int, dict[int, sa.Row[Any]]] = {number: {} for number in numbers}
    verdict = t.hpo_verdict.c
    rows = connection.execute(
        sa.select(t.hpo_verdict)
        .where(verdict.study_uuid == study_uuid, verdict.number.in_(numbers))
        .order_by(verdict.attempt)
    )
    for row in rows:
        found[row.number][row.step] = row
    return found


def _curve(steps: Mapping[int, float], facts: Mapping[int, sa.Row[Any]]) -> list[CurvePoint]:
    return [_point(step, value, facts.get(step)) for step, value in sorted(steps.items())]


def _point(step: int, value: float, fact: sa.Row[Any] | None) -> CurvePoint:
    if fact is None:  # reported by another Optuna program
        return CurvePoint(step=step, value=value)
    return CurvePoint(
        step=step,
        value=value,
        attempt=fact.attempt,
        elapsed_seconds=fact.elapsed_seconds,
        metrics={name: decode_number(number) for name, number in fact.metrics.items()},
        verdict=None if fact.verdict is None else Verdict(fact.verdict),
    )
