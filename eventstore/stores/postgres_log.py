"""The log in PostgreSQL, for a cluster of hosts.

Appends take turns by a lock, so that positions follow the order of the commits and a reader by
position misses nothing. An append runs once: if it were repeated after a lost connection, it could
report a conflict with itself.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from eventsourcing.domain import EventSourcingError
from eventsourcing.persistence import ApplicationRecorder, OperationalError, StoredEvent
from psycopg import Connection, Cursor
from psycopg.errors import FeatureNotSupported
from psycopg.rows import TupleRow, tuple_row
from psycopg.sql import SQL, Identifier
from typing_extensions import override

from eventstore.log.errors import (
    LogFull,
    LogUnavailable,
    LogUnusable,
    NotComparable,
    ReadCancelled,
    ReadTooLong,
)
from eventstore.log.event_log import (
    BYTES_ANY,
    ChangedRow,
    LogRow,
    QueueDepth,
    StorageFigures,
    StoredRecord,
)
from eventstore.log.events import Event
from eventstore.log.session import LogSession, Store, StoredPosting
from eventstore.read_models.queue_depths import forget_totals
from eventstore.read_models.saved_events_erasure import LastSteps
from eventstore.read_models.update import INDEXED, MADE, READ_MODELS, update_read_models
from eventstore.stores.postgres_append import AGE, KEEP_OUT, append
from eventstore.stores.postgres_bounds import PostgresBounds
from eventstore.stores.postgres_connections import (
    BoundedConnection,
    PostgresConnections,
    needs_correction,
)
from eventstore.stores.postgres_tables import (
    LATER_COLUMNS,
    make_tables,
    require_log,
    require_own,
    require_queues,
    require_read_models,
    require_whole,
)
from eventstore.stores.sql_recorder import SqlRecorder

_BOUNDS: Final = PostgresBounds()
_ERASE: Final = (
    "DELETE FROM contents USING unnest(%b::uuid[], %b::bigint[]) AS gone (stream, version),"
    " public.stored_events WHERE originator_id = stream AND originator_version = version"
    " AND position = notification_id"
)
_CLEARED: Final = ("stored_events", "contents", "archived_states", *READ_MODELS)
_SIZED: Final = ", ".join(f"'{name}'" for name in (*READ_MODELS, "queue_totals"))
_STORAGE: Final = (
    "SELECT pg_total_relation_size('public.stored_events'),"  # noqa: S608 - own text
    " pg_total_relation_size('contents'),"
    " (SELECT sum(pg_total_relation_size(name::regclass)) FROM unnest("
    f"ARRAY[{_SIZED}]) AS name),"
    " has_function_privilege('pg_ls_waldir()', 'execute')"
)
_FOR_SCRATCH: Final = (
    "SELECT current_schema(), quote_ident(current_schema()),"
    " has_database_privilege(current_database(), 'TEMPORARY')"
)
_BOUND: Final = "SELECT set_config('statement_timeout', %s, true)"
_OWN_TIME: Final = 0.9
"""The server's part of the time for the answer to a statement."""


