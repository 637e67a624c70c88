"""Connections to PostgreSQL that end by themselves: bounded in number and in every wait.

libpq waits for ever for a server that was stopped, or cut off without a word. Here the wait for
each answer has an end, after which the connection is closed and the outcome is unknown. What a
server promises about commits is read on every connection, because the next one may be to another
server: the DSN may name several, of which one is the primary.
"""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any, Final, TypeVar

import psycopg
from eventsourcing import persistence
from eventsourcing.persistence import (
    DatabaseError,
    DataError,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    PersistenceError,
)
from psycopg import Connection, Error, OperationalError, ProgrammingError
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import Diagnostic, InvalidParameterValue, UndefinedObject
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row
from psycopg.sql import SQL
from psycopg_pool import ConnectionPool
from typing_extensions import override

from eventstore.log.errors import LogUnavailable, UnsafeLog
from eventstore.stores.postgres_bounds import PostgresBounds

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")
# Each failed attempt to connect and each rollback on a lost connection: many lines in an outage,
# which the errors of the log say already.
logging.getLogger("psycopg").setLevel(logging.ERROR)
_RECONNECT_S: Final = 3.0
"""A broken connection is tried again this long, then at the next use: the library's pauses
double, so that after a long outage it would look away for as long again."""
_LOOK_S: Final = 0.1
_FRESH_S: Final = 1.0
"""A connection that has answered within this and says nothing by itself, as one does that the
server closes, is not asked whether it lives: a busy host would ask once for each append."""
_LIBRARY_ERRORS: Final[Mapping[type[Error], type[PersistenceError]]] = {
    psycopg.InterfaceError: InterfaceError,
    psycopg.OperationalError: persistence.OperationalError,
    psycopg.DataError: DataError,
    psycopg.IntegrityError: IntegrityError,
    psycopg.InternalError: InternalError,
    psycopg.ProgrammingError: persistence.ProgrammingError,
    psycopg.NotSupportedError: NotSupportedError,
    psycopg.DatabaseError: DatabaseError,
    Error: PersistenceError,
}
_DURABLE: Final[Mapping[str, str]] = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on local remote_write remote_apply",
}
_REPLICATED: Final = ("on", "remote_write", "remote_apply")
_SHARED: Final = "a pooler shares sessions between transactions; have it pool whole sessions"
_ENDS_ABANDONED: Final = "SELECT set_config('client_connection_check_interval', '1s', false)"
_SETTINGS: Final = SQL(
    "SELECT current_setting('fsync') AS fsync,"
    " current_setting('full_page_writes') AS full_page_writes,"
    " current_setting('synchronous_commit') AS synchronous_commit,"
    " current_setting('synchronous_standby_names') AS synchronous_standby_names"
)


class BoundedConnection(Connection[Any]):
    """A connection whose every wait for the server ends.

    Attributes:
        answer_s_max: Seconds for the answer to one statement; None waits for ever.
        answered_s: When the server answered last, monotonic.
        warned: Has the server warned of anything since this was last set to False?
    """

    answer_s_max: float | None = None
    answered_s: float = 0.0
    warned: bool = False

    @override
    def wait(self, gen: PQGen[_T], interval: float = _LOOK_S, timeout: float | None = None) -> _T:
        try:
            answer = super().wait(gen, interval, self.answer_s_max if timeout is None else timeout)
        except OperationalError as error:
            if self.pgconn.transaction_status != TransactionStatus.ACTIVE:
                raise
            # It was given up in the middle, so what comes next on it is the answer to no question.
            self.close()
            raise OperationalError("the server did not answer in time") from error
        self.answered_s = time.monotonic()
        return answer


class PostgresConnections:
    """A pool of connections to a log, which connects when it is first used."""

    def __init__(self, dsn: str, bounds: PostgresBounds, *, allow_unsafe: bool) -> None:
        """Try the servers of a connection string (a URL, or ``name=value`` pairs).

        Raises:
            LogUnavailable: no server can be reached, or it refuses; says which and why.
            UnsafeLog: it may lose commits that it confirmed, unless ``allow_unsafe``.
        """
        self._bounds = bounds
        self._allow_unsafe = allow_unsafe
        parameters = _parameters(dsn, bounds)
        servers = str(parameters.get("host", "")).count(",") + 1
        self._is_one_of_several = servers > 1
        self._try(parameters)
        self._pool = ConnectionPool(
            connection_class=BoundedConnection,
            kwargs=parameters,
            min_size=bounds.connections_kept,
            max_size=bounds.connections_max,
            open=False,
            configure=self._prepare,
            check=self._check,
            timeout=bounds.connect_s_max * servers,
            reconnect_timeout=_RECONNECT_S,
        )

    @contextmanager
    def connection(self) -> Iterator[BoundedConnection]:
        """A connection in autocommit mode, for the time of the block.

        Raises:
            PersistenceError: an error of the driver as the library's, by its kind.
        """
        try:
            if self._pool.closed:
                self._pool.open()
            with self._pool.connection() as connection:
                # Who had it before may have been let wait for longer.
                connection.answer_s_max = self._bounds.answer_s_max
                yield connection
        except Error as error:
            if self._is_one_of_several and isinstance(error, OperationalError):
                # Another one may be the primary by now, though this one still answers: what waits
                # there for its lost standby keeps its locks.
                self._pool.drain()
            kind = next(
                ours for theirs, ours in _LIBRARY_ERRORS.items() if isinstance(error, theirs)
            )
            raise kind(str(error)) from error

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()

    def _prepare(self, connection: Connection[Any]) -> None:
        """Make a new connection ready; one to a server that loses commits is not used."""
        assert isinstance(connection, BoundedConnection)
        _bound(connection, self._bounds)
        unsafe = unsafe_settings(connection)
        if unsafe and not self._allow_unsafe:
            connection.close()
            _LOG.error("PostgreSQL server not used: %s", _losing(unsafe))
            raise OperationalError(_losing(unsafe))

    def _check(self, connection: Connection[Any]) -> None:
        """Does a connection that was idle still live?"""
        assert isinstance(connection, BoundedConnection)
        says = select.poll()
        says.register(connection.fileno(), select.POLLIN)
        if time.monotonic() - connection.answered_s < _FRESH_S and not says.poll(0):
            return
        connection.answer_s_max = self._bounds.connect_s_max
        try:
            connection.execute("")
        except OperationalError:
            # The others are to the same server: one after the other would take too long.
            self._pool.drain()
            raise

    def _try(self, parameters: Mapping[str, Any]) -> None:
        """Connect once by hand: the pool would only say that it got no connection."""
        try:
            with BoundedConnection.connect(**parameters) as connection:
                _bound(connection, self._bounds)
                unsafe = unsafe_settings(connection)
                is_shared = _is_shared(connection, parameters)
                replication = _replication(connection) if self._is_one_of_several else None
        except (OperationalError, ProgrammingError) as error:
            raise LogUnavailable(f"PostgreSQL: {_in_one_line(error)}") from error
        if unsafe and not self._allow_unsafe:
            raise UnsafeLog(f"PostgreSQL: {_losing(unsafe)}")
        if is_shared and not self._allow_unsafe:
            raise UnsafeLog(f"PostgreSQL: {_SHARED}")
        if replication is not None:
            _LOG.warning("PostgreSQL: a fail-over may lose confirmed commits: %s", replication)


