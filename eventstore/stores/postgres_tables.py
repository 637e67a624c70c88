"""The tables, indexes and functions of a log in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from psycopg import Connection
from psycopg.rows import tuple_row

from eventstore.log.errors import LogMissing, LogUnusable, ReadModelsMissing
from eventstore.log.log_format import FORMAT_NAME
from eventstore.read_models.queue_depths import DUE_COLUMNS, INDEXES, MADE_LAST
from eventstore.read_models.update import MADE, READ_MODELS, UNFILLED
from eventstore.stores import postgres_queue_totals as queue_totals
from eventstore.stores.postgres_append import FUNCTION, TURN
from eventstore.stores.postgres_connections import BoundedConnection

_CREATION_LOCK: Final = int.from_bytes(b"poste", "big")
_OPTIONS: Final = (
    *("autovacuum_enabled=true", "autovacuum_vacuum_threshold=20000"),
    *("autovacuum_vacuum_scale_factor=0.05", "autovacuum_analyze_threshold=1000"),
    *("autovacuum_analyze_scale_factor=0.01", "vacuum_truncate=false"),
)
"""Options of ``stored_events``. Autovacuum is early: rows leave at one end, and new rows at the
other use their room. It does not shorten the file, which would keep readers and appends out. A
table with any value of the last option was given all of them, or an administrator has decided:
then none is touched."""
_TABLE_OF_ROWS: Final = (
    # As the library's recorder makes them, so that logs of all releases are alike.
    """
    DO $$ BEGIN IF to_regclass('public.stored_events') IS NULL THEN
        CREATE TABLE public.stored_events (
            originator_id uuid NOT NULL, originator_version bigint NOT NULL, topic text,
            state bytea, notification_id bigserial,
            PRIMARY KEY (originator_id, originator_version)
        );
    END IF; END $$
    """,
    # IF NOT EXISTS would first lock the table: it waits for VACUUM, and appends wait for it.
    """
    DO $$ BEGIN IF to_regclass('public.stored_events_notification_id_idx') IS NULL THEN
        CREATE UNIQUE INDEX stored_events_notification_id_idx
        ON public.stored_events (notification_id ASC);
    END IF; END $$
    """,
    f"""
    DO $$ BEGIN IF NOT EXISTS (
        SELECT FROM pg_class, pg_options_to_table(reloptions)
        WHERE oid = 'public.stored_events'::regclass AND option_name = 'vacuum_truncate'
    ) THEN
        ALTER TABLE public.stored_events SET ({", ".join(_OPTIONS)});
    END IF; END $$
    """,
)


def _table(name: str, definition: str) -> str:
    """What makes a table where it is missing.

    IF NOT EXISTS would demand the right to make tables, though there is nothing to make.
    """
    return f"""
    DO $$ BEGIN IF to_regclass(format('%I.%I', current_schema(), '{name}')) IS NULL THEN
        CREATE TABLE {name} {definition};
    END IF; END $$
    """


_TABLES: Final = (
    # Autovacuum would by default wait for a share of the rows, but the room of erased contents
    # must be used again soon, however large the table. EXTERNAL: encrypted data does not compress.
    """
    DO $$ BEGIN IF to_regclass('contents') IS NULL THEN
        CREATE TABLE contents (position bigint PRIMARY KEY, content bytea NOT NULL) WITH (
            autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
            toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 20000
        );
        ALTER TABLE contents ALTER COLUMN content SET STORAGE EXTERNAL;
    END IF; END $$
    """,
    _table(
        "postings",
        "(list bytea NOT NULL, timestamp_s double precision NOT NULL, version bigint NOT NULL,"
        " revision bigint NOT NULL, own smallint NOT NULL,"
        " PRIMARY KEY (list, timestamp_s, version) INCLUDE (revision, own))",
    ),
    *(
        _table(
            name,
            "(stream bytea PRIMARY KEY, version bigint NOT NULL, fold bigint NOT NULL,"
            " state bytea NOT NULL)",
        )
        for name in ("snapshots", "archived_states")
    ),
    _table(
        "queue_depths",
        "(stream bytea PRIMARY KEY, messages bigint NOT NULL, bytes bigint NOT NULL,"
        " oldest_at_ms bigint, did bytea NOT NULL DEFAULT '', outbound smallint NOT NULL DEFAULT 0,"
        " expires_at_ms bigint, requests_since_ms bigint, contracts_until_ms bigint,"
        " registered_until_ms bigint, idle_since_ms bigint, published_since_ms bigint)",
    ),
    _table("dedicated", "(stream bytea PRIMARY KEY, did bytea NOT NULL, reason bytea NOT NULL)"),
    _table("settings", "(name bytea PRIMARY KEY, value bytea NOT NULL)"),
    _table("heartbeat", "(id bigint PRIMARY KEY, beats bigint NOT NULL)"),
    # Each row is updated every second: with room in its page, no index is written.
    _table(
        "host_leases",
        "(name bytea PRIMARY KEY, node bytea NOT NULL, incarnation bytea NOT NULL,"
        " address bytea NOT NULL, port integer NOT NULL, token bytea NOT NULL,"
        " ends double precision NOT NULL, protocol integer NOT NULL DEFAULT 1)"
        " WITH (fillfactor = 20)",
    ),
    # Of the first builds. ADD COLUMN IF NOT EXISTS would lock the table first.
    """
    DO $$ BEGIN IF NOT EXISTS (
        SELECT FROM pg_attribute
        WHERE attrelid = 'host_leases'::regclass AND attname = 'protocol'
    ) THEN
        ALTER TABLE host_leases ADD COLUMN protocol integer NOT NULL DEFAULT 1;
    END IF; END $$
    """,
    FUNCTION,
    # Logical replication copies rows and no sequences. A row at a position behind which readers are
    # already would never be read.
    f"""
    DO $$ DECLARE
        positions regclass := pg_get_serial_sequence('public.stored_events', 'notification_id');
    BEGIN
        IF (SELECT max(notification_id) FROM public.stored_events)
            > coalesce(pg_sequence_last_value(positions), 0)
        THEN
            PERFORM pg_advisory_xact_lock({TURN});
            PERFORM setval(positions, greatest(nextval(positions), max(notification_id)))
            FROM public.stored_events;
        END IF;
    END $$
    """,  # noqa: S608 - own text
    # If nothing was to be made, a standby, and a database that is read-only, would seem to serve.
    "UPDATE settings SET value = value WHERE false",
)

LATER_COLUMNS: Final = (
    "ALTER TABLE queue_depths ADD COLUMN IF NOT EXISTS did bytea NOT NULL DEFAULT '',"
    " ADD COLUMN IF NOT EXISTS outbound smallint NOT NULL DEFAULT 0, "
    + ", ".join(f"ADD COLUMN IF NOT EXISTS {name} bigint" for name in DUE_COLUMNS)
)
"""What makes the columns that the table of queues of an earlier build lacks."""
_LATER: Final = (
    LATER_COLUMNS,
    # Of an earlier release: because of its condition, each change of a queue touched every index.
    "DROP INDEX IF EXISTS outbound_queues",
    # Room for new versions of rows: as long as they find it, no index is touched.
    "ALTER TABLE queue_depths SET (fillfactor = 70)",
    *INDEXES,
)
"""What the first logs lack. Done only if it is missing: looking for it takes no lock, but doing it
waits for every reader and keeps out every writer."""
_IN_ITS_SCHEMA: Final = (
    "SELECT set_config('search_path',"
    " quote_ident(nspname) || ', ' || current_setting('search_path'), true)"
    " FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace"
    " WHERE pg_class.oid = coalesce(to_regclass('archived_states'), to_regclass('queue_depths'))"
)
"""Makes what is missing where the log's other tables are. Tables are looked for only in the first
schema: if that is new, empty tables there would hide those of the log. A log of an early build has
only the second of the two tables, and one whose read models are missing only the first."""
_ROWS: Final = "public.stored_events"
_OF_READERS: Final = ("contents", "archived_states")
_KEYED: Final = (_ROWS, "settings", *_OF_READERS, *READ_MODELS, "host_leases")
_WITHOUT_KEY: Final = (
    "SELECT name FROM unnest(%s::text[]) AS name JOIN pg_class AS c ON c.oid = to_regclass(name)"
    " WHERE NOT EXISTS (SELECT FROM pg_index WHERE indrelid = c.oid AND indisprimary)"
)
_WITHOUT_TABLE: Final = (
    "SELECT name FROM unnest(%s::text[]) AS name WHERE to_regclass(name) IS NULL"
)
_LACKS_QUEUES: Final = (
    "SELECT 1 FROM queue_totals HAVING sum(queues) > 0 AND NOT EXISTS (SELECT FROM queue_depths)"
)
"""Triggers keep the sums with the table; a restore of data alone fills the two one by one."""
_NOTE_UNFILLED: Final = (
    f"INSERT INTO settings SELECT '{UNFILLED}'::bytea, ''::bytea"  # noqa: S608 - own text
    " WHERE EXISTS (SELECT FROM public.stored_events) ON CONFLICT DO NOTHING"
)
_HAS_FORMAT: Final = f"SELECT 1 FROM settings WHERE name = '{FORMAT_NAME}'"  # noqa: S608 - own text
_FINDS_ROWS: Final = (
    "SELECT 1 WHERE to_regclass('stored_events') = 'public.stored_events'::regclass"
)
_MADE: Final = f"SELECT to_regclass('{MADE_LAST}') IS NOT NULL, {queue_totals.IS_MADE}"
_SUBSCRIBED: Final = (
    "SELECT subname FROM pg_subscription_rel JOIN pg_subscription AS s ON s.oid = srsubid"
    " WHERE subenabled AND srrelid = to_regclass('public.stored_events')"
)


def make_tables(connection: BoundedConnection) -> None:
    """Make missing tables, indexes, functions and triggers.

    Raises:
        LogUnusable: the schema of the rows is not in the search path of the connection.
        psycopg.Error: the server failed.
    """
    # IF NOT EXISTS does not keep two processes from making the same table at the same time.
    connection.execute("SELECT pg_advisory_lock(%s)", (_CREATION_LOCK,))
    try:
        with connection.transaction():
            for statement in _TABLE_OF_ROWS:
                connection.execute(statement)
            _require_search_path(connection)
            connection.execute(_IN_ITS_SCHEMA)
            are_unfilled = _missing(connection, MADE)
            for statement in _TABLES:
                connection.execute(statement)
            if are_unfilled:
                connection.execute(_NOTE_UNFILLED)
        (made,) = connection.cursor(row_factory=tuple_row).execute(_MADE).fetchall()
        for is_made, later in zip(made, (_LATER, queue_totals.MAKE), strict=True):
            for statement in () if is_made else later:
                # An index takes as long as its table is large.
                connection.answer_s_max = None
                with connection.transaction():
                    connection.execute(_IN_ITS_SCHEMA)
                    connection.execute(statement)
    finally:
        connection.execute("SELECT pg_advisory_unlock(%s)", (_CREATION_LOCK,))


def require_log(connection: Connection[Any], *, to_read: bool) -> None:
    """Refuse a database without the table of rows; ``to_read``: or without what readers need.

    Raises:
        LogMissing: there is no log in it.
        LogUnusable: as ``make_tables``; or an earlier build made it, and no later one served it.
    """
    if _missing(connection, [_ROWS]):
        raise LogMissing(f"there is no log in the PostgreSQL database {connection.info.dbname}")
    _require_search_path(connection)
    if to_read and (missing := _missing(connection, _OF_READERS)):
        raise LogUnusable(
            f"PostgreSQL: an earlier build made this log, without the tables {', '.join(missing)};"
            " the first start of poste serve makes them"
        )


def _require_search_path(connection: Connection[Any]) -> None:
    if not connection.execute(_FINDS_ROWS).fetchone():
        raise LogUnusable("PostgreSQL: the search_path lacks the schema public")


def require_read_models(connection: Connection[Any]) -> None:
    """Refuse a log that lacks a read model, which would otherwise be made empty.

    Raises:
        ReadModelsMissing: the log has its table of rows and lacks a read model.
    """
    missing = _missing(connection, [_ROWS, *MADE])
    if missing and _ROWS not in missing:
        raise ReadModelsMissing(missing)


def require_queues(connection: Connection[Any]) -> None:
    """Refuse a log without any of the queues that its sums count: they would never expire.

    Raises:
        ReadModelsMissing: the table of queues is empty.
    """
    has_both = not _missing(connection, ["queue_totals", "queue_depths"])
    if has_both and connection.execute(_LACKS_QUEUES).fetchone():
        raise ReadModelsMissing(["queue_depths"])


def require_whole(connection: Connection[Any]) -> None:
    """Refuse a log that lacks a table which nothing can make anew, and an empty one would replace.

    A table without its primary key is refused too: that of the rows keeps out a second writer, and
    a restore makes the keys last.

    Raises:
        LogUnusable: the log lacks its table of rows, or another one, or a primary key.
    """
    if keyless := _names(connection, _WITHOUT_KEY, _KEYED):
        raise LogUnusable(
            f"PostgreSQL: the log's tables {', '.join(keyless)} have no primary key: it was"
            " restored in part"
        )
    tables = [_ROWS, "settings", *_OF_READERS]
    missing = _missing(connection, tables)
    if _ROWS in missing:
        if "archived_states" in missing:
            return  # there is no log yet
        # Another process makes all of them at once, perhaps while this one looked.
        missing = _missing(connection, tables)
    if not missing:
        return
    has_both = not {_ROWS, "settings"} & {*missing}
    if has_both and not connection.execute(_HAS_FORMAT).fetchone():
        return  # of an early build, which had no other tables
    raise LogUnusable(
        f"PostgreSQL: the log's tables {', '.join(missing)} are missing: it was restored in part,"
        " or the search_path lacks their schema"
    )


def require_own(connection: Connection[Any]) -> None:
    """Refuse a log whose rows a subscription brings from another server: it lags as a standby does.

    Raises:
        LogUnusable: there is such a subscription.
    """
    for (name,) in connection.cursor(row_factory=tuple_row).execute(_SUBSCRIBED):
        raise LogUnusable(
            f"PostgreSQL: the rows come from another server by the subscription {name}, which lags"
            " by an unknown time; name the server that the log is written to"
        )


def _missing(connection: Connection[Any], tables: Sequence[str]) -> list[str]:
    return _names(connection, _WITHOUT_TABLE, tables)


def _names(connection: Connection[Any], statement: str, tables: Sequence[str]) -> list[str]:
    """The tables among these that a statement finds, in their order."""
    cursor = connection.cursor(row_factory=tuple_row)
    found = {name for (name,) in cursor.execute(statement.encode(), (list(tables),)).fetchall()}
    return [name for name in tables if name in found]