class PostgresStore(Store):
    """A ``Store`` on a pool of connections."""

    def __init__(
        self,
        conninfo: str,
        *,
        allow_unsafe: bool = False,
        bounds: PostgresBounds = _BOUNDS,
        makes_missing: bool = False,
        to_read: bool = False,
    ) -> None:
        """Open the store in this database (a ``postgresql://`` URL), and make missing tables.

        ``makes_missing``: also accept a log that lacks read models. ``to_read``: make no tables, so
        the server may be a standby.

        Raises:
            LogMissing: there is no log in the database, with ``to_read`` or ``makes_missing``.
            ReadModelsMissing: the log has rows and lacks a read model, or all its queues.
            LogUnavailable: no server can be reached, or it refuses.
            LogUnusable: the log is not whole, or rights on its tables are missing, or it may be
                opened at the primary only, and follows another server by a subscription.
            UnsafeLog: the server may lose commits that it confirmed, unless ``allow_unsafe``.
        """
        self._connections = PostgresConnections(conninfo, bounds, allow_unsafe=allow_unsafe)
        try:
            with self._connections.connection() as connection:
                require_whole(connection)
                if bounds.at_primary:
                    require_own(connection)
                if to_read or makes_missing:
                    require_log(connection, to_read=to_read)
                if not makes_missing:
                    require_read_models(connection)
                if not (makes_missing or to_read):
                    require_queues(connection)
                if not to_read:
                    make_tables(connection)
        except BaseException as error:
            self._connections.close()
            if isinstance(error, (EventSourcingError, LogFull, ReadCancelled, ReadTooLong)):
                kind = LogFull if isinstance(error, LogFull) else LogUnavailable
                kind = LogUnusable if needs_correction(error.__cause__) else kind
                raise kind(f"PostgreSQL: {error}") from error
            raise
        self.recorder: ApplicationRecorder = PostgresRecorder(self._connections)

    @override
    @contextmanager
    def asking(self) -> Iterator[LogSession]:
        # Three requests to the server fewer than with a transaction around the statement.
        with self._connections.connection() as connection:
            yield _Session(_cursor(connection))

    @override
    @contextmanager
    def reading(self, seconds_max: float | None = None) -> Iterator[LogSession]:
        with self._connections.connection() as connection:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            try:
                if seconds_max is not None:
                    # The server would go on if only this side gave up: so it is the first to.
                    given_s = min(seconds_max, _OWN_TIME * (connection.answer_s_max or math.inf))
                    connection.execute(_BOUND, [str(math.ceil(given_s * 1000))])
                yield _Session(_cursor(connection))
            finally:
                if not connection.closed:
                    connection.rollback()

    @override
    @contextmanager
    def writing(self) -> Iterator[LogSession]:
        with self._connections.connection() as connection, connection.transaction():
            yield _Session(_cursor(connection))

    @override
    @contextmanager
    def scratch(self) -> Iterator[tuple[LogSession, str]]:
        with self._connections.connection() as connection, connection.transaction():
            connection.answer_s_max = None
            try:
                connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ WRITE")
            except FeatureNotSupported as error:
                raise NotComparable("a standby can make no temporary tables") from error
            require_read_models(connection)
            session = _Session(_cursor(connection))
            ((schema, quoted, may_make),) = session.rows(_FOR_SCRATCH)
            if not may_make:
                raise NotComparable("the role may make no temporary tables (GRANT TEMPORARY)")
            for name in MADE:
                # A temporary table hides the table of the same name in any schema.
                connection.execute(
                    SQL("CREATE TEMP TABLE {} (LIKE {} INCLUDING ALL) ON COMMIT DROP").format(
                        Identifier(name), Identifier(schema, name)
                    )
                )
            connection.execute(LATER_COLUMNS)  # of the temporary table
            # A statement that is prepared already would still mean the stored table.
            connection.execute("DISCARD PLANS")
            yield session, quoted

    @override
    def storage(self) -> StorageFigures:
        with self.reading() as session:
            ((facts, contents, read_models, may_list),) = session.rows(_STORAGE)
            # Only superusers and the role pg_monitor may see the files of the WAL.
            wal = session.rows("SELECT sum(size) FROM pg_ls_waldir()")[0][0] if may_list else None
        return StorageFigures(
            facts_bytes=facts,
            contents_bytes=contents,
            read_models_bytes=int(read_models),
            wal_bytes=None if wal is None else int(wal),
            free_bytes=None,
            used_bytes=int(facts + contents + read_models + (wal or 0)),
        )

    @override
    def close(self) -> None:
        self._connections.close()


def _cursor(connection: Connection[Any]) -> Cursor[TupleRow]:
    """A cursor for answers in binary form: bytes as text are twice as long."""
    return connection.cursor(binary=True, row_factory=tuple_row)


