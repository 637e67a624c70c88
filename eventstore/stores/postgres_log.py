"""The log in PostgreSQL, for a cluster of hosts.

Appends take turns, by a lock of their transactions, so that positions follow the order of the
commits and a reader by position misses nothing. An append runs once: one that is repeated after a
lost connection could report a conflict with itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from eventsourcing.domain import EventSourcingError
from eventsourcing.persistence import ApplicationRecorder, OperationalError, StoredEvent
from psycopg import Connection, Cursor, ProgrammingError
from psycopg.rows import TupleRow, tuple_row
from psycopg.sql import SQL, Identifier
from typing_extensions import override

from eventstore.log.errors import LogUnavailable, ReadModelsMissing
from eventstore.log.event_log import ChangedRow, LogRow, QueueDepth, StorageFigures, StoredRecord
from eventstore.log.events import Event
from eventstore.log.session import LogSession, Store, StoredPosting
from eventstore.read_models.due_identities import DUE_COLUMNS
from eventstore.read_models.queue_depths import INDEXES, MADE_LAST, forget_totals
from eventstore.read_models.update import INDEXED, MADE, READ_MODELS, update_read_models
from eventstore.stores import postgres_queue_totals as queue_totals
from eventstore.stores.postgres_append import FUNCTION, KEEP_OUT, append
from eventstore.stores.postgres_bounds import PostgresBounds
from eventstore.stores.postgres_connections import PostgresConnections
from eventstore.stores.sql_recorder import SqlRecorder

_BOUNDS: Final = PostgresBounds()
_CREATION_LOCK: Final = int.from_bytes(b"poste", "big")
_OPTIONS: Final = (
    *("autovacuum_enabled=true", "autovacuum_vacuum_threshold=20000"),
    *("autovacuum_vacuum_scale_factor=0.05", "autovacuum_analyze_threshold=1000"),
    *("autovacuum_analyze_scale_factor=0.01", "vacuum_truncate=false"),
)
"""Of the table of the rows. Autovacuum is early: rows leave at one end, and their room is for those
at the other. It does not shorten the file, for which it would keep readers and appends out."""
_TABLES: Final = (
    # As the library's recorder makes them, so that logs of all releases are alike.
    """
    CREATE TABLE IF NOT EXISTS public.stored_events (
        originator_id uuid NOT NULL, originator_version bigint NOT NULL, topic text, state bytea,
        notification_id bigserial, PRIMARY KEY (originator_id, originator_version)
    )
    """,
    """
    CREATE UNIQUE INDEX IF NOT EXISTS stored_events_notification_id_idx
    ON public.stored_events (notification_id ASC)
    """,
    f"""
    DO $$ BEGIN IF NOT (
        SELECT coalesce(reloptions @> ARRAY[{", ".join(map(repr, _OPTIONS))}], false)
        FROM pg_class WHERE oid = 'public.stored_events'::regclass
    ) THEN
        ALTER TABLE public.stored_events SET ({", ".join(_OPTIONS)});
    END IF; END $$
    """,  # noqa: S608 - own text
    # The defaults of autovacuum wait for a share of the rows: the room of what is erased is to be
    # used again soon, however much there is. EXTERNAL, because encryption cannot be compressed.
    """
    DO $$ BEGIN IF to_regclass('contents') IS NULL THEN
        CREATE TABLE contents (position bigint PRIMARY KEY, content bytea NOT NULL) WITH (
            autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
            toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 20000
        );
        ALTER TABLE contents ALTER COLUMN content SET STORAGE EXTERNAL;
    END IF; END $$
    """,
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
    CREATE TABLE IF NOT EXISTS archived_states (
        stream bytea PRIMARY KEY, version bigint NOT NULL, fold bigint NOT NULL,
        state bytea NOT NULL
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS queue_depths (
        stream bytea PRIMARY KEY, messages bigint NOT NULL, bytes bigint NOT NULL,
        oldest_at_ms bigint, did bytea NOT NULL DEFAULT '', outbound smallint NOT NULL DEFAULT 0,
        expires_at_ms bigint, requests_since_ms bigint, contracts_until_ms bigint,
        registered_until_ms bigint, idle_since_ms bigint, published_since_ms bigint
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS dedicated (
        stream bytea PRIMARY KEY, did bytea NOT NULL, reason bytea NOT NULL
    )
    """,
    "CREATE TABLE IF NOT EXISTS settings (name bytea PRIMARY KEY, value bytea NOT NULL)",
    "CREATE TABLE IF NOT EXISTS heartbeat (id bigint PRIMARY KEY, beats bigint NOT NULL)",
    # Each row is written anew every second: with room in its page no index has to be.
    """
    CREATE TABLE IF NOT EXISTS host_leases (
        name bytea PRIMARY KEY, node bytea NOT NULL, incarnation bytea NOT NULL,
        address bytea NOT NULL, port integer NOT NULL, token bytea NOT NULL,
        ends double precision NOT NULL
    ) WITH (fillfactor = 20)
    """,
    FUNCTION,
)

