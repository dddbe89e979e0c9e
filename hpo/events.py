"""Events: what happened to studies, trials and workers, as the service tells those who listen."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class EventKind(enum.StrEnum):
    """What an event tells; the comment names what its `data` hold."""

    STUDY_CREATED = "study_created"  # objective, n_trials, origin (clone, import, adopt)
    STUDY_STATE = "study_state"  # state, reason
    STUDY_BUDGET = "study_budget"  # what has changed
    STUDY_LABELS = "study_labels"  # what has changed of tags and notes
    STUDY_ARCHIVED = "study_archived"
    STUDY_UNARCHIVED = "study_unarchived"
    STUDY_DELETED = "study_deleted"
    TRIAL_ENQUEUED = "trial_enqueued"  # params
    TRIAL_EXCLUDED = "trial_excluded"  # reason
    TRIAL_INCLUDED = "trial_included"
    TRIAL_STARTED = "trial_started"  # attempt 1, worker, device
    ATTEMPT_STARTED = "attempt_started"  # attempt, worker, device
    ATTEMPT_RESUMED = "attempt_resumed"  # attempt, resumed_from_step
    REPORT = "report"  # attempt, step, value, verdict
    ATTEMPT_ENDED = "attempt_ended"  # attempt, reason, message: the trial waits for the next one
    TRIAL_ENDED = "trial_ended"  # state, reason, message, value, values
    WORKER_REGISTERED = "worker_registered"  # worker, name
    # Events that the listener has not seen are gone, or its place in the stream is unknown.
    RESET = "reset"  # message
    # The stream has told all that was asked for; others end without it, and are opened again.
    END = "end"


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One event. `id` is its place in the stream, to go on after it later."""

    id: str
    kind: str
    study: str | None = None
    number: int | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    created_at: str | None = None