class PostgresRecorder(SqlRecorder):
    """A recorder with one request for a batch, and the read models in its transaction."""

    position = "notification_id"
    table = "public.stored_events"

    def __init__(self, connections: PostgresConnections) -> None:
        self._connections = connections
        self._steps: LastSteps = {}

    @override
    def insert_events(
        self,
        stored_events: Sequence[StoredEvent],
        *,
        events: Sequence[Event] = (),
        depths: Sequence[QueueDepth] = (),
        **_: Any,
    ) -> Sequence[int]:
        if not stored_events:
            return []
        with self._connections.connection() as connection:
            connection.warned = False
            with _cursor(connection) as cursor:
                if any(isinstance(event, INDEXED) for event in events):
                    with connection.transaction():
                        positions = append(cursor, stored_events, events, depths)
                        update_read_models(_Session(cursor), stored_events, events, self._steps)
                else:
                    positions = append(cursor, stored_events, events, depths)
            if connection.warned:
                # A commit whose wait for the standby was cancelled succeeds with a warning.
                raise OperationalError("the server gave a warning about the commit")
        return positions

    @override
    def _rows(self, statement: str, parameters: Sequence[object]) -> Sequence[Sequence[Any]]:
        with self._connections.connection() as connection, _cursor(connection) as cursor:
            return cursor.execute(_with_places(statement), parameters, prepare=True).fetchall()

    @override
    def _stored_stream(self, stream: UUID | str) -> object:
        return stream

    @override
    def _stream(self, stored: Any) -> UUID | str:
        found: UUID = stored
        return found


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
    def records(self, stream: UUID, versions: Collection[int]) -> dict[int, StoredRecord]:
        found = self.rows(
            "SELECT content, originator_version, topic, state FROM stored_events"
            " LEFT JOIN contents ON position = notification_id"
            " WHERE originator_id = ? AND originator_version = ANY(?)",
            (stream, list(versions)),
        )
        return {row[0]: StoredRecord(StoredEvent(stream, *row), content) for content, *row in found}

    @override
    def records_of(
        self, wanted: Mapping[UUID, Sequence[int]]
    ) -> dict[UUID, dict[int, StoredRecord]]:
        if len(wanted) == 1:
            return super().records_of(wanted)
        found = self.rows(
            "SELECT content, stream, originator_version, topic, state"
            " FROM unnest(?::uuid[], ?::bigint[]) AS wanted (stream, version)"
            " JOIN stored_events ON originator_id = stream AND originator_version = version"
            " LEFT JOIN contents ON position = notification_id",
            (
                [stream for stream, versions in wanted.items() for _ in versions],
                [version for versions in wanted.values() for version in versions],
            ),
        )
        records: dict[UUID, dict[int, StoredRecord]] = {stream: {} for stream in wanted}
        for content, *row in found:
            stored = StoredEvent(*row)
            records[row[0]][row[1]] = StoredRecord(stored, content)
        return records

    @override
    def contents(self, after: int, until: int, bytes_max: int = BYTES_ANY) -> dict[int, bytes]:
        # The length of a content is known without reading it.
        found = self.rows(
            "SELECT position, content FROM (SELECT position, content,"
            " sum(length(content)) OVER (ORDER BY position) - length(content) AS before"
            " FROM contents WHERE position > ? AND position <= ?) AS sums"
            " WHERE before < ? ORDER BY position",
            (after, until, bytes_max),
        )
        return dict(map(tuple, found))

    @override
    def erase(self, gone: Collection[tuple[UUID, int]]) -> None:
        if gone:
            streams, versions = zip(*gone, strict=True)
            self._cursor.execute(_ERASE, (list(streams), list(versions)))

    @override
    def log_rows(self, after: int, rows_max: int, bytes_max: int) -> Sequence[LogRow]:
        # The sizes first, because a client-side cursor reads a whole answer into memory.
        (bounds,) = self.rows(
            "SELECT min(position), max(position) FILTER (WHERE reached <= ?) FROM ("
            " SELECT position, sum(size) OVER (ORDER BY position) AS reached FROM ("
            " SELECT notification_id AS position, length(state) + coalesce(length(content), 0)"
            " AS size FROM stored_events LEFT JOIN contents ON position = notification_id"
            " WHERE notification_id > ? ORDER BY notification_id LIMIT ?) AS sizes) AS sums",
            (bytes_max, after, rows_max),
        )
        first, last = bounds
        if first is None:
            return []
        found = self.rows(
            "SELECT notification_id, uuid_send(originator_id), originator_version, topic,"
            " state, content FROM stored_events"
            " LEFT JOIN contents ON position = notification_id"
            " WHERE notification_id BETWEEN ? AND ? ORDER BY notification_id",
            (first, last or first),
        )
        return [LogRow(*row) for row in found]

    @override
    def states(self, table: str, streams: Sequence[UUID]) -> Sequence[tuple[UUID, int, int, bytes]]:
        found = self.rows(
            f"SELECT stream, version, fold, state FROM {table} WHERE stream = ANY(?)",  # noqa: S608 - own text
            ([stream.bytes for stream in streams],),
        )
        return [(UUID(bytes=stream), *row) for stream, *row in found]

    @override
    def rows_behind(self, after: Mapping[UUID, int], limit: int) -> dict[UUID, list[StoredEvent]]:
        found = self.rows(
            "SELECT stream, originator_version, topic, state"
            " FROM unnest(?::uuid[], ?::bigint[]) AS wanted (stream, after), LATERAL ("
            " SELECT originator_version, topic, state FROM stored_events"
            " WHERE originator_id = stream AND originator_version > after"
            " ORDER BY originator_version LIMIT ?) AS rows",
            (list(after), list(after.values()), limit),
        )
        rows: dict[UUID, list[StoredEvent]] = {stream: [] for stream in after}
        for stream, *row in found:
            rows[stream].append(StoredEvent(stream, *row))
        return rows

    @override
    def append_age_s(self) -> float:
        return float(self.rows(AGE)[0][0])

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
        with self._cursor.copy(
            "COPY contents (position, content) FROM STDIN (FORMAT BINARY)"
        ) as copy:
            copy.set_types(["int8", "bytea"])
            for r in rows:
                if r.content is not None:
                    copy.write_row((r.position, r.content))
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
    def stream_rows(self, stream: UUID, until: int, topics: Collection[str]) -> Sequence[LogRow]:
        found = self.rows(
            "SELECT notification_id, originator_version, topic, state FROM stored_events"
            " WHERE originator_id = ? AND originator_version <= ? AND topic = ANY(?)"
            " ORDER BY originator_version",
            (stream, until, list(topics)),
        )
        return [LogRow(position, stream.bytes, *row) for position, *row in found]

    @override
    def change_rows(self, rows: Sequence[ChangedRow]) -> int:
        self._cursor.execute(
            "UPDATE public.stored_events SET state = later"
            " FROM unnest(%b::bigint[], %b::bytea[], %b::bytea[]) AS r (position, earlier, later)"
            " WHERE notification_id = position AND state = earlier",
            [list(column) for column in zip(*(row[1:] for row in rows), strict=True)],
        )
        return self._cursor.rowcount

    @override
    def remove_rows(self, positions: Collection[int]) -> int:
        self._cursor.execute(
            "DELETE FROM stored_events WHERE notification_id = ANY(%s)"
            " AND NOT EXISTS (SELECT FROM contents WHERE position = notification_id)",
            (list(positions),),
        )
        return self._cursor.rowcount

    @override
    def clear(self) -> None:
        # Not DELETE, which leaves everything in the files.
        self._cursor.execute(SQL("TRUNCATE {}").format(SQL(", ").join(map(Identifier, _CLEARED))))
        forget_totals(self)  # TRUNCATE fires no trigger of rows

    @override
    def recount(self) -> None:
        """Do nothing: PostgreSQL knows the sizes of its tables."""

    @override
    def keep_out_writers(self) -> None:
        connection = self._cursor.connection
        assert isinstance(connection, BoundedConnection)
        # The work under this lock takes as long as the log is large.
        connection.answer_s_max = None
        self._cursor.execute(KEEP_OUT)


@lru_cache(maxsize=256)
def _with_places(statement: str) -> bytes:
    return statement.replace("?", "%s").encode()
