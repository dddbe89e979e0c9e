"""Our tables beside Optuna's, and Optuna's own as Core tables.

Rows are keyed by (study UUID, trial number) and have no foreign keys to Optuna's tables: SQLite
reuses a `trial_id` after a delete, and Optuna's own `delete_study` must go on working.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import sqlalchemy as sa
from optuna.storages._rdb import models

# Optuna's tables (5.0): read and written by Core statements, never altered.
studies: sa.Table = models.StudyModel.__table__
directions: sa.Table = models.StudyDirectionModel.__table__
study_user_attrs: sa.Table = models.StudyUserAttributeModel.__table__
study_system_attrs: sa.Table = models.StudySystemAttributeModel.__table__
trials: sa.Table = models.TrialModel.__table__
trial_params: sa.Table = models.TrialParamModel.__table__
trial_values: sa.Table = models.TrialValueModel.__table__
trial_steps: sa.Table = models.TrialIntermediateValueModel.__table__
trial_user_attrs: sa.Table = models.TrialUserAttributeModel.__table__
trial_system_attrs: sa.Table = models.TrialSystemAttributeModel.__table__

StepType = models.TrialIntermediateValueModel.TrialIntermediateValueType
ValueType = models.TrialValueModel.TrialValueType


class UtcDateTime(sa.types.TypeDecorator[dt.datetime]):
    """An aware UTC time; SQLite has no time zones, so there it is stored without."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: dt.datetime | None, dialect: sa.Dialect) -> Any:
        assert value is None or value.tzinfo is not None, "a naive time reached the database"
        return value if value is None else value.astimezone(dt.UTC)

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> dt.datetime | None:
        if value is None:
            return None
        assert isinstance(value, dt.datetime)
        return value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value.astimezone(dt.UTC)


metadata = sa.MetaData()

_UUID = sa.String(36)
_NAME = sa.String(200)

hpo_study = sa.Table(
    "hpo_study",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),  # the order of creation, for paging
    sa.Column("uuid", _UUID, nullable=False, unique=True),
    # Without the index SQLite begins with all of hpo_trial, for each trial that could be the best.
    sa.Column("study_id", sa.Integer, nullable=False, index=True),
    sa.Column("name", _NAME, nullable=False, unique=True),
    sa.Column("definition", sa.JSON, nullable=False),
    sa.Column("state", sa.String(16), nullable=False, index=True),
    sa.Column("reason", sa.Text),
    # The budget and the priority may change later: these columns hold what is in force.
    sa.Column("n_trials", sa.Integer, nullable=False),
    sa.Column("max_parallel_trials", sa.Integer),
    sa.Column("max_failed_trials", sa.Integer),
    sa.Column("timeout_seconds", sa.Double),
    sa.Column("trial_timeout_seconds", sa.Double),
    sa.Column("no_progress_seconds", sa.Double),
    sa.Column("priority", sa.Integer, nullable=False),
    # Trials that the study itself started, whatever became of them.
    sa.Column("n_started", sa.Integer, nullable=False),
    # For timeout_seconds: the time up to the last pause, and since when it runs again.
    sa.Column("ran_seconds", sa.Double, nullable=False),
    sa.Column("running_since", UtcDateTime),
    # Why a stopping study tells its trials to stop; null lets them come to their own end.
    sa.Column("stop_reason", sa.String(32)),
    sa.Column("tags", sa.JSON, nullable=False),
    sa.Column("notes", sa.Text, nullable=False),
    sa.Column("archived_at", UtcDateTime),
    # Counts changes of what samplers and pruners may see, for those who keep it in memory.
    sa.Column("history_revision", sa.Integer, nullable=False, default=0),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("ended_at", UtcDateTime),
)

# Studies that are being deleted or were, for as long as a worker may still have files of theirs.
hpo_deleted_study = sa.Table(
    "hpo_deleted_study",
    metadata,
    sa.Column("uuid", _UUID, primary_key=True),
    sa.Column("deleted_at", UtcDateTime, nullable=False, index=True),
)