_LATER: Final = (
    "ALTER TABLE queue_depths ADD COLUMN IF NOT EXISTS did bytea NOT NULL DEFAULT '',"
    " ADD COLUMN IF NOT EXISTS outbound smallint NOT NULL DEFAULT 0, "
    + ", ".join(f"ADD COLUMN IF NOT EXISTS {name} bigint" for name in DUE_COLUMNS),
    # Of the release before: its condition had every change of a queue touch every index.
    "DROP INDEX IF EXISTS outbound_queues",
    # Room for the rows that take the place of others: while they find it, no index is touched.
    "ALTER TABLE queue_depths SET (fillfactor = 70)",
    *INDEXES,
)
"""What the first logs were made without. Done only where it is missing: looking for it takes no
lock, doing it waits for every reader and keeps out every writer."""
_ERASE: Final = (
    "DELETE FROM contents USING unnest(%b::uuid[], %b::bigint[]) AS gone (stream, version),"
    " public.stored_events WHERE originator_id = stream AND originator_version = version"
    " AND position = notification_id"
)
_MADE: Final = f"SELECT to_regclass('{MADE_LAST}') IS NOT NULL, {queue_totals.IS_MADE}"
_CLEARED: Final = ("stored_events", "contents", "archived_states", *READ_MODELS)


_SIZED: Final = ", ".join(f"'{name}'" for name in (*READ_MODELS, "queue_totals"))
_STORAGE: Final = (
    "SELECT pg_total_relation_size('public.stored_events'),"  # noqa: S608 - own text
    " pg_total_relation_size('contents'),"
    " (SELECT sum(pg_total_relation_size(name::regclass)) FROM unnest("
    f"ARRAY[{_SIZED}]) AS name),"
    " has_function_privilege('pg_ls_waldir()', 'execute')"
)


def open_postgres_store(
    conninfo: str,
    *,
    allow_unsafe: bool = False,
    bounds: PostgresBounds = _BOUNDS,
    makes_missing: bool = False,
) -> Store:
    """The store in this database (a ``postgresql://`` URL), whose tables are made if missing.

    ``makes_missing``: so are read models of a log that has rows.

    Raises:
        ReadModelsMissing: the log has rows and lacks a read model.
        LogUnavailable: no server can be reached, or it refuses.
        UnsafeLog: the server may lose commits that it confirmed, unless ``allow_unsafe``.
    """
    try:
        return PostgresStore(
            conninfo, allow_unsafe=allow_unsafe, bounds=bounds, makes_missing=makes_missing
        )
    except (EventSourcingError, ProgrammingError) as error:
        raise LogUnavailable(f"PostgreSQL: {error}") from error


