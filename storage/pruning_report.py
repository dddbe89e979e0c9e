"""What pruning did in a study: which trials, what it spared, and how close a call it was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from hpo.study import Direction, StudyDefinition
from storage import tables as t
from storage.exclusions import is_excluded, is_result

PRUNER = "pruner"  # a trial that the pruner ended has no other reason


@dataclass(frozen=True, kw_only=True, slots=True)
class NearestPruned:
    """The pruned trial whose last value was the nearest to that of the best trial at its step.

    A negative gap: it was ahead of the trial that became the best.
    """

    number: int
    step: int
    value: float
    best_number: int
    best_value: float
    gap: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PruningReport:
    """Steps are those of pruned and complete trials; `max_steps` None: nobody knows how many.

    It is the study's, or else the longest curve of a complete trial. `saved_steps` is what the
    pruned trials did not do of it, `share` that part of all steps without pruning.
    """

    n_pruned: int
    n_complete: int
    by_reason: Mapping[str, int]
    max_steps: int | None
    done_steps: int
    saved_steps: int | None
    share: float | None
    nearest: NearestPruned | None


@dataclass(frozen=True, slots=True)
class _Steps:
    """Of the trials in one state: how many, steps in all, the longest curve."""

    n_trials: int = 0
    done: int = 0
    longest: int = 0


def pruning_report(
    connection: sa.Connection, study: sa.Row[Any], definition: StudyDefinition
) -> PruningReport:
    steps = _steps(connection, study)
    pruned, complete = steps.get("PRUNED", _Steps()), steps.get("COMPLETE", _Steps())
    max_steps = definition.max_steps or complete.longest or None
    saved = None if max_steps is None else max(0, pruned.n_trials * max_steps - pruned.done)
    done = pruned.done + complete.done
    total = done + (saved or 0)
    return PruningReport(
        n_pruned=pruned.n_trials,
        n_complete=complete.n_trials,
        by_reason=_reasons(connection, study),
        max_steps=max_steps,
        done_steps=done,
        saved_steps=saved,
        share=None if saved is None else saved / total if total else 0.0,
        nearest=_nearest(connection, study, definition),
    )


def _last_steps(study: sa.Row[Any]) -> sa.Subquery:
    """Trials that were pruned or completed, with the last step of their curves."""
    trial, step = t.trials.c, t.trial_steps.c
    return (
        sa.select(
            *(trial.trial_id, trial.number, trial.state),
            sa.func.max(step.step).label("last_step"),
        )
        .select_from(t.trials.outerjoin(t.trial_steps, step.trial_id == trial.trial_id))
        .where(trial.study_id == study.study_id, trial.state.in_(["PRUNED", "COMPLETE"]))
        .where(~is_excluded())
        .group_by(trial.trial_id, trial.number, trial.state)
        .subquery()
    )


def _steps(connection: sa.Connection, study: sa.Row[Any]) -> dict[str, _Steps]:
    curve = _last_steps(study).c
    n_steps = sa.func.coalesce(sa.cast(curve.last_step, sa.BigInteger) + 1, 0)
    rows = connection.execute(
        sa.select(
            curve.state, sa.func.count(), sa.func.sum(n_steps), sa.func.max(n_steps)
        ).group_by(curve.state)
    )
    return {state.name: _Steps(n, int(done), int(longest)) for state, n, done, longest in rows}


def _reasons(connection: sa.Connection, study: sa.Row[Any]) -> dict[str, int]:
    trial, ours = t.trials.c, t.hpo_trial.c
    is_ours = sa.and_(ours.study_uuid == study.uuid, ours.number == trial.number)
    rows = connection.execute(
        sa.select(ours.reason, sa.func.count())
        .select_from(t.trials.outerjoin(t.hpo_trial, is_ours))
        .where(trial.study_id == study.study_id, trial.state == "PRUNED", ~is_excluded())
        .group_by(ours.reason)
        .order_by(ours.reason)
    )
    return {reason or PRUNER: n_trials for reason, n_trials in rows}


def _nearest(
    connection: sa.Connection, study: sa.Row[Any], definition: StudyDefinition
) -> NearestPruned | None:
    """None unless a pruned trial's last step is one that the best trial has reported, too."""
    sign = -1.0 if definition.direction is Direction.MAXIMIZE else 1.0
    curve, best = _last_steps(study).c, _best(study, sign).cte("best")
    own, theirs = t.trial_steps.alias("own"), t.trial_steps.alias("theirs")
    finite = t.StepType.FINITE
    rows = connection.execute(
        sa.select(
            *(curve.number, own.c.step, own.c.intermediate_value.label("value")),
            *(best.c.number.label("best_number"), theirs.c.intermediate_value.label("best_value")),
        )
        .join(own, sa.and_(own.c.trial_id == curve.trial_id, own.c.step == curve.last_step))
        .join(best, sa.true())
        .join(theirs, sa.and_(theirs.c.trial_id == best.c.trial_id, theirs.c.step == own.c.step))
        .where(curve.state == "PRUNED")
        .where(own.c.intermediate_value_type == finite)
        .where(theirs.c.intermediate_value_type == finite)
    )
    # Not in SQL: PostgreSQL refuses a difference beyond the largest number.
    found = [NearestPruned(**row._mapping, gap=sign * (row.value - row.best_value)) for row in rows]
    return min(found, key=lambda trial: (trial.gap, trial.number), default=None)


def _best(study: sa.Row[Any], sign: float) -> sa.Select[Any]:
    trial, value = t.trials.c, t.trial_values.c
    return (
        sa.select(trial.trial_id, trial.number)
        .join(t.trial_values, value.trial_id == trial.trial_id)
        .where(trial.study_id == study.study_id, trial.state == "COMPLETE", is_result())
        .where(value.objective == 0, value.value_type == t.ValueType.FINITE)
        .order_by(sign * value.value, trial.number)
        .limit(1)
    )
