"""Every error that hpo raises for the state of the world; bad arguments are plain ValueErrors.

    HpoError
    ├── NotFound            a study, trial or worker that does not exist
    │   └── NoCompletedTrial
    ├── Conflict            the request is fine, the state of the world forbids it
    │   ├── StudyExists
    │   ├── LeaseLost
    │   ├── TrialFinished
    │   ├── StepReported
    │   ├── IdempotencyKeyReused
    │   ├── TooFewTrials
    │   ├── PreconditionFailed
    │   ├── ModelRefused
    │   └── VersionMismatch
    ├── NoTrial             a study has no trial to give to a program that asks (hpo.ask)
    ├── InvalidField        a value that names the field it stands in and the cure
    ├── InvalidFields       several of them
    ├── Unavailable         the database or the service does not answer now; try again
    ├── SchemaMismatch      the database belongs to another version
    ├── DatabaseInUse       another process holds the SQLite file
    ├── CheckpointMismatch  a checkpoint of another trial or training (hpo.training)
    └── ApiError            what a client raises for a problem document (hpo.client)
        └── AccessDenied    no token, or one that may not do this

`code` is the stable name that stands in problem documents; `facts` are their extra members.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar


class HpoError(Exception):
    """Something went wrong in hpo."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str | None = None, **facts: Any) -> None:
        super().__init__(message or self.__doc__)
        self.facts: Mapping[str, Any] = facts


class NotFound(HpoError):
    """There is no such thing here."""

    code = "not_found"


class NoCompletedTrial(NotFound):
    """No trial of this study has completed with a finite value yet."""

    code = "no_completed_trial"


class Conflict(HpoError):
    """The state of the study or trial does not allow this."""

    code = "conflict"


class StudyExists(Conflict):
    """A study of this name exists with another definition; choose another name."""

    code = "study_exists"


class LeaseLost(Conflict):
    """This lease is no longer valid; drop the trial and claim again."""

    code = "lease_lost"


class TrialFinished(Conflict):
    """This trial has ended; its outcome stands."""

    code = "trial_finished"


class StepReported(Conflict):
    """This attempt has already reported another value for this step; report the next step."""

    code = "step_reported"


class IdempotencyKeyReused(Conflict):
    """This Idempotency-Key belongs to another request; choose a new one."""

    code = "idempotency_key_reused"


class TooFewTrials(Conflict):
    """There are not enough trials for this analysis yet."""

    code = "too_few_trials"


class PreconditionFailed(Conflict):
    """The study has changed since it was read; read it again and decide anew."""

    code = "precondition_failed"


class ModelRefused(Conflict):
    """The service does not keep this model; the trial goes on without it."""

    code = "model_refused"


class VersionMismatch(Conflict):
    """Worker and server speak different versions of the protocol; install the same release."""

    code = "version_mismatch"


class InvalidField(HpoError, ValueError):
    """A value is not allowed."""

    code = "invalid"

    def __init__(self, field: str, message: str) -> None:
        errors = [{"field": field, "message": message}]
        super().__init__(f"{field}: {message}", errors=errors)
        self.field, self.message = field, message


class InvalidFields(HpoError, ValueError):
    """Some values are not allowed; each fault names its field."""

    code = "invalid"

    def __init__(self, faults: Iterable[tuple[str, str]]) -> None:
        listed = list(faults)
        super().__init__(
            "; ".join(f"{field}: {message}" for field, message in listed),
            errors=[{"field": field, "message": message} for field, message in listed],
        )


class Unavailable(HpoError):
    """The database does not answer at the moment; the request was not carried out, try again."""

    code = "unavailable"


class SchemaMismatch(HpoError):
    """The database has another schema than this version of hpo needs."""

    code = "schema_mismatch"


class DatabaseInUse(HpoError):
    """Another process writes to this SQLite database."""

    code = "database_in_use"
