"""One database, SQLite or PostgreSQL, and how they differ (over lists: `storage.lists`).

SQLite: WAL, synchronous=FULL, `BEGIN IMMEDIATE` for writes, and one writing process, kept so by a
lock on a file beside the database. PostgreSQL: short timeouts, so that nothing hangs. Transactions
are passed in as functions, because only a function can be tried again after a deadlock, a lock
timeout or a lost connection; each is idempotent by a natural key (token, claim key, step).
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import logging
import math
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import sqlalchemy as sa
from optuna.exceptions import StorageInternalError
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles

from hpo.errors import DatabaseInUse, InvalidField, Unavailable
from storage.together import Together

logger = logging.getLogger(__name__)

T = TypeVar("T")

CONNECT_TIMEOUT_SECONDS = 5
STATEMENT_TIMEOUT_SECONDS = 30
LOCK_TIMEOUT_SECONDS = 10
TIMEOUTS = {
    "statement_timeout": STATEMENT_TIMEOUT_SECONDS,
    "lock_timeout": LOCK_TIMEOUT_SECONDS,
    "idle_in_transaction_session_timeout": 2 * STATEMENT_TIMEOUT_SECONDS,
}
POOL_SIZE, POOL_OVERFLOW, POOL_TIMEOUT_SECONDS = 8, 8, 15
RETRY_SECONDS = 3.0
# A connection that lay idle for longer is tried before it is used. One that was in use just now
# is not, for that would double the round trips; if it has died meanwhile, `Database` tries again.
TRUSTED_SECONDS = 1.0

# SQLSTATEs after which the same transaction may succeed: serialization, deadlock, lock timeout,
# server shutdown, starting up, too many connections. Class 08 is a lost connection.
TRANSIENT_SQLSTATES = {"40001", "40P01", "55P03", "57P01", "57P02", "57P03", "53300"}


class db_now(sa.sql.functions.FunctionElement[Any]):
    """The database's clock, `offset_seconds` later; the clocks of processes are never compared.

    `clock_timestamp()` because `now()` stands still while a statement waits for a lock.
    """

    inherit_cache = True
    type = sa.DateTime(timezone=True)

    def __init__(self, offset_seconds: float | sa.ColumnElement[Any] = 0.0) -> None:
        # A clause, so that the compiled statement is cached and the number is bound.
        if not isinstance(offset_seconds, sa.ColumnElement):
            offset_seconds = sa.literal(float(offset_seconds), sa.Double())
        super().__init__(offset_seconds)


class seconds_between(sa.sql.functions.FunctionElement[Any]):
    """The seconds from one time of the database to a later one."""

    inherit_cache = True
    type = sa.Double()

    def __init__(self, begin: Any, end: Any) -> None:
        super().__init__(begin, end)


class has_item(sa.sql.functions.FunctionElement[Any]):
    """Whether a JSON array of strings holds a string."""

    inherit_cache = True
    type = sa.Boolean()

    def __init__(self, array: Any, item: str) -> None:
        super().__init__(array, sa.literal(item))


class transaction_id(sa.sql.functions.FunctionElement[Any]):
    """The running transaction among those that write, in a number that never comes again.

    On SQLite always 0: its transactions write one after the other, so the ids of rows tell.
    """

    inherit_cache = True
    type = sa.BigInteger()


class oldest_open_transaction(sa.sql.functions.FunctionElement[Any]):
    """What transactions below this one have written will not change any more."""

    inherit_cache = True
    type = sa.BigInteger()


def alone(engine: sa.Engine) -> sa.Engine:
    """The same engine for single statements, without a transaction around them."""
    return engine.execution_options(**_ALONE[engine.dialect.name == "sqlite"])


def naive_utc() -> dt.datetime:
    """Now, as Optuna 5 stores it in its own tables."""
    return dt.datetime.now(dt.UTC).replace(tzinfo=None)


@compiles(db_now, "postgresql")
def _now_on_postgresql(element: db_now, compiler: Any, **kwargs: Any) -> str:
    offset = compiler.process(element.clauses, **kwargs)
    return f"(clock_timestamp() + make_interval(secs => {offset}))"


@compiles(db_now, "sqlite")
def _now_on_sqlite(element: db_now, compiler: Any, **kwargs: Any) -> str:
    # The format in which SQLAlchemy stores a DateTime, so that text compares as time does.
    offset = compiler.process(element.clauses, **kwargs)
    return f"strftime('%Y-%m-%d %H:%M:%f000', 'now', printf('%+.3f seconds', {offset}))"


@compiles(seconds_between, "postgresql")
def _seconds_on_postgresql(element: seconds_between, compiler: Any, **kwargs: Any) -> str:
    begin, end = (compiler.process(time, **kwargs) for time in element.clauses)
    return f"CAST(EXTRACT(EPOCH FROM ({end} - {begin})) AS DOUBLE PRECISION)"


@compiles(seconds_between, "sqlite")
def _seconds_on_sqlite(element: seconds_between, compiler: Any, **kwargs: Any) -> str:
    begin, end = (compiler.process(time, **kwargs) for time in element.clauses)
    return f"((julianday({end}) - julianday({begin})) * 86400)"


@compiles(has_item, "postgresql")
def _has_item_on_postgresql(element: has_item, compiler: Any, **kwargs: Any) -> str:
    array, item = (compiler.process(clause, **kwargs) for clause in element.clauses)
    return f"({item} IN (SELECT json_array_elements_text({array})))"


@compiles(has_item, "sqlite")
def _has_item_on_sqlite(element: has_item, compiler: Any, **kwargs: Any) -> str:
    array, item = (compiler.process(clause, **kwargs) for clause in element.clauses)
    return f"({item} IN (SELECT value FROM json_each({array})))"


@compiles(transaction_id, "postgresql")
def _transaction_on_postgresql(_element: transaction_id, _compiler: Any, **_: Any) -> str:
    return "CAST(CAST(pg_current_xact_id() AS TEXT) AS BIGINT)"


@compiles(oldest_open_transaction, "postgresql")
def _oldest_on_postgresql(_element: oldest_open_transaction, _compiler: Any, **_: Any) -> str:
    return "CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS TEXT) AS BIGINT)"


@compiles(transaction_id, "sqlite")
def _transaction_on_sqlite(_element: transaction_id, _compiler: Any, **_: Any) -> str:
    return "0"


@compiles(oldest_open_transaction, "sqlite")
def _oldest_on_sqlite(_element: oldest_open_transaction, _compiler: Any, **_: Any) -> str:
    return "1"


# PostgreSQL gives each statement a snapshot of its own in a transaction, too: BEGIN and COMMIT
# around those that read would be two round trips for nothing.
_READING: Mapping[bool, Mapping[str, Any]] = {
    True: {"hpo_begin": "BEGIN"},
    False: {"hpo_begin": "BEGIN", "isolation_level": "AUTOCOMMIT"},
}
# How one statement is carried out, which needs no transaction around it anywhere.
_ALONE: Mapping[bool, Mapping[str, Any]] = {
    True: {"hpo_begin": None},
    False: {"isolation_level": "AUTOCOMMIT"},
}

# Set in `connection.info` by a transaction that has written events.
HAS_NEWS = "hpo_has_news"


class Database:
    """The engine and its transactions. Opening takes the lock of a SQLite file and no more.

    Raises InvalidField for a URL that is not supported, DatabaseInUse when another process
    writes to the same SQLite file.
    """

    def __init__(self, url: str) -> None:
        self.url = _parse(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._file_lock: int | None = None
        if self.is_sqlite:
            self._file_lock = _lock_file(Path(self.url.database or ""))
        self.engine = _sqlite_engine(self.url) if self.is_sqlite else _postgresql_engine(self.url)
        self._alone = alone(self.engine)
        # SQLite has one writer at a time; those who wait for a lock here need not poll for it.
        self._turn: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        self._together: Together | None = None
        if self.is_sqlite:
            self._turn = turn = threading.Lock()
            self._together = Together(turn, lambda parts: self._retried(self.engine, parts))
        self._reading = self.engine.execution_options(**_READING[self.is_sqlite])
        self.on_news: Callable[[], None] = lambda: None  # called after such a transaction
        self._mutexes: dict[str, threading.Lock] = {}
        self._mutexes_guard = threading.Lock()
        # Held for as long as a sampler takes, so apart from the pool that the sampler reads by.
        self._lock_engine = None if self.is_sqlite else _postgresql_engine(self.url)

    def write(self, transaction: Callable[[sa.Connection], T]) -> T:
        """Runs a read-write transaction. Raises Unavailable when it cannot be done in time."""
        return self._retried(self.engine, transaction, self._turn)

    def write_one(self, part: Callable[[sa.Connection], T]) -> T:
        """Carries out one statement, which is a transaction; on SQLite it may be a few.

        On SQLite others' parts may be in the same transaction, so it must not count on being alone
        in it. Raises as `write` does.
        """
        if self._together is not None:
            return self._together.do(part)
        return self._retried(self._alone, part)

    def read_one(self, part: Callable[[sa.Connection], T]) -> T:
        """Carries out one statement that only reads. Raises as `write` does."""
        return self._retried(self._alone, part)

    def read(self, transaction: Callable[[sa.Connection], T]) -> T:
        """Runs a transaction that only reads, on one snapshot per statement or better."""
        return self._retried(self._reading, transaction)

    @staticmethod
    def tell(connection: sa.Connection) -> None:
        """Lets listeners look for events once this transaction is over."""
        connection.info[HAS_NEWS] = True

    def _retried(
        self,
        engine: sa.Engine,
        transaction: Callable[[sa.Connection], T],
        turn: contextlib.AbstractContextManager[Any] | None = None,
    ) -> T:
        give_up_at = time.monotonic() + RETRY_SECONDS
        for attempt in range(1, 1000):
            try:
                with turn or contextlib.nullcontext(), engine.begin() as connection:
                    connection.info.pop(HAS_NEWS, None)
                    result = transaction(connection)
                    has_news = connection.info.pop(HAS_NEWS, False)
                if has_news:
                    self.on_news()
                return result
            except sa.exc.TimeoutError:
                raise Unavailable("All database connections are busy; try again.") from None
            except sa.exc.DBAPIError as error:
                if not is_outage(error):
                    raise
                if not is_transient(error) or time.monotonic() > give_up_at:
                    logger.warning("database: %s", error.orig)
                    raise Unavailable() from error
                pause = min(0.02 * 2**attempt, 1.0)
                time.sleep(random.uniform(pause / 2, pause))
        raise AssertionError("unreachable: the deadline comes first")

    def note_growth(self, tables: Iterable[sa.Table]) -> None:
        """Tells PostgreSQL that tables have just grown by much, so that it plans for what is there.

        By itself it looks within a minute; until then it reads 10,000 trials ten times as slowly.
        """
        if self.is_sqlite:
            return
        names = ", ".join(self._quoted(table) for table in tables)
        self.write(lambda connection: connection.exec_driver_sql(f"ANALYZE {names}"))

    def _quoted(self, table: sa.Table) -> str:
        return self.engine.dialect.identifier_preparer.format_table(table)

    @contextlib.contextmanager
    def mutex(
        self, name: str, *, patience_seconds: int | None = None, everywhere: bool = True
    ) -> Iterator[None]:
        """One holder at a time, over all threads and, `everywhere`, all processes.

        With `patience_seconds` it is waited for, and may be held, for longer than other locks.
        """
        with self._mutexes_guard:
            mutex = self._mutexes.setdefault(name, threading.Lock())
        with mutex:
            if self._lock_engine is None or not everywhere:
                yield
                return
            with outages(), self._lock_engine.begin() as connection:
                key = sa.func.hashtextextended(name, 0)
                if patience_seconds is not None:
                    _be_patient(connection, patience_seconds)
                    if connection.scalar(sa.select(sa.func.pg_try_advisory_xact_lock(key))):
                        yield
                        return
                    logger.info("waiting for another process, which holds %s", name)
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(key)))
                yield

    def close(self) -> None:
        """Closes every connection and gives up the SQLite file."""
        self.engine.dispose()
        if self._lock_engine is not None:
            self._lock_engine.dispose()
        if self._file_lock is not None:
            os.close(self._file_lock)
            self._file_lock = None


def _be_patient(connection: sa.Connection, seconds: int) -> None:
    """Lengthens all timeouts of this transaction on PostgreSQL."""
    for name in TIMEOUTS:
        connection.execute(sa.select(sa.func.set_config(name, f"{seconds}s", True)))


def is_reading(connection: sa.Connection) -> bool:
    """Whether this transaction only reads: what it sees is committed and stays."""
    return "hpo_begin" in connection.get_execution_options()


def insert_if_new(connection: sa.Connection, table: sa.Table, row: Mapping[str, Any]) -> bool:
    """Inserts a row; False when one with its key is there already."""
    insert = _INSERTS[connection.dialect.name](table).values(row).on_conflict_do_nothing()
    # RETURNING, because psycopg does not count the rows of such an INSERT.
    return connection.execute(insert.returning(sa.literal(1))).first() is not None


def upsert(
    connection: sa.Connection, table: sa.Table, key: Mapping[str, Any], columns: Mapping[str, Any]
) -> None:
    """Writes the row with this key, which a unique constraint of the table covers."""
    insert = _INSERTS[connection.dialect.name](table).values({**key, **columns})
    connection.execute(insert.on_conflict_do_update(index_elements=list(key), set_=columns))


_INSERTS: Mapping[str, Callable[[sa.Table], Any]] = {
    "sqlite": sqlite.insert,
    "postgresql": postgresql.insert,
}


def is_transient(error: sa.exc.DBAPIError) -> bool:
    """Whether the same transaction may succeed a moment later."""
    if error.connection_invalidated:
        return True
    sqlstate = getattr(error.orig, "sqlstate", None)
    if sqlstate is not None:
        return sqlstate in TRANSIENT_SQLSTATES or sqlstate.startswith("08")
    # psycopg gives no SQLSTATE when the server could not be reached.
    return is_outage(error)


def is_outage(error: sa.exc.DBAPIError) -> bool:
    """Whether the database is away, busy or out of time, as opposed to a wrong statement."""
    return error.connection_invalidated or isinstance(error, sa.exc.OperationalError)


@contextlib.contextmanager
def outages() -> Iterator[None]:
    """Turns a driver's or Optuna's error for a database that is away into Unavailable."""
    try:
        yield
    except StorageInternalError as error:
        logger.warning("database: %s", error.__cause__ or error)
        raise Unavailable() from error
    except sa.exc.DBAPIError as error:
        if not is_outage(error):
            raise
        logger.warning("database: %s", error.orig)
        raise Unavailable() from error
    except sa.exc.TimeoutError:
        raise Unavailable("All database connections are busy; try again.") from None


def engine_beside(url: str, *, writes: bool) -> sa.Engine:
    """For a process beside the one that has the `Database`, and which ends with that one.

    It takes no lock on a SQLite file, and cannot write unless it is told that it may.
    """
    parsed = _parse(url)
    if parsed.get_backend_name() != "sqlite":
        return _postgresql_engine(parsed).execution_options(postgresql_readonly=not writes)
    if writes:
        return _sqlite_engine(parsed)
    file = f"file:{quote(str(Path(parsed.database or '').resolve()))}"
    by_uri = parsed.set(database=file, query={"mode": "ro", "uri": "true"})
    return _sqlite_engine(by_uri).execution_options(hpo_begin="BEGIN")


def _parse(url: str) -> sa.URL:
    cure = (
        'use "sqlite:///path/to/hpo.db" or "postgresql+psycopg://user:password@host/database"; '
        "MySQL is not supported yet"
    )
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError:
        raise InvalidField("url", f"is not a database URL; {cure}") from None
    if parsed.drivername in ("sqlite", "sqlite+pysqlite"):
        if not parsed.database or ":memory:" in parsed.database or parsed.query:
            raise InvalidField("url", f"must name a file on a local disk; {cure}")
        folder = Path(parsed.database).parent
        if not folder.is_dir():
            raise InvalidField("url", f"the folder {folder} does not exist; make it first")
        return parsed
    if parsed.drivername != "postgresql+psycopg":
        raise InvalidField("url", f"{parsed.drivername} databases do not work here; {cure}")
    return parsed


def _lock_file(path: Path) -> int:
    descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise DatabaseInUse(
            f"Another process writes to {path}; SQLite allows one. Stop it, or use its REST API, "
            "or move to PostgreSQL.",
            path=str(path),
        ) from None
    return descriptor


def _sqlite_engine(url: sa.URL) -> sa.Engine:
    engine = sa.create_engine(
        url,
        poolclass=sa.pool.QueuePool,
        pool_size=POOL_SIZE,
        max_overflow=POOL_OVERFLOW,
        pool_timeout=POOL_TIMEOUT_SECONDS,
        # isolation_level None: transactions begin where `_begin` says, not before the first write.
        connect_args={"timeout": STATEMENT_TIMEOUT_SECONDS, "isolation_level": None},
    )

    @sa.event.listens_for(engine, "connect")
    def _settings(connection: Any, _record: Any) -> None:
        for pragma in ("journal_mode=WAL", "synchronous=FULL"):
            connection.execute(f"PRAGMA {pragma}").close()

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        # A deferred transaction that reads first and writes later fails at once when another
        # one wrote in between; no timeout helps there.
        mode = connection.get_execution_options().get("hpo_begin", "BEGIN IMMEDIATE")
        if mode is not None:
            connection.exec_driver_sql(mode)

    return engine


def _postgresql_engine(url: sa.URL) -> sa.Engine:
    options = " ".join(f"-c {name}={seconds}s" for name, seconds in TIMEOUTS.items())
    engine = sa.create_engine(
        url,
        pool_size=POOL_SIZE,
        max_overflow=POOL_OVERFLOW,
        pool_timeout=POOL_TIMEOUT_SECONDS,
        pool_recycle=1800,
        connect_args={
            "connect_timeout": CONNECT_TIMEOUT_SECONDS,
            "options": f"{options} -c timezone=UTC",
            # A database that was cut off answers no FIN: notice within half a minute.
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
        },
    )

    @sa.event.listens_for(engine, "checkin")
    def _note(_connection: Any, record: Any) -> None:
        record.info["idle_since"] = time.monotonic()

    @sa.event.listens_for(engine, "checkout")
    def _try(connection: Any, record: Any, _fairy: Any) -> None:
        idle_since = record.info.get("idle_since", math.inf)
        if time.monotonic() < idle_since + TRUSTED_SECONDS:
            return
        try:
            engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error as error:
            raise sa.exc.DisconnectionError() from error  # the pool opens another one

    return engine
