"""Connections to PostgreSQL, bounded in number and in every wait.

libpq waits for ever for a server that was stopped, or cut off silently. Here the wait for each
answer has an end, after which the connection is closed and the outcome is unknown. Each new
connection reads the server's settings of durability, because it may be to another server: the DSN
may name several, one of which is the primary.
"""

from __future__ import annotations

import logging
import os
import re
import select
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, Self, TypeVar

import psycopg
from eventsourcing import persistence
from eventsourcing.persistence import PersistenceError
from psycopg import Connection, Error, OperationalError, ProgrammingError, pq
from psycopg.abc import PQGen
from psycopg.conninfo import make_conninfo
from psycopg.errors import (
    Diagnostic,
    InvalidParameterValue,
    QueryCanceled,
    ReadOnlySqlTransaction,
    SerializationFailure,
    UndefinedObject,
)
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row
from psycopg.sql import SQL
from psycopg_pool import ConnectionPool, PoolTimeout
from typing_extensions import override

from eventstore.log.errors import (
    LogFull,
    LogUnavailable,
    ReadCancelled,
    ReadTooLong,
    UnsafeLog,
)
from eventstore.stores.postgres_bounds import PostgresBounds
from eventstore.stores.postgres_urls import each_server, parameters_of, servers_in

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")
# psycopg logs each failed attempt to connect and each rollback on a lost connection: many lines in
# an outage, which only repeat the errors of the log.
logging.getLogger("psycopg").setLevel(logging.ERROR)
_RECONNECT_S: Final = 3.0
"""For this long the pool retries a broken connection, and after that at the next use: the library
doubles its pauses, so after a long outage it would wait for as long again."""
_TRIES: Final = 5
_LOOK_S: Final = 0.1
_FRESH_S: Final = 1.0
"""A connection that answered within this time is not checked, unless it has unread data, as one has
that the server has closed: a busy host would otherwise check it before each append."""
_KINDS: Final[Mapping[type[Error], type[Exception]]] = {
    psycopg.errors.DiskFull: LogFull,
    psycopg.errors.ConfigurationLimitExceeded: LogFull,  # temp_file_limit
    QueryCanceled: ReadTooLong,  # statements have a bound only where it is set
    SerializationFailure: ReadCancelled,  # only readings have an isolation level that has it
    psycopg.InterfaceError: persistence.InterfaceError,
    psycopg.OperationalError: persistence.OperationalError,
    psycopg.DataError: persistence.DataError,
    psycopg.IntegrityError: persistence.IntegrityError,
    psycopg.InternalError: persistence.InternalError,
    psycopg.ProgrammingError: persistence.ProgrammingError,
    psycopg.NotSupportedError: persistence.NotSupportedError,
    psycopg.DatabaseError: persistence.DatabaseError,
    Error: PersistenceError,
}
_DURABLE: Final[Mapping[str, str]] = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on local remote_write remote_apply",
}
_REPLICATED: Final = ("on", "remote_write", "remote_apply")
_OF_NUMBERS: Final = ("GetNewTransactionId", "GetNewMultiXactId")
"""The server's functions that warn at each transaction, long before its numbers of transactions run
out, because of any of its databases. That says nothing about the commit."""
_TO_CORRECT: Final = ("28", "3D", "3F", "42")
"""Classes of SQLSTATE whose cause stays until it is corrected: the login, the database, the schema,
rights and names. With others a server says that it cannot serve now: full, starting, read-only."""
_SAID: Final = re.compile(rb'\tErrorResponse\t.* C "(\w{5})" M "(.*)')
"""The SQLSTATE and the first line of the text, which the trace quotes as it is."""
_OF_POOLER: Final = b"08P01"
_BY_POOLER: Final = re.compile(
    rb"no such (?:user|database)|authentication failed|login rejected|SSL required|"
    rb"unsupported (?:options )?startup parameter|database \".*\" is disabled|"
    rb"database does not allow connections|bouncer config error|^not allowed\b"
)
"""PgBouncer's messages for permanent errors. They are always English; its only SQLSTATE also covers
temporary ones: its server is away, or it has no room."""
_DISABLED: Final = '" is disabled'
_WAITED: Final[Mapping[int, int]] = {
    pq.PollingStatus.READING: select.POLLIN,
    pq.PollingStatus.WRITING: select.POLLOUT,
}
_GIVEN_UP: Final = re.compile(
    rb"certificate verify failed|(?:ssl|tls)\S* alert|server certificate for|certificate file|"
    rb"SSL was required|no password supplied|channel binding|authentication method requirement|"
    rb"invalid \w+ value|invalid port number"
)
"""Messages of libpq, in the driver always English, if it fails before the server has answered: the
two sides agree on no TLS or login, or a parameter of the URL is not valid."""
_SHARED: Final = "a pooler shares sessions between transactions; have it pool whole sessions"
_ENDS_ABANDONED: Final = "SELECT set_config('client_connection_check_interval', '1s', false)"
_SET: Final = (
    "SELECT set_config(name, value, false) FROM unnest(%s::text[], %s::text[]) AS s (name, value)"
    " WHERE current_setting(name, true) IS NOT NULL"
)
"""Skips what the server is too old to know."""
_STAYS_DURABLE: Final = SQL(
    "SELECT set_config('synchronous_commit', found, false)"
    " FROM current_setting('synchronous_commit') AS found WHERE found = ANY({})"
).format(_DURABLE["synchronous_commit"].split())
_SETTINGS: Final = SQL(
    "SELECT current_setting('fsync') AS fsync,"
    " current_setting('full_page_writes') AS full_page_writes,"
    " current_setting('synchronous_commit') AS synchronous_commit,"
    " current_setting('synchronous_standby_names') AS synchronous_standby_names"
)


