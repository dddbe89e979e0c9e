"""What users change of a study while it stands: its state, its budget, its labels, its archiving.

Each change is one transaction under the lock on Optuna's `studies` row, and safe to repeat.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from hpo.errors import Conflict, InvalidField, PreconditionFailed
from hpo.events import EventKind
from hpo.search.samplers import grid_cells
from hpo.study import StudyDefinition, StudyState
from hpo.trial import Decision, Reason, Verdict
from storage import tables as t
from storage.documents import BUDGET_FIELDS
from storage.ending import cut_off, end_if_done, too_much_failed
from storage.engine import Database, db_now
from storage.events import append
from storage.limits import started_clock, stopped_clock, timeout_message
from storage.records import StudyRecord
from storage.studies import LABELS, Studies, definition_of, locked_study, study_row, version_of

RUNNING, PAUSED, STOPPING, STOPPED = (
    StudyState.RUNNING,
    StudyState.PAUSED,
    StudyState.STOPPING,
    StudyState.STOPPED,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Transition:
    """From which states a study changes, and in which ones there is nothing left to do."""

    of: frozenset[StudyState]
    done: frozenset[StudyState]
    values: Mapping[str, Any]


_PAUSE = _Transition(
    of=frozenset({RUNNING}),
    done=frozenset({PAUSED}),
    values={"state": PAUSED, "reason": "Paused on request.", **stopped_clock()},
)
_RESUME = _Transition(
    of=frozenset({PAUSED}),
    done=frozenset({RUNNING}),
    values={"state": RUNNING, "reason": None, **started_clock()},
)
_STOP = _Transition(
    of=frozenset({RUNNING, PAUSED}),
    done=frozenset({STOPPING, STOPPED}),
    values={"state": STOPPING, "reason": "Stopped on request.", "stop_reason": None},
)
_CANCEL = _Transition(
    of=frozenset({RUNNING, PAUSED, STOPPING}),
    done=frozenset({STOPPED}),
    values={"state": STOPPING, "reason": "Cancelled on request.", "stop_reason": Reason.CANCELLED},
)


class Lifecycle:
    """Changes studies. Every method raises NotFound, and Conflict where the state forbids it."""

    def __init__(self, database: Database, studies: Studies) -> None:
        self._database, self._studies = database, studies

    def pause(self, name: str) -> StudyRecord:
        """Hands out nothing more; running trials give themselves back at their next report."""
        return self._change(name, lambda c, study: _pass(c, study, _PAUSE))

    def resume(self, name: str) -> StudyRecord:
        """Lets a paused study go on; its trials are claimable at once."""

        def resume(connection: sa.Connection, study: sa.Row[Any]) -> None:
            _refuse_archived(study)
            _pass(connection, study, _RESUME)

        return self._change(name, resume)

    def stop(self, name: str) -> StudyRecord:
        """Starts no more trials; the study ends when the running ones have."""
        return self._change(name, lambda c, study: _pass(c, study, _STOP))

    def cancel(self, name: str, *, now: bool = False) -> StudyRecord:
        """As `stop`, and running trials are told to end at their next report, or end `now`."""

        def cancel(connection: sa.Connection, study: sa.Row[Any]) -> None:
            _pass(connection, study, _CANCEL)
            if now:
                cut_off(connection, study, _CANCEL.values["reason"])

        return self._change(name, cancel)

    def archive(self, name: str) -> StudyRecord:
        """Leaves a study that starts no trials out of lists, where these do not ask for it."""
        return self._change(name, _archive)

    def unarchive(self, name: str) -> StudyRecord:
        """Lists it again, and lets it go on."""
        return self._change(name, _unarchive)

    def amend(
        self, name: str, changes: Mapping[str, Any], *, versions: Collection[str] | None = None
    ) -> StudyRecord:
        """Changes the budget, the priority and the labels; an ended study with room goes on.

        Raises InvalidField for a value that cannot be, Conflict when more trials were asked for
        and the study cannot go on, PreconditionFailed when the study has none of `versions`.
        """

        def change(connection: sa.Connection, study: sa.Row[Any]) -> None:
            if versions is not None and version_of(study) not in versions:
                raise PreconditionFailed(study=name, version=version_of(study))
            amend_study(connection, study, changes)

        return self._change(name, change)

    def _change(
        self, name: str, change: Callable[[sa.Connection, sa.Row[Any]], None]
    ) -> StudyRecord:
        def transaction(connection: sa.Connection) -> None:
            found = locked_study(connection, name)
            change(connection, found)
            end_if_done(connection, found)

        self._database.write(transaction)
        return self._studies.get(name)


def order_to(study: sa.Row[Any]) -> Decision | None:
    """What a study tells its running trials at their next report, before any pruner is asked."""
    state = StudyState(study.state)
    if state is PAUSED:
        evidence = {"message": study.reason}
        return Decision(verdict=Verdict.PAUSE, reason=Reason.PREEMPTED, evidence=evidence)
    if state is RUNNING and study.is_over_time:
        return _stop(Reason.TIMED_OUT, timeout_message(study))
    if study.stop_reason is not None:
        return _stop(Reason(study.stop_reason), study.reason)
    if state.is_ended:  # it has failed while others of its trials were running
        return _stop(Reason.CANCELLED, study.reason)
    return None


def _stop(reason: Reason, message: str) -> Decision:
    return Decision(verdict=Verdict.STOP, reason=reason, evidence={"message": message})


def _pass(connection: sa.Connection, study: sa.Row[Any], transition: _Transition) -> None:
    state = StudyState(study.state)
    if state in transition.done:
        return
    if state not in transition.of:
        wanted = transition.values["state"]
        raise Conflict(
            f"Study {study.name!r} is {state} and cannot become {wanted}: {study.reason}",
            study=study.name,
            state=state,
        )
    _update(connection, study, transition.values)
    _tell_state(connection, study, transition)


def _archive(connection: sa.Connection, study: sa.Row[Any]) -> None:
    state = StudyState(study.state)
    if study.archived_at is not None:
        return
    if not (state.is_ended or state is PAUSED):
        raise Conflict(
            f"Study {study.name!r} is {state}; pause it, or archive it when it has ended.",
            study=study.name,
            state=state,
        )
    _update(connection, study, {"archived_at": db_now()})
    append(connection, EventKind.STUDY_ARCHIVED, study)


def _unarchive(connection: sa.Connection, study: sa.Row[Any]) -> None:
    if study.archived_at is None:
        return
    if study.state == StudyState.DELETING:
        raise Conflict(f"Study {study.name!r} is being deleted.", study=study.name)
    _update(connection, study, {"archived_at": None})
    append(connection, EventKind.STUDY_UNARCHIVED, study)


def _refuse_archived(study: sa.Row[Any]) -> None:
    if study.archived_at is not None:
        raise Conflict(
            f"Study {study.name!r} is archived; unarchive it first, and it can go on.",
            study=study.name,
            state=study.state,
        )


def _tell_state(connection: sa.Connection, study: sa.Row[Any], transition: _Transition) -> None:
    state, reason = transition.values["state"], transition.values["reason"]
    append(connection, EventKind.STUDY_STATE, study, state=state, reason=reason)


def _update(connection: sa.Connection, study: sa.Row[Any], values: Mapping[str, Any]) -> None:
    mine = t.hpo_study.c.uuid == study.uuid
    connection.execute(t.hpo_study.update().where(mine).values(**values))


def amend_study(connection: sa.Connection, study: sa.Row[Any], changes: Mapping[str, Any]) -> None:
    """`Lifecycle.amend` within a transaction that holds the study's lock."""
    wanted = _checked(study, definition_of(study), changes)
    changed = {name: value for name, value in wanted.items() if getattr(study, name) != value}
    if not changed:
        return
    if study.state == StudyState.DELETING:
        raise Conflict(f"Study {study.name!r} is being deleted.", study=study.name)
    labels = {name: changed.pop(name) for name in LABELS if name in changed}
    if labels:
        _update(connection, study, labels)
        append(connection, EventKind.STUDY_LABELS, study, **labels)
    if changed:
        _amend_budget(connection, study, changed)


