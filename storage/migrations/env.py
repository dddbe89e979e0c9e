"""Alembic's entry point; `storage.schema` calls it with an open connection, never by a URL."""

from alembic import context

from storage.tables import metadata


def _is_ours(name: str | None, kind: str, _parents: object) -> bool:
    return kind != "table" or (name or "").startswith("hpo_")


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=context.config.attributes["version_table"],
    include_name=_is_ours,
    render_as_batch=True,
)

with context.begin_transaction():
    context.run_migrations()