def connected(dsn: str, bounds: PostgresBounds) -> BoundedConnection:
    """A connection of its own, which no pool ends or gives to others.

    Raises:
        LogUnavailable: no server can be reached, or it refuses; says which and why.
    """
    try:
        connection = BoundedConnection.connect(**_parameters(dsn, bounds))
        try:
            _bound(connection, bounds)
        except BaseException:
            connection.close()
            raise
    except (OperationalError, ProgrammingError) as error:
        raise LogUnavailable(f"PostgreSQL: {_in_one_line(error)}") from error
    return connection


def unsafe_settings(connection: Connection[Any]) -> dict[str, str]:
    """The server's durability settings that do not keep a confirmed commit."""
    found = _settings(connection)
    return {name: found[name] for name, safe in _DURABLE.items() if found[name] not in safe.split()}


def _replication(connection: Connection[Any]) -> str | None:
    """Why the other servers of the DSN may lack a confirmed commit; None if they have it."""
    found = _settings(connection)
    if not found["synchronous_standby_names"]:
        return "synchronous_standby_names is empty"
    if found["synchronous_commit"] not in _REPLICATED:
        return f"synchronous_commit is {found['synchronous_commit']}"
    return None


def _settings(connection: Connection[Any]) -> dict[str, str]:
    with connection.cursor(row_factory=dict_row) as cursor:
        found = cursor.execute(_SETTINGS).fetchone()
    assert found is not None
    return found


def _is_shared(connection: BoundedConnection, parameters: Mapping[str, Any]) -> bool:
    """Does a pooler give the server's session to others, too, between two transactions?

    Then settings of the one would hold for the other, and locks of sessions for neither.
    """
    session = _session(connection)
    if session == connection.info.backend_pid:
        return False  # no pooler
    with BoundedConnection.connect(**parameters) as other:
        return _session(other) == session


def _session(connection: Connection[Any]) -> int:
    found = connection.execute("SELECT pg_backend_pid() AS pid").fetchone()
    assert found is not None
    return int(found["pid"])


def _parameters(dsn: str, bounds: PostgresBounds) -> dict[str, Any]:
    try:
        parameters = conninfo_to_dict(
            dsn,
            connect_timeout=max(1, round(bounds.connect_s_max)),
            # Of a database without an encoding, texts would come as bytes.
            client_encoding="UTF8",
        )
    except ProgrammingError as error:
        raise LogUnavailable(f"PostgreSQL: {_in_one_line(error)}") from error
    if "," in str(parameters.get("host", "")):
        # A standby takes connections too, and refuses every append.
        parameters.setdefault("target_session_attrs", "read-write")
    return {**parameters, "row_factory": dict_row}


def _bound(connection: BoundedConnection, bounds: PostgresBounds) -> None:
    connection.answer_s_max = bounds.answer_s_max
    connection.autocommit = True
    settings = {
        "lock_timeout": f"{round(bounds.lock_s_max * 1000)}ms",
        "idle_in_transaction_session_timeout": f"{round(bounds.idle_s_max * 1000)}ms",
        # Of the role or the database: it would end the making of an index, and a commit that waits
        # for its standby as one that succeeded.
        "statement_timeout": "0",
        # Who has waited for its turn has to see what the one before it has stored.
        "default_transaction_isolation": "read committed",
    }
    set_all = ", ".join(["set_config(%s, %s, false)"] * len(settings))
    connection.execute(f"SELECT {set_all}", list(chain.from_iterable(settings.items())))

    # What was given up would go on beside what is asked next. An old server does not
    # know it, one on some systems cannot do it.
    with suppress(UndefinedObject, InvalidParameterValue):
        connection.execute(_ENDS_ABANDONED)

    def note(diagnostic: Diagnostic) -> None:
        if diagnostic.severity_nonlocalized == "WARNING":
            connection.warned = True

    connection.add_notice_handler(note)


def _losing(unsafe: Mapping[str, str]) -> str:
    settings = ", ".join(f"{name}={value}" for name, value in unsafe.items())
    return f"{settings}: the server loses commits that it confirmed in a power cut"


def _in_one_line(error: Exception) -> str:
    return "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