def _amend_budget(
    connection: sa.Connection, study: sa.Row[Any], changed: Mapping[str, Any]
) -> None:
    if study.state == STOPPING:
        raise Conflict(f"Study {study.name!r} is stopping; change it when it has ended.")
    _update(connection, study, changed)
    append(connection, EventKind.STUDY_BUDGET, study, **changed)
    if not StudyState(study.state).is_ended:
        return
    obstacle = _obstacle(connection, study, changed)
    if obstacle is None:
        _refuse_archived(study)
        _update(connection, study, {**_RESUME.values, "ended_at": None})
        _tell_state(connection, study, _RESUME)
    elif changed.get("n_trials", 0) > study.n_trials:
        raise Conflict(
            f"Study {study.name!r} is {study.state} and cannot go on: {obstacle}",
            study=study.name,
            state=study.state,
        )


def _checked(
    study: sa.Row[Any], definition: StudyDefinition, changes: Mapping[str, Any]
) -> dict[str, Any]:
    """The changes if they can be; a grid has no more trials than cells."""
    wanted = dict(changes)
    replace(definition.budget, **{k: v for k, v in wanted.items() if k in BUDGET_FIELDS})
    replace(definition, **{k: v for k, v in wanted.items() if k in LABELS})
    cells = grid_cells(definition)
    if "n_trials" in wanted and cells is not None:
        wanted["n_trials"] = min(wanted["n_trials"], cells)
    if wanted.get("n_trials", study.n_started) < study.n_started:
        raise InvalidField(
            "n_trials",
            f"must be {study.n_started} or more, as so many trials have been started, "
            f"got {wanted['n_trials']}",
        )
    return wanted


def _obstacle(
    connection: sa.Connection, before: sa.Row[Any], changed: Mapping[str, Any]
) -> str | None:
    """Why an ended study ends all the same with its new budget; None when it goes on."""
    study = study_row(connection, t.hpo_study.c.uuid == before.uuid)
    assert study is not None, "its lock is held"
    if study.state == StudyState.STOPPED:
        return f"{study.reason} Create another study."
    if study.state == StudyState.FAILED:
        failure = too_much_failed(connection, study)
        if failure is None and "max_failed_trials" in changed:
            return None
        if failure is None and before.n_started >= before.n_trials:  # every trial failed
            is_more = study.n_started < study.n_trials
            return None if is_more else f"{study.reason} Raise n_trials to let it go on."
        return f"{failure or study.reason} Raise max_failed_trials to let it go on."
    if study.is_over_time:
        return f"{timeout_message(study)} Raise it to let the study go on."
    return None if study.n_started < study.n_trials else "Its trials are spent; raise n_trials."