def _ignore(_: Error) -> None:
    """Ignore why there is no connection: the caller gets the error."""


class BoundedConnection(Connection[Any]):
    """A connection whose every wait for the server ends.

    Attributes:
        answer_s_max: Seconds for the answer to one statement; None waits for ever.
        answered_s: When the server answered last, monotonic.
        warned: Whether the server has warned since this was last set to False, of anything but its
            numbers of transactions.
    """

    answer_s_max: float | None = None
    answered_s: float = 0.0
    warned: bool = False

    @override
    @classmethod
    def connect(cls, *args: Any, **kwargs: Any) -> Self:
        """Connect within ``bounds``; ``on_refused``, a function, gets the error that is raised."""
        bounds: PostgresBounds = kwargs.pop("bounds")
        on_refused: Callable[[Error], None] = kwargs.pop("on_refused", _ignore)
        try:
            connection = super().connect(*args, **kwargs)
            try:
                _bound(connection, bounds)
            except BaseException:
                connection.close()
                raise
        except Error as error:
            on_refused(error)
            raise
        return connection

    @override
    def wait(self, gen: PQGen[_T], interval: float = _LOOK_S, timeout: float | None = None) -> _T:
        try:
            answer = super().wait(gen, interval, self.answer_s_max if timeout is None else timeout)
        except OperationalError as error:
            if self.pgconn.transaction_status != TransactionStatus.ACTIVE:
                raise
            # The statement was given up midway: what comes next here answers no statement of ours.
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
        servers = servers_in(parameters)
        self._is_one_of_several = servers > 1
        self._refused = ""
        self._try(parameters)
        self._pool = ConnectionPool(
            connection_class=BoundedConnection,
            kwargs={**parameters, "on_refused": self._note},
            min_size=bounds.connections_kept,
            max_size=bounds.connections_max,
            open=False,
            configure=self._prepare,
            check=self._check,
            timeout=bounds.connect_s_max * servers / _TRIES,
            reconnect_timeout=_RECONNECT_S,
        )

    @contextmanager
    def connection(self) -> Iterator[BoundedConnection]:
        """A connection in autocommit mode, for the time of the block.

        Raises:
            LogFull, ReadTooLong, ReadCancelled, PersistenceError: an error of the driver, as the
                log's or the library's of that kind.
        """
        try:
            if self._pool.closed:
                self._pool.open()
            with self._from_pool() as connection:
                # The previous user may have raised the limit.
                connection.answer_s_max = self._bounds.answer_s_max
                try:
                    yield connection
                except ReadOnlySqlTransaction:
                    # What began while the database took no writes takes none as long as it lasts.
                    connection.close()
                    raise
        except Error as error:
            is_of_server = isinstance(error, OperationalError)
            if self._is_one_of_several and is_of_server and not isinstance(error, QueryCanceled):
                # Another server may be the primary by now, though this one still answers: commits
                # that wait here for its lost standby keep their locks. A statement that was as long
                # as it may be says nothing of its server.
                self._pool.drain()
            kind = next(ours for theirs, ours in _KINDS.items() if isinstance(error, theirs))
            is_refused = isinstance(error, PoolTimeout) and self._refused
            raise kind(self._refused if is_refused else str(error)) from error

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()

    @contextmanager
    def _from_pool(self) -> Iterator[BoundedConnection]:
        taken = self._taken()
        try:
            with taken as connection:
                yield connection
        finally:
            self._pool.putconn(taken)

    def _taken(self) -> BoundedConnection:
        """A connection, waited for in several tries.

        Each try has the pool connect again if it has given up. A connection that was cut off
        silently takes its time to be found out: that costs one try, and not the whole wait.
        """
        for _ in range(_TRIES - 1):
            with suppress(PoolTimeout):
                return self._pool.getconn()
        return self._pool.getconn()

    def _note(self, error: Error) -> None:
        """Keep why there is no new connection: the pool would only say that it got none."""
        self._refused = _in_one_line(error)

    def _prepare(self, connection: Connection[Any]) -> None:
        """Prepare a new connection; refuse one to a server that loses commits."""
        assert isinstance(connection, BoundedConnection)
        self._refused = ""
        unsafe = unsafe_settings(connection)
        if unsafe and not self._allow_unsafe:
            connection.close()
            _LOG.error("refused to use a PostgreSQL server: %s", _losing(unsafe))
            raise OperationalError(_losing(unsafe))

    def _check(self, connection: Connection[Any]) -> None:
        """Check that an idle connection still lives."""
        assert isinstance(connection, BoundedConnection)
        says = select.poll()
        says.register(connection.fileno(), select.POLLIN)
        if time.monotonic() - connection.answered_s < _FRESH_S and not says.poll(0):
            return
        connection.answer_s_max = self._bounds.connect_s_max
        try:
            connection.execute("")
        except OperationalError:
            # The others are to the same server: checking each in turn would take too long.
            self._pool.drain()
            raise

    def _try(self, parameters: Mapping[str, Any]) -> None:
        """Connect once by hand: the pool would only say that it got no connection."""
        try:
            with BoundedConnection.connect(**parameters) as connection:
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
    """Open a connection outside of the pool, for the caller alone.

    Raises:
        LogUnavailable: no server can be reached, or it refuses; says which and why.
    """
    try:
        return BoundedConnection.connect(**_parameters(dsn, bounds))
    except (OperationalError, ProgrammingError) as error:
        raise LogUnavailable(f"PostgreSQL: {_in_one_line(error)}") from error