hpo_trial = sa.Table(
    "hpo_trial",
    metadata,
    sa.Column("study_uuid", _UUID, primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("trial_id", sa.Integer, nullable=False),
    sa.Column("n_attempts", sa.Integer, nullable=False),
    # Not null while the trial waits for its next attempt.
    sa.Column("next_attempt_at", UtcDateTime),
    # The verdict that told the trial to end: {"verdict", "reason", "evidence"}.
    sa.Column("told", sa.JSON(none_as_null=True)),
    sa.Column("reason", sa.String(32)),
    sa.Column("message", sa.Text, nullable=False),
    # False when a constraint is violated; null when the trial has none.
    sa.Column("is_feasible", sa.Boolean),
    # What the sampler drew for the whole trial, when the objective asks parameter by parameter.
    sa.Column("relative_params", sa.JSON(none_as_null=True)),
    # False for an enqueued trial that was cancelled before it began: no part of the budget.
    sa.Column("is_counted", sa.Boolean, nullable=False, default=True),
)
# Few trials wait, and each look at a study, each claim and each round of the reaper asks for them.
_waits = hpo_trial.c.next_attempt_at.is_not(None)
sa.Index(
    "ix_hpo_trial_awaiting",
    hpo_trial.c.study_uuid,
    hpo_trial.c.next_attempt_at,
    sqlite_where=_waits,
    postgresql_where=_waits,
)

# Finished trials that are left out of best, history and analysis; another program's ones, too.
hpo_exclusion = sa.Table(
    "hpo_exclusion",
    metadata,
    sa.Column("study_uuid", _UUID, primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("trial_id", sa.Integer, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("excluded_at", UtcDateTime, nullable=False),
)

hpo_lease = sa.Table(
    "hpo_lease",
    metadata,
    sa.Column("study_uuid", _UUID, primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("trial_id", sa.Integer, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("token", sa.String(64), nullable=False, unique=True),
    sa.Column("claim_key", sa.String(128), nullable=False, unique=True),
    sa.Column("phase", sa.String(8), nullable=False),  # sampling, running
    sa.Column("worker_id", _UUID, nullable=False, index=True),
    sa.Column("device", sa.String(64), nullable=False),
    sa.Column("acquired_at", UtcDateTime, nullable=False),
    sa.Column("acquired_until", UtcDateTime, nullable=False, index=True),
    # Not null when this one trial is to end: its worker is told at the next report.
    sa.Column("stop_reason", sa.String(32)),
    # How long each renewal lasts where its holder has asked for a length of its own.
    sa.Column("lease_seconds", sa.Double),
)

hpo_attempt = sa.Table(
    "hpo_attempt",
    metadata,
    sa.Column("study_uuid", _UUID, primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("token", sa.String(64), nullable=False, unique=True),
    sa.Column("worker_id", _UUID, nullable=False),
    sa.Column("worker_name", _NAME, nullable=False),
    sa.Column("device", sa.String(64), nullable=False),
    sa.Column("started_at", UtcDateTime, nullable=False),
    sa.Column("ended_at", UtcDateTime),
    sa.Column("resumed_from_step", sa.Integer),
    sa.Column("outcome", sa.String(16)),
    sa.Column("reason", sa.String(32)),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("traceback", sa.Text, nullable=False),
    # The answer to the call that ended it, given again when that call is repeated.
    sa.Column("settled", sa.JSON(none_as_null=True)),
)

hpo_verdict = sa.Table(
    "hpo_verdict",
    metadata,
    sa.Column("study_uuid", _UUID, primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("step", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("value", sa.Double),  # null stands for NaN, which SQLite cannot store
    sa.Column("elapsed_seconds", sa.Double, nullable=False),
    sa.Column("metrics", sa.JSON, nullable=False),
    sa.Column("verdict", sa.String(16)),  # null until the pruner has answered
    sa.Column("reason", sa.String(32)),
    sa.Column("evidence", sa.JSON(none_as_null=True)),
)

# Models that attempts have offered; the artifact store holds their files. A row outlives its file,
# so no crash leaves a file behind that nobody knows.
hpo_model = sa.Table(
    "hpo_model",
    metadata,
    sa.Column("artifact_id", _UUID, primary_key=True),
    sa.Column("study_uuid", _UUID, nullable=False),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("trial_id", sa.Integer, nullable=False),
    sa.Column("token", sa.String(64), nullable=False),  # of the attempt whose model it is
    sa.Column("state", sa.String(8), nullable=False, index=True),  # offered, kept, dropped
    sa.Column("step", sa.Integer),
    sa.Column("sha256", sa.String(64), nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("suffix", sa.String(40), nullable=False),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Index("ix_hpo_model_trial", "study_uuid", "number"),
)

hpo_worker = sa.Table(
    "hpo_worker",
    metadata,
    sa.Column("id", _UUID, primary_key=True),
    sa.Column("name", _NAME, nullable=False),
    sa.Column("version", sa.String(64), nullable=False),
    sa.Column("slots", sa.Integer, nullable=False),
    sa.Column("devices", sa.JSON, nullable=False),
    sa.Column("allow", sa.JSON, nullable=False),
    sa.Column("objectives", sa.JSON, nullable=False),
    sa.Column("registered_at", UtcDateTime, nullable=False),
    sa.Column("last_seen_at", UtcDateTime, nullable=False, index=True),
)

hpo_log = sa.Table(
    "hpo_log",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("study_uuid", _UUID, nullable=False),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("sequence", sa.Integer, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.UniqueConstraint("study_uuid", "number", "attempt", "sequence"),
)

# Requests that came with an Idempotency-Key, for as long as they may come again.
hpo_request = sa.Table(
    "hpo_request",
    metadata,
    sa.Column("key", _NAME, primary_key=True),
    sa.Column("kind", sa.String(32), nullable=False),
    sa.Column("fingerprint", sa.String(64), nullable=False),
    sa.Column("answer", sa.JSON(none_as_null=True)),
    sa.Column("created_at", UtcDateTime, nullable=False, index=True),
)

# One row: when an API process last looked for expired leases. After a time in which none did,
# workers get one lease more to renew before anybody is taken for lost.
hpo_reaper = sa.Table(
    "hpo_reaper",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("last_seen_at", UtcDateTime, nullable=False),
    sa.Column("quiet_until", UtcDateTime, nullable=False),
)

# Digests only: neither a token nor a session can be got back from here.
hpo_token = sa.Table(
    "hpo_token",
    metadata,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("role", sa.String(16), nullable=False),
    sa.Column("digest", sa.String(64), nullable=False, unique=True),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("last_used_at", UtcDateTime),
    sa.Column("revoked_at", UtcDateTime),
)

hpo_session = sa.Table(
    "hpo_session",
    metadata,
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("token_digest", sa.String(64), nullable=False, index=True),
    sa.Column("expires_at", UtcDateTime, nullable=False),
)

# What happened, for those who listen. Ids commit out of order on PostgreSQL, so events are in the
# order of (transaction_id, id), and a reader stays below the oldest open transaction.
hpo_event = sa.Table(
    "hpo_event",
    metadata,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
    sa.Column("transaction_id", sa.BigInteger, nullable=False),
    sa.Column("study_uuid", _UUID),  # null where it is about no study
    sa.Column("study_name", _NAME),
    sa.Column("number", sa.Integer),
    sa.Column("kind", sa.String(32), nullable=False),
    sa.Column("data", sa.JSON, nullable=False),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Index("ix_hpo_event_order", "transaction_id", "id"),
    sqlite_autoincrement=True,  # an id that was pruned does not come again
)
