"""Studies that come from another server: written piece by piece, and all or nothing.

What has ended stands here as it stood there. What had not ended waits, paused, and the trials
that were running or enqueued are points to be tried: their checkpoints and leases stayed behind.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import secrets
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from hpo.choices import to_label
from hpo.errors import InvalidFields
from hpo.numbers import strict
from hpo.search.sampling import Drawn
from hpo.study import StudyDefinition, StudyState
from hpo.trial import TrialState
from storage import tables as t
from storage.adoption import difference
from storage.arriving import Arrival
from storage.bulk import TrialRows, chunks, insert_trials, note_many
from storage.deleting import Deleting
from storage.engine import Database, db_now
from storage.enqueueing import FIXED_PARAMS_KEY
from storage.params import distribution
from storage.records import StudyRecord
from storage.remarks import CONSTRAINT_PREFIX
from storage.requests import Answer, answered, once
from storage.search import param_row
from storage.studies import Studies, refuse_taken, within_grid, written
from storage.transfer import StudyCopy, TrialCopy, is_kept

Fault = tuple[str, str]
MAX_FAULTS = 20
_TWICE = "{0.number} stands there twice"
IMPORTED = "Imported before it had ended; resume it to go on."


@dataclass(frozen=True, kw_only=True, slots=True)
class Imported:
    """A study that has come; `n_waiting` of its trials are to be tried, `n_left_out` are not."""

    study: StudyRecord
    n_trials: int
    n_waiting: int
    n_left_out: int


@dataclass(kw_only=True, slots=True)
class _Tally:
    """What is known of a study when all of its trials have come."""

    n_trials: int = 0
    n_waiting: int = 0
    n_left_out: int = 0
    n_started: int = 0
    has_exclusion: bool = False

    def note(self, trial: TrialCopy, made: TrialRows) -> None:
        self.n_trials += 1
        self.n_waiting += not _is_over(made)
        self.n_started += _is_over(made) and trial.is_counted is True
        self.has_exclusion |= trial.exclusion is not None


class Importing:
    """Writes copies of studies."""

    def __init__(self, database: Database, studies: Studies, deleting: Deleting) -> None:
        self._database, self._studies, self._deleting = database, studies, deleting

    def write(
        self, copy: StudyCopy, trials: Iterable[TrialCopy], *, key: str | None, fingerprint: str
    ) -> Imported:
        """Raises InvalidFields with the trials at fault, or StudyExists when the name is taken.

        The trials are asked for one by one, while others are written.
        """
        copy = replace(copy, definition=within_grid(copy.definition))
        request = (key, "import_study", fingerprint)
        answer = self._database.read(lambda c: answered(c, *request))
        if answer is None:
            self._database.read(lambda c: _refuse_taken(c, copy))
            answer = self._bring(copy, trials, request)
        return Imported(study=self._studies.get(copy.definition.name), **answer)

    def _bring(
        self, copy: StudyCopy, trials: Iterable[TrialCopy], request: tuple[str | None, str, str]
    ) -> Answer:
        key, kind, fingerprint = request
        with self._deleting.arriving(copy.definition, str(uuid.uuid4())) as arrival:
            tally = _Tally()
            for chunk in chunks(_checked(copy, trials, tally)):
                arrival.add(lambda c, chunk=chunk: _insert(c, arrival, chunk))  # type: ignore[misc]  # a default binds it

            def transaction(connection: sa.Connection) -> Answer:
                def make() -> Answer:
                    _refuse_taken(connection, copy)
                    arrival.finish(connection, columns=_columns(copy, tally), origin="import")
                    names = ("n_trials", "n_waiting", "n_left_out")
                    return {name: getattr(tally, name) for name in names}

                return once(connection, key or arrival.uuid, kind, fingerprint, make)

            answer = written(self._database, transaction)
        note_many(self._database, tally.n_trials)
        return answer


def _refuse_taken(connection: sa.Connection, copy: StudyCopy) -> None:
    refuse_taken(connection, copy.definition.name, "import it under another name")


def _insert(
    connection: sa.Connection, arrival: Arrival, chunk: Sequence[tuple[TrialCopy, TrialRows]]
) -> None:
    ids = insert_trials(connection, arrival.study_id, [made for _, made in chunk])
    for table, rows_of in _OURS.items():
        ours = [
            {"study_uuid": arrival.uuid, "number": trial.number, **row}
            for (trial, made), trial_id in zip(chunk, ids, strict=True)
            for row in rows_of(trial, made, trial_id)
        ]
        if ours:
            connection.execute(table.insert(), ours)


def _columns(copy: StudyCopy, tally: _Tally) -> dict[str, Any]:
    """What of hpo_study is not as in a new study."""
    is_ended = copy.state.is_ended
    was_paused = copy.state is StudyState.PAUSED
    return {
        "state": (copy.state if is_ended else StudyState.PAUSED).value,
        "reason": copy.reason if is_ended or was_paused else IMPORTED,
        "n_started": tally.n_started,
        "ran_seconds": copy.ran_seconds,
        "history_revision": int(tally.has_exclusion),
        "created_at": copy.created_at,
        "archived_at": copy.archived_at if is_ended else None,
        "ended_at": (copy.ended_at or db_now()) if is_ended else None,
    }


def _is_over(made: TrialRows) -> bool:
    return made.state != "WAITING"


def _trial_rows(trial: TrialCopy, made: TrialRows, trial_id: int) -> Iterator[Mapping[str, Any]]:
    if not _is_over(made) or (trial.is_counted is None and made.is_feasible is None):
        return
    yield {
        "trial_id": trial_id,
        "n_attempts": trial.attempt,
        "told": trial.told,
        "reason": trial.reason,
        "message": trial.message,
        "is_feasible": made.is_feasible,
        "is_counted": trial.is_counted is True,
    }


def _exclusion_rows(
    trial: TrialCopy, made: TrialRows, trial_id: int
) -> Iterator[Mapping[str, Any]]:
    if trial.exclusion is not None and _is_over(made):
        excluded = trial.exclusion
        yield {
            "trial_id": trial_id,
            "reason": excluded.reason,
            "excluded_at": excluded.excluded_at,
        }


def _attempt_rows(trial: TrialCopy, made: TrialRows, _: int) -> Iterator[Mapping[str, Any]]:
    for record in trial.attempts if _is_over(made) else ():
        yield {
            "attempt": record.attempt,
            "token": secrets.token_hex(16),  # nobody holds it
            "worker_id": str(record.worker_id),
            "worker_name": record.worker_name,
            "device": record.device,
            "started_at": record.started_at,
            "ended_at": record.ended_at,
            "resumed_from_step": record.resumed_from_step,
            "outcome": record.outcome,
            "reason": record.reason,
            "message": record.message,
            "traceback": record.traceback,
        }


def _verdict_rows(trial: TrialCopy, made: TrialRows, _: int) -> Iterator[Mapping[str, Any]]:
    for point in trial.curve if _is_over(made) else ():
        if point.attempt is not None:
            yield {
                "attempt": point.attempt,
                "step": point.step,
                "value": None if math.isnan(point.value) else point.value,
                "elapsed_seconds": point.elapsed_seconds or 0.0,
                "metrics": strict(dict(point.metrics)),
                "verdict": point.verdict,
            }


_OURS: dict[sa.Table, Callable[[TrialCopy, TrialRows, int], Iterator[Mapping[str, Any]]]] = {
    t.hpo_trial: _trial_rows,
    t.hpo_exclusion: _exclusion_rows,
    t.hpo_attempt: _attempt_rows,
    t.hpo_verdict: _verdict_rows,
}


def _checked(
    copy: StudyCopy, trials: Iterable[TrialCopy], tally: _Tally
) -> Iterator[tuple[TrialCopy, TrialRows]]:
    """What will be written. Raises InvalidFields in the end when the study has faulty trials."""
    faults: list[Fault] = []
    first_at: dict[int, int] = {}
    for index, trial in enumerate(trials):
        if not trial.state.is_finished and copy.state.is_ended:
            tally.n_left_out += 1
            continue
        first = first_at.setdefault(trial.number, index)
        if first != index:
            faults += [(f"trials.{place}.number", _TWICE.format(trial)) for place in (first, index)]
        found = list(_faults(copy.definition, trial))
        faults += [(f"trials.{index}.{field}", sentence) for field, sentence in found]
        if len(faults) >= MAX_FAULTS:
            break
        if not faults:
            made = _as_rows(trial)
            tally.note(trial, made)
            yield trial, made
    if faults:
        raise InvalidFields(list(dict.fromkeys(faults))[:MAX_FAULTS])


def _as_rows(trial: TrialCopy) -> TrialRows:
    if not trial.state.is_finished:
        return TrialRows(
            number=trial.number,
            state="WAITING",
            user_attrs=trial.user_attrs,
            system_attrs=_fixed(trial.params or trial.enqueued),
        )
    attrs = _fixed(trial.enqueued)
    attrs |= {key: value for key, value in trial.system_attrs.items() if is_kept(key)}
    attrs |= {CONSTRAINT_PREFIX + name: value for name, value in trial.constraints.items()}
    return TrialRows(
        number=trial.number,
        state=trial.state.name,
        params=[_param(trial, name) for name in trial.params],
        values=trial.values,
        steps={point.step: point.value for point in trial.curve},
        user_attrs=trial.user_attrs,
        system_attrs=attrs,
        started_at=_naive(trial.started_at),
        ended_at=_naive(trial.ended_at),
    )


def _fixed(params: Mapping[str, Any] | None) -> dict[str, Any]:
    """As Optuna notes what a trial was enqueued with."""
    labels = {name: to_label(value) for name, value in (params or {}).items()}
    return {FIXED_PARAMS_KEY: labels} if labels else {}


def _param(trial: TrialCopy, name: str) -> dict[str, Any]:
    drawn_from = distribution(json.dumps(trial.distributions[name]))
    label = to_label(trial.params[name])
    internal = float(drawn_from.to_internal_repr(label))
    return param_row(name, Drawn(value=label, internal=internal, distribution=drawn_from))


def _naive(time: dt.datetime | None) -> dt.datetime | None:
    """As Optuna 5 stores it."""
    return None if time is None else time.astimezone(dt.UTC).replace(tzinfo=None)


def _faults(definition: StudyDefinition, trial: TrialCopy) -> Iterator[Fault]:
    steps = [point.step for point in trial.curve]
    if len(set(steps)) < len(steps):
        yield "curve", "has a step twice"
    attempts = [record.attempt for record in trial.attempts]
    if len(set(attempts)) < len(attempts):
        yield "attempts", "has an attempt twice"
    yield from _value_faults(definition, trial)
    if trial.state.is_finished:
        yield from _param_faults(definition, trial)


def _value_faults(definition: StudyDefinition, trial: TrialCopy) -> Iterator[Fault]:
    n_values = len(definition.directions)
    allowed = {n_values} if trial.state is TrialState.COMPLETE else {0, n_values}
    if len(trial.values) not in allowed:
        yield "values", f"must be {n_values}, one for each direction, got {len(trial.values)}"
    if any(math.isnan(value) for value in trial.values):
        yield "values", "must not be NaN"


def _param_faults(definition: StudyDefinition, trial: TrialCopy) -> Iterator[Fault]:
    for name in trial.params.keys() ^ trial.distributions.keys():
        yield f"params.{name}", "must stand in params and in distributions"
    for name in trial.params.keys() & trial.distributions.keys():
        sentence = _misfit(definition, name, trial.params[name], trial.distributions[name])
        if sentence is not None:
            yield f"params.{name}", sentence


def _misfit(definition: StudyDefinition, name: str, value: Any, document: Any) -> str | None:
    try:
        drawn_from = distribution(json.dumps(document))
    except (ValueError, TypeError, KeyError) as error:
        return f"has a distribution that Optuna does not know: {error}"
    try:
        fits = drawn_from._contains(drawn_from.to_internal_repr(to_label(value)))
    except (ValueError, TypeError, OverflowError):
        fits = False
    if not fits:
        return f"is not in its distribution, got {value!r:.60}"
    return None if definition.space is None else difference(drawn_from, name, definition.space)
