"""The log in PostgreSQL, for a cluster of hosts.

Each append takes the library's EXCLUSIVE lock on the table, so that positions follow the order of
the commits and a reader by position misses nothing. Appends run once: the library would repeat
them after a lost connection and could report a conflict with itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from eventsourcing.domain import EventSourcingError
from eventsourcing.persistence import (
    ApplicationRecorder,
    NotSupportedError,
    StoredEvent,
    Subscription,
)
from eventsourcing.postgres import PostgresApplicationRecorder, PostgresDatastore
from psycopg import Cursor, OperationalError, ProgrammingError
from psycopg.rows import DictRow, TupleRow, tuple_row
from psycopg.sql import SQL, Identifier
from typing_extensions import override

from eventstore import queue_depths, read_models
from eventstore.errors import LogUnavailable
from eventstore.events import Event
from eventstore.log import LogRow, QueueDepth
from eventstore.postgres_bounds import PostgresBounds
from eventstore.postgres_connections import BoundedConnection, Datastore
from eventstore.read_models import READ_MODELS
from eventstore.session import LogSession, Store, StoredPosting

_BOUNDS: Final = PostgresBounds()
_CREATION_LOCK: Final = int.from_bytes(b"poste", "big")
_TABLES: Final = (
    """
    CREATE TABLE IF NOT EXISTS postings (
        list bytea NOT NULL, timestamp_s double precision NOT NULL, version bigint NOT NULL,
        revision bigint NOT NULL, own smallint NOT NULL,
        PRIMARY KEY (list, timestamp_s, version) INCLUDE (revision, own)
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS snapshots (
        stream bytea PRIMARY KEY, version bigint NOT NULL, fold bigint NOT NULL,
        state bytea NOT NULL
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS queue_depths (
        stream bytea PRIMARY KEY, messages bigint NOT NULL, bytes bigint NOT NULL,
        oldest_at_ms bigint, did bytea NOT NULL DEFAULT '', outbound smallint NOT NULL DEFAULT 0
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS dedicated (
        stream bytea PRIMARY KEY, did bytea NOT NULL, reason bytea NOT NULL
    )
    """,
    "CREATE TABLE IF NOT EXISTS settings (name bytea PRIMARY KEY, value bytea NOT NULL)",
    "CREATE TABLE IF NOT EXISTS heartbeat (id bigint PRIMARY KEY, beats bigint NOT NULL)",
)

_LATER: Final = (
    """
    ALTER TABLE queue_depths
    ADD COLUMN IF NOT EXISTS did bytea NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS outbound smallint NOT NULL DEFAULT 0
    """,
    """
    CREATE INDEX IF NOT EXISTS outbound_queues ON queue_depths (oldest_at_ms)
    WHERE messages > 0 AND outbound = 1
    """,
)
"""What the first logs were made without. Done only where it is missing: looking for it takes no
lock, doing it waits for every reader and lets nobody write meanwhile."""
_IS_CURRENT: Final = "SELECT to_regclass('outbound_queues') IS NOT NULL AS current"


def open_postgres_store(
    conninfo: str, *, allow_unsafe: bool = False, bounds: PostgresBounds = _BOUNDS
) -> Store:
    """The store in this database (a ``postgresql://`` URL), whose tables are made if missing.

    Raises:
        LogUnavailable: no server can be reached, or it refuses.
        UnsafeLog: the server may lose commits that it confirmed, unless ``allow_unsafe``.
    """
    try:
        return PostgresStore(conninfo, allow_unsafe=allow_unsafe, bounds=bounds)
    except (EventSourcingError, ProgrammingError) as error:
        raise LogUnavailable(f"PostgreSQL: {error}") from error


class PostgresStore(Store):
    """A ``Store`` on a pool of connections."""

    def __init__(
        self, conninfo: str, *, allow_unsafe: bool = False, bounds: PostgresBounds = _BOUNDS
    ) -> None:
        """See ``open_postgres_store``."""
        self._datastore = Datastore(conninfo, bounds, allow_unsafe=allow_unsafe)
        try:
            self.recorder: ApplicationRecorder = self._create_recorder()
        except BaseException:
            self._datastore.close()
            raise

    @override
    @contextmanager
    def reading(self) -> Iterator[LogSession]:
        with self._datastore.get_connection() as connection, connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield _Session(connection.cursor(row_factory=tuple_row))

    @override
    @contextmanager
    def writing(self) -> Iterator[LogSession]:
        with self._datastore.get_connection() as connection, connection.transaction():
            yield _Session(connection.cursor(row_factory=tuple_row))

    @override
    def close(self) -> None:
        self._datastore.close()

    def _create_recorder(self) -> PostgresRecorder:
        # IF NOT EXISTS does not keep two processes from making the same table at the same time.
        with self._datastore.get_connection() as connection:
            connection.execute("SELECT pg_advisory_lock(%s)", (_CREATION_LOCK,))
            try:
                recorder = PostgresRecorder(self._datastore)
                recorder.create_table()
                current = connection.execute(_IS_CURRENT).fetchone()
                if current is None or not current["current"]:
                    # An index takes as long as its table is large.
                    assert isinstance(connection, BoundedConnection)
                    connection.answer_s_max = None
                    for statement in _LATER:
                        connection.execute(statement)
            finally:
                connection.execute("SELECT pg_advisory_unlock(%s)", (_CREATION_LOCK,))
        return recorder


class PostgresRecorder(PostgresApplicationRecorder):
    """The library's recorder without its retries, and with the read models beside it."""

    select_events = inspect.unwrap(PostgresApplicationRecorder.select_events)
    select_notifications = inspect.unwrap(PostgresApplicationRecorder.select_notifications)
    max_notification_id = inspect.unwrap(PostgresApplicationRecorder.max_notification_id)

    def __init__(self, datastore: PostgresDatastore) -> None:
        super().__init__(datastore)
        # The library's function inserts without the lock, so that readers could miss rows.
        assert not datastore.enable_db_functions
        # Four arrays in binary form instead of one array of records, written as text.
        self.insert_events_statement = SQL(
            "INSERT INTO {schema}.{table} (originator_id, originator_version, topic, state)"
            " SELECT r.originator_id, r.originator_version, r.topic, r.state"
            " FROM unnest(%b::uuid[], %b::bigint[], %b::text[], %b::bytea[]) WITH ORDINALITY"
            " AS r (originator_id, originator_version, topic, state, number)"
            " ORDER BY r.number RETURNING notification_id"
        ).format(schema=Identifier(datastore.schema), table=Identifier(self.events_table_name))
        # The library's first statement sets the lock time-out, which here each connection has.
        self.lock_table_statements = self.lock_table_statements[1:]
        self.sql_create_statements += [SQL(table).format() for table in _TABLES]

    @override
    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int]:
        # No pipeline: with a large batch both sides can block writing to each other.
        if not stored_events:
            return []
        with self.datastore.get_connection() as connection:
            assert isinstance(connection, BoundedConnection)
            connection.warned = False
            with connection.transaction(), connection.cursor() as cursor:
                self._lock_table(cursor)
                self._insert_stored_events(cursor, stored_events)
                positions = [row["notification_id"] for row in cursor]
                self._insert_events(cursor, stored_events, **kwargs)
            if connection.warned:
                # A commit whose wait for the standby was cancelled succeeds with a warning.
                raise OperationalError("the server warned of the commit")
        return positions

    @override
    def _insert_stored_events(
        self, curs: Cursor[DictRow], stored_events: Sequence[StoredEvent], **_: Any
    ) -> None:
        curs.execute(
            self.insert_events_statement,
            (
                [row.originator_id for row in stored_events],
                [row.originator_version for row in stored_events],
                [row.topic for row in stored_events],
                [row.state for row in stored_events],
            ),
        )

    @override
    def _insert_events(
        self,
        curs: Cursor[DictRow],
        stored_events: Sequence[StoredEvent],
        *,
        events: Sequence[Event] = (),
        depths: Sequence[QueueDepth] = (),
        **_: Any,
    ) -> None:
        if events:
            session = _Session(curs.connection.cursor(row_factory=tuple_row))
            read_models.apply(session, stored_events, events)
            queue_depths.save(session, depths)

    @override
    def subscribe(
        self, gt: int | None = None, topics: Sequence[str] = ()
    ) -> Subscription[ApplicationRecorder]:
        """Refused: appends do not NOTIFY, because every reader follows the log by position."""
        raise NotSupportedError("follow the log by position")


class _Session(LogSession):
    """A ``LogSession`` on a cursor within a transaction."""

    def __init__(self, cursor: Cursor[TupleRow]) -> None:
        self._cursor = cursor

    @override
    def rows(self, statement: str, parameters: Sequence[object] = ()) -> Sequence[Sequence[Any]]:
        self._cursor.execute(_with_places(statement), parameters)
        return self._cursor.fetchall()

    @override
    def run_many(self, statement: str, parameters: Iterable[Sequence[object]]) -> None:
        self._cursor.executemany(_with_places(statement), parameters)

    @override
    def stored(self, stream: UUID, versions: Collection[int]) -> dict[int, StoredEvent]:
        found = self.rows(
            "SELECT originator_version, topic, state FROM stored_events"
            " WHERE originator_id = ? AND originator_version = ANY(?)",
            (stream, list(versions)),
        )
        return {row[0]: StoredEvent(stream, *row) for row in found}

    @override
    def log_rows(self, after: int, rows_max: int, bytes_max: int) -> Sequence[LogRow]:
        # The sizes first, because a cursor of the client takes a whole answer into memory. In
        # binary form, because text is twice as long.
        (bounds,) = self.rows(
            "SELECT min(position), max(position) FILTER (WHERE reached <= ?) FROM ("
            " SELECT position, sum(size) OVER (ORDER BY position) AS reached FROM ("
            " SELECT notification_id AS position, length(state) AS size FROM stored_events"
            " WHERE notification_id > ? ORDER BY notification_id LIMIT ?) AS sizes) AS sums",
            (bytes_max, after, rows_max),
        )
        first, last = bounds
        if first is None:
            return []
        with self._cursor.connection.cursor(binary=True, row_factory=tuple_row) as cursor:
            cursor.execute(
                "SELECT notification_id, uuid_send(originator_id), originator_version, topic,"
                " state FROM stored_events WHERE notification_id BETWEEN %s AND %s"
                " ORDER BY notification_id",
                (first, last or first),
            )
            return [LogRow(*row) for row in cursor]

    @override
    def first_rows(self, streams: Sequence[bytes]) -> dict[bytes, StoredEvent]:
        found = self.rows(
            "SELECT originator_id, topic, state FROM stored_events WHERE originator_version = 1"
            " AND originator_id = ANY(?)",
            ([UUID(bytes=stream) for stream in streams],),
        )
        return {stream.bytes: StoredEvent(stream, 1, *row) for stream, *row in found}

    @override
    def import_rows(self, rows: Sequence[LogRow]) -> None:
        with self._cursor.copy(
            "COPY stored_events"
            " (notification_id, originator_id, originator_version, topic, state)"
            " FROM STDIN (FORMAT BINARY)"
        ) as copy:
            copy.set_types(["int8", "uuid", "int8", "text", "bytea"])
            for r in rows:
                copy.write_row((r.position, UUID(bytes=r.stream), r.version, r.topic, r.state))
        self.rows(
            "SELECT setval(pg_get_serial_sequence('stored_events', 'notification_id'), ?)",
            (rows[-1].position,),
        )

    @override
    def import_postings(self, postings: Collection[StoredPosting]) -> None:
        with self._cursor.copy(
            "COPY postings (list, timestamp_s, version, revision, own) FROM STDIN (FORMAT BINARY)"
        ) as copy:
            copy.set_types(["bytea", "float8", "int8", "int8", "int2"])
            for posting in sorted(postings):
                copy.write_row(posting)

    @override
    def clear(self) -> None:
        # In place of DELETE, which leaves everything in the files.
        self._cursor.execute(
            SQL("TRUNCATE {}").format(
                SQL(", ").join(map(Identifier, ("stored_events", *READ_MODELS)))
            )
        )


@lru_cache(maxsize=256)
def _with_places(statement: str) -> bytes:
    return statement.replace("?", "%s").encode()
