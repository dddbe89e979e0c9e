"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "hpo_attempt",
        sa.Column("study_uuid", sa.String(length=36), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("token", sa.String(length=64), nullable=False),
        sa.Column("worker_id", sa.String(length=36), nullable=False),
        sa.Column("worker_name", sa.String(length=200), nullable=False),
        sa.Column("device", sa.String(length=64), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("resumed_from_step", sa.Integer(), nullable=True),
        sa.Column("outcome", sa.String(length=16), nullable=True),
        sa.Column("reason", sa.String(length=32), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("traceback", sa.Text(), nullable=False),
        sa.Column("settled", sa.JSON(none_as_null=True), nullable=True),
        sa.PrimaryKeyConstraint("study_uuid", "number", "attempt"),
        sa.UniqueConstraint("token"),
    )
    op.create_table(
        "hpo_deleted_study",
        sa.Column("uuid", sa.String(length=36), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("uuid"),
    )
    with op.batch_alter_table("hpo_deleted_study") as batch_op:
        batch_op.create_index(
            batch_op.f("ix_hpo_deleted_study_deleted_at"), ["deleted_at"], unique=False
        )

    op.create_table(
        "hpo_exclusion",
        sa.Column("study_uuid", sa.String(length=36), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("trial_id", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("excluded_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("study_uuid", "number"),
    )
    op.create_table(
        "hpo_event",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("transaction_id", sa.BigInteger(), nullable=False),
        sa.Column("study_uuid", sa.String(length=36), nullable=True),
        sa.Column("study_name", sa.String(length=200), nullable=True),
        sa.Column("number", sa.Integer(), nullable=True),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("hpo_event") as batch_op:
        batch_op.create_index("ix_hpo_event_order", ["transaction_id", "id"], unique=False)

    op.create_table(
        "hpo_lease",
        sa.Column("study_uuid", sa.String(length=36), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("trial_id", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("token", sa.String(length=64), nullable=False),
        sa.Column("claim_key", sa.String(length=128), nullable=False),
        sa.Column("phase", sa.String(length=8), nullable=False),
        sa.Column("worker_id", sa.String(length=36), nullable=False),
        sa.Column("device", sa.String(length=64), nullable=False),
        sa.Column("acquired_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("acquired_until", sa.DateTime(timezone=True), nullable=False),
        sa.Column("stop_reason", sa.String(length=32), nullable=True),
        sa.Column("lease_seconds", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("study_uuid", "number"),
        sa.UniqueConstraint("claim_key"),
        sa.UniqueConstraint("token"),
    )
    with op.batch_alter_table("hpo_lease") as batch_op:
        batch_op.create_index(
            batch_op.f("ix_hpo_lease_acquired_until"), ["acquired_until"], unique=False
        )
        batch_op.create_index(batch_op.f("ix_hpo_lease_worker_id"), ["worker_id"], unique=False)

    op.create_table(
        "hpo_log",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("study_uuid", sa.String(length=36), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("study_uuid", "number", "attempt", "sequence"),
    )
    op.create_table(
        "hpo_model",
        sa.Column("artifact_id", sa.String(length=36), nullable=False),
        sa.Column("study_uuid", sa.String(length=36), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("trial_id", sa.Integer(), nullable=False),
        sa.Column("token", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=8), nullable=False),
        sa.Column("step", sa.Integer(), nullable=True),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("suffix", sa.String(length=40), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("artifact_id"),
    )
    with op.batch_alter_table("hpo_model") as batch_op:
        batch_op.create_index(batch_op.f("ix_hpo_model_state"), ["state"], unique=False)
        batch_op.create_index("ix_hpo_model_trial", ["study_uuid", "number"], unique=False)

    op.create_table(
        "hpo_reaper",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("last_seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("quiet_until", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "hpo_request",
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("answer", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    with op.batch_alter_table("hpo_request") as batch_op:
        batch_op.create_index(batch_op.f("ix_hpo_request_created_at"), ["created_at"], unique=False)

    op.create_table(
        "hpo_study",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("uuid", sa.String(length=36), nullable=False),
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("definition", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("n_trials", sa.Integer(), nullable=False),
        sa.Column("max_parallel_trials", sa.Integer(), nullable=True),
        sa.Column("max_failed_trials", sa.Integer(), nullable=True),
        sa.Column("timeout_seconds", sa.Double(), nullable=True),
        sa.Column("trial_timeout_seconds", sa.Double(), nullable=True),
        sa.Column("no_progress_seconds", sa.Double(), nullable=True),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("n_started", sa.Integer(), nullable=False),
        sa.Column("ran_seconds", sa.Double(), nullable=False),
        sa.Column("running_since", sa.DateTime(timezone=True), nullable=True),
        sa.Column("stop_reason", sa.String(length=32), nullable=True),
        sa.Column("tags", sa.JSON(), nullable=False),
        sa.Column("notes", sa.Text(), nullable=False),
        sa.Column("archived_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("history_revision", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
        sa.UniqueConstraint("uuid"),
    )
    with op.batch_alter_table("hpo_study") as batch_op:
        batch_op.create_index(batch_op.f("ix_hpo_study_state"), ["state"], unique=False)
        batch_op.create_index(batch_op.f("ix_hpo_study_study_id"), ["study_id"], unique=False)

    op.create_table(
        "hpo_trial",
        sa.Column("study_uuid", sa.String(length=36), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("trial_id", sa.Integer(), nullable=False),
        sa.Column("n_attempts", sa.Integer(), nullable=False),
        sa.Column("next_attempt_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("told", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("reason", sa.String(length=32), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("is_feasible", sa.Boolean(), nullable=True),
        sa.Column("relative_params", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("is_counted", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("study_uuid", "number"),
    )
    op.create_index(
        "ix_hpo_trial_awaiting",
        "hpo_trial",
        ["study_uuid", "next_attempt_at"],
        unique=False,
        sqlite_where=sa.text("next_attempt_at IS NOT NULL"),
        postgresql_where=sa.text("next_attempt_at IS NOT NULL"),
    )
    op.create_table(
        "hpo_verdict",
        sa.Column("study_uuid", sa.String(length=36), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("step", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("value", sa.Double(), nullable=True),
        sa.Column("elapsed_seconds", sa.Double(), nullable=False),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("verdict", sa.String(length=16), nullable=True),
        sa.Column("reason", sa.String(length=32), nullable=True),
        sa.Column("evidence", sa.JSON(none_as_null=True), nullable=True),
        sa.PrimaryKeyConstraint("study_uuid", "number", "attempt", "step"),
    )
    op.create_table(
        "hpo_worker",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("devices", sa.JSON(), nullable=False),
        sa.Column("allow", sa.JSON(), nullable=False),
        sa.Column("objectives", sa.JSON(), nullable=False),
        sa.Column("registered_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("hpo_worker") as batch_op:
        batch_op.create_index(
            batch_op.f("ix_hpo_worker_last_seen_at"), ["last_seen_at"], unique=False
        )

    op.create_table(
        "hpo_token",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("name"),
        sa.UniqueConstraint("digest"),
    )
    op.create_table(
        "hpo_session",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("token_digest", sa.String(length=64), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("digest"),
    )
    with op.batch_alter_table("hpo_session") as batch_op:
        batch_op.create_index(
            batch_op.f("ix_hpo_session_token_digest"), ["token_digest"], unique=False
        )