def is_refused(dsn: str, bounds: PostgresBounds) -> bool:
    """Whether each server refuses for a reason that no further try with this URL will remove.

    It connects once more. False if a server does not answer within ``connect_s_max``, or cannot
    serve now. psycopg has no SQLSTATE of a refused connection, only a text in the server's
    language; the trace of libpq has it. The driver keeps some bytes of each trace, so this is for
    a start only.

    Raises:
        LogUnusable: the URL cannot be read.
    """
    parameters = parameters_of(dsn, bounds)
    # As psycopg does, and unlike libpq, which asks no other server after one that refuses.
    return all(_refuses(one, bounds.connect_s_max) for one in each_server(parameters))


def _refuses(parameters: Mapping[str, Any], connect_s_max: float) -> bool:
    until_s = time.monotonic() + connect_s_max
    with os.fdopen(os.memfd_create("trace"), "r+b") as trace:
        pgconn = pq.PGconn.connect_start(make_conninfo(**parameters).encode())
        pgconn.trace(trace.fileno())
        try:
            while (state := pgconn.connect_poll()) in _WAITED:
                says = select.poll()
                says.register(pgconn.socket, _WAITED[state])
                left_s = until_s - time.monotonic()
                # If it is polled before that, libpq itself waits, and without end.
                if left_s <= 0 or not says.poll(left_s * 1000):
                    break
        finally:
            pgconn.untrace()
        trace.seek(0)
        said = _SAID.findall(trace.read())
    # The last error counts: those before it are of a try with, or without, TLS.
    code, text = said[-1] if said else (b"", pgconn.error_message)
    pgconn.finish()
    if code in (b"", _OF_POOLER):
        stays = bool((_BY_POOLER if code else _GIVEN_UP).search(text))
    else:
        stays = code[:2].decode() in _TO_CORRECT
    return state == pq.PollingStatus.FAILED and stays


