"""A list as one bound value, however long: PostgreSQL has arrays, SQLite reads JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.compiler import compiles


class list_of(sa.types.TypeDecorator[Sequence[Any]]):
    """Values of one type as one bound value, however many they are."""

    impl = sa.Text
    cache_ok = True

    def __init__(self, item: sa.types.TypeEngine[Any]) -> None:
        super().__init__()
        self.item = item

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        is_array = dialect.name == "postgresql"
        return dialect.type_descriptor(postgresql.ARRAY(self.item) if is_array else sa.Text())

    def process_bind_param(self, value: Sequence[Any] | None, dialect: sa.Dialect) -> Any:
        return list(value or ()) if dialect.name == "postgresql" else json.dumps(list(value or ()))


class is_listed(sa.sql.functions.FunctionElement[Any]):
    """Whether the value of a column is in a `list_of` them."""

    inherit_cache = True
    # For a Boolean, SQLAlchemy would write "= 1" on SQLite, which then finds no index for it.
    type = sa.types.NullType()

    def __init__(self, column: Any, listed: Any) -> None:
        super().__init__(column, listed)


@compiles(is_listed, "postgresql")
def _is_listed_on_postgresql(element: is_listed, compiler: Any, **kwargs: Any) -> str:
    column, listed = (compiler.process(clause, **kwargs) for clause in element.clauses)
    return f"({column} = ANY({listed}))"


@compiles(is_listed, "sqlite")
def _is_listed_on_sqlite(element: is_listed, compiler: Any, **kwargs: Any) -> str:
    column, listed = (compiler.process(clause, **kwargs) for clause in element.clauses)
    return f"({column} IN (SELECT value FROM json_each({listed})))"