class PostgresStore(Store):
    """A ``Store`` on a pool of connections."""

    def __init__(
        self,
        conninfo: str,
        *,
        allow_unsafe: bool = False,
        bounds: PostgresBounds = _BOUNDS,
        makes_missing: bool = False,
    ) -> None:
        self._connections = PostgresConnections(conninfo, bounds, allow_unsafe=allow_unsafe)
        try:
            self._create_tables(makes_missing=makes_missing)
        except BaseException:
            self._connections.close()
            raise
        self.recorder: ApplicationRecorder = PostgresRecorder(self._connections)

    @override
    @contextmanager
    def asking(self) -> Iterator[LogSession]:
        # Three questions to the server less than a transaction around one.
        with self._connections.connection() as connection:
            yield _Session(_cursor(connection))

    @override
    @contextmanager
    def reading(self) -> Iterator[LogSession]:
        with self._connections.connection() as connection:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            try:
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
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            session = _Session(_cursor(connection))
            ((schema,),) = session.rows("SELECT current_schema()")
            for name in MADE:
                # A temporary table stands before the one of the same name in any schema.
                connection.execute(
                    SQL("CREATE TEMP TABLE {} (LIKE {} INCLUDING ALL) ON COMMIT DROP").format(
                        Identifier(name), Identifier(schema, name)
                    )
                )
            yield session, schema

    @override
    def storage(self) -> StorageFigures:
        with self.reading() as session:
            ((facts, contents, read_models, may_list),) = session.rows(_STORAGE)
            # Superusers and the role pg_monitor alone may see the files of the WAL.
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

    def _create_tables(self, *, makes_missing: bool) -> None:
        # IF NOT EXISTS does not keep two processes from making the same table at the same time.
        with self._connections.connection() as connection:
            connection.execute("SELECT pg_advisory_lock(%s)", (_CREATION_LOCK,))
            try:
                if not makes_missing:
                    _require_read_models(connection)
                with connection.transaction():
                    for statement in _TABLES:
                        connection.execute(statement)
                (made,) = _cursor(connection).execute(_MADE).fetchall()
                for is_made, later in zip(made, (_LATER, queue_totals.MAKE), strict=True):
                    for statement in () if is_made else later:
                        # An index takes as long as its table is large.
                        connection.answer_s_max = None
                        connection.execute(statement)
            finally:
                connection.execute("SELECT pg_advisory_unlock(%s)", (_CREATION_LOCK,))


def _require_read_models(connection: Connection[Any]) -> None:
    """Refuse a log that lacks a read model, which would begin anew as an empty one.

    Raises:
        ReadModelsMissing: it does.
    """
    find = "SELECT name, to_regclass(name) IS NOT NULL FROM unnest(%s::text[]) AS name"
    found = _cursor(connection).execute(find, (["public.stored_events", *MADE],)).fetchall()
    there: dict[str, bool] = dict(found)
    missing = [name for name in MADE if not there[name]]
    if missing and there["public.stored_events"]:
        raise ReadModelsMissing(missing)


def _cursor(connection: Connection[Any]) -> Cursor[TupleRow]:
    """A cursor for answers in binary form: bytes as text are twice as long."""
    return connection.cursor(binary=True, row_factory=tuple_row)


class PostgresRecorder(SqlRecorder):
    """A recorder with one question for a batch, and the read models in its transaction."""

    position = "notification_id"
    table = "public.stored_events"

    def __init__(self, connections: PostgresConnections) -> None:
        self._connections = connections

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
                        update_read_models(_Session(cursor), stored_events, events)
                else:
                    positions = append(cursor, stored_events, events, depths)
            if connection.warned:
                # A commit whose wait for the standby was cancelled succeeds with a warning.
                raise OperationalError("the server warned of the commit")
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
    def contents(self, after: int, until: int) -> dict[int, bytes]:
        found = self.rows(
            "SELECT position, content FROM contents WHERE position > ? AND position <= ?",
            (after, until),
        )
        return dict(map(tuple, found))

    @override
    def erase(self, gone: Collection[tuple[UUID, int]]) -> None:
        if gone:
            streams, versions = zip(*gone, strict=True)
            self._cursor.execute(_ERASE, (list(streams), list(versions)))

    @override
    def log_rows(self, after: int, rows_max: int, bytes_max: int) -> Sequence[LogRow]:
        # The sizes first, because a cursor of the client takes a whole answer into memory.
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
            [list(column) for column in zip(*rows, strict=True)],
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
        # In place of DELETE, which leaves everything in the files.
        self._cursor.execute(SQL("TRUNCATE {}").format(SQL(", ").join(map(Identifier, _CLEARED))))
        forget_totals(self)  # TRUNCATE fires no trigger of rows

    @override
    def recount(self) -> None:
        """Nothing: PostgreSQL knows the sizes of its tables."""

    @override
    def keep_out_writers(self) -> None:
        self._cursor.execute(KEEP_OUT)


@lru_cache(maxsize=256)
def _with_places(statement: str) -> bytes:
    return statement.replace("?", "%s").encode()
