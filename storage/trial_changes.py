"""What users change of one trial: they cancel it, take it out of the results, and in again.

Each change is one transaction under the lock on Optuna's `studies` row, and safe to repeat.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from hpo.errors import Conflict
from hpo.events import EventKind
from hpo.trial import TrialState
from storage import exclusions
from storage.cancelling import cancel, trial_row
from storage.ending import end_if_done
from storage.engine import Database
from storage.events import append
from storage.studies import locked_study

Change = Callable[[sa.Connection, sa.Row[Any]], None]


class TrialChanges:
    """Every method raises NotFound, and Conflict where the trial's state forbids the change."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def cancel(self, study_name: str, number: int) -> None:
        """Ends a trial; one that a worker holds is told so at its next report."""

        def change(connection: sa.Connection, study: sa.Row[Any]) -> None:
            cancel(connection, study, number)
            end_if_done(connection, study)

        self._change(study_name, change)

    def exclude(self, study_name: str, number: int, reason: str) -> None:
        """Takes a finished trial out of best, history and analysis; it stays visible."""

        def change(connection: sa.Connection, study: sa.Row[Any]) -> None:
            trial = trial_row(connection, study, number)
            state = TrialState[trial.state.name]
            if not state.is_finished:
                raise Conflict(
                    f"Trial {study_name}/{number} is {state}; only one that has ended can be "
                    "excluded. Cancel it first.",
                    state=state,
                )
            if exclusions.exclude(connection, study, trial, reason):
                append(connection, EventKind.TRIAL_EXCLUDED, study, number, reason=reason)

        self._change(study_name, change)

    def include(self, study_name: str, number: int) -> None:
        """Takes an excluded trial in again."""

        def change(connection: sa.Connection, study: sa.Row[Any]) -> None:
            trial_row(connection, study, number)
            if exclusions.include(connection, study, number):
                append(connection, EventKind.TRIAL_INCLUDED, study, number)

        self._change(study_name, change)

    def _change(self, study_name: str, change: Change) -> None:
        self._database.write(lambda c: change(c, locked_study(c, study_name)))