def needs_correction(error: BaseException | None) -> bool:
    """Whether the server refused a statement for a reason that does not pass by itself."""
    return isinstance(error, Error) and (error.sqlstate or "")[:2] in _TO_CORRECT


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
    """Whether a pooler shares the server's session with others between transactions.

    Then settings of one client would hold for another, and locks of sessions for neither.
    """
    session = _session(connection)
    if session == connection.info.backend_pid:
        return False  # no pooler
    with BoundedConnection.connect(**parameters) as other:
        return _session(other) == session or _session(connection) != session


def _session(connection: Connection[Any]) -> int:
    found = connection.execute("SELECT pg_backend_pid() AS pid").fetchone()
    assert found is not None
    return int(found["pid"])


def _parameters(dsn: str, bounds: PostgresBounds) -> dict[str, Any]:
    """What ``BoundedConnection.connect`` takes."""
    return {**parameters_of(dsn, bounds), "row_factory": dict_row, "bounds": bounds}


def _bound(connection: BoundedConnection, bounds: PostgresBounds) -> None:
    connection.answer_s_max = bounds.answer_s_max
    connection.autocommit = True
    settings = {
        "lock_timeout": f"{round(bounds.lock_s_max * 1000)}ms",
        "idle_in_transaction_session_timeout": f"{round(bounds.idle_s_max * 1000)}ms",
        # A time-out of the role or the database would cancel the making of an index, and end a
        # commit that waits for its standby as if it had succeeded.
        "statement_timeout": "0",
        # As would one of transactions, with a rebuild of the read models. One of sessions would
        # release an advisory lock.
        "transaction_timeout": "0",
        "idle_session_timeout": "0",
        # An append that waited for its turn must see what the one before it stored.
        "default_transaction_isolation": "read committed",
        # Only a warning tells of a commit that did not wait for its standby.
        "client_min_messages": "warning",
        # Up to release 17 a scan that enable_seqscan=off cannot avoid makes a plan so costly that
        # the server compiles it: some appends would hold the lock of all for 0.3 s.
        "jit": "off",
        # If this is off, the driver escapes bytes in arrays twice.
        "standard_conforming_strings": "on",
    }
    connection.execute(_SET, [list(settings), list(settings.values())])
    # Else a later reload of the server's settings could weaken the commits of this session.
    connection.execute(_STAYS_DURABLE)
    # Otherwise an abandoned statement would go on beside the next one. An old server does not know
    # the setting; on some systems a server cannot do it.
    with suppress(UndefinedObject, InvalidParameterValue):
        connection.execute(_ENDS_ABANDONED)

    def note(diagnostic: Diagnostic) -> None:
        if diagnostic.severity_nonlocalized != "WARNING":
            return
        if diagnostic.source_function not in _OF_NUMBERS:
            connection.warned = True

    connection.add_notice_handler(note)


def _losing(unsafe: Mapping[str, str]) -> str:
    settings = ", ".join(f"{name}={value}" for name, value in unsafe.items())
    return f"{settings}: the server loses commits that it confirmed in a power cut"


def _in_one_line(error: Exception) -> str:
    said = "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
    return f"{said} in PgBouncer: give ENABLE at its console" if _DISABLED in said else said
