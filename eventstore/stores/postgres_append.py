"""An append to the log in PostgreSQL: one request to the server and one answer.

A function in the database takes the lock, which keeps positions in the order of commits, and stores
rows, contents and queue depths. It begins when all its data has arrived, and the server commits
when it ends: a host that is paused or cut off in the middle holds no lock. If read models have to
be updated besides, the transaction stays open for them, and the server ends it when nothing comes
for two seconds. The fence is the primary key: a row that exists already is a conflict. So is a seal
that does not follow the one whose digest it has: the server lost commits in a fail-over, and the
state that the owner has in memory is not in the log, where another owner may have claimed since.

The lock is an advisory lock of the transaction: a lock of the table, as earlier releases take it,
would wait for VACUUM. Appends of those releases and of this one wait for each other too, because an
INSERT locks the table against theirs before it takes a position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar

from eventsourcing.persistence import StoredEvent
from psycopg import Cursor
from psycopg.rows import TupleRow

from eventstore.log.event_contents import content_of, erased_by
from eventstore.log.event_log import QueueDepth
from eventstore.log.events import BatchSealed, Event
from eventstore.read_models.queue_depths import CHANGES, COLUMNS, NAMES, row_of

KEEP_OUT: Final = "LOCK TABLE public.stored_events IN EXCLUSIVE MODE"
"""Keeps out every append, also of earlier releases, and VACUUM."""
TURN: Final = int.from_bytes(b"append", "big")
"""The advisory lock that appends take in turn."""
AGE: Final = (
    "SELECT coalesce(max(CASE WHEN coalesce(state, 'disabled') = 'disabled' THEN 'infinity'"  # noqa: S608 - own text
    " ELSE extract(epoch FROM clock_timestamp() - xact_start)::float8 END), 0)"
    " FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE datname = current_database()"
    f" AND locktype = 'advisory' AND (classid::int8 << 32) + objid::int8 = {TURN} AND objsubid = 1"
)
"""The age in seconds of the oldest append that holds that lock or waits for it, 0 if none does.

It holds the lock also while its commit waits for a standby and no reader sees its rows. The age is
infinite if the server hides it: of another role without ``pg_read_all_stats``, or not tracked.
"""
FUNCTION: Final = f"""
    DO $make$ BEGIN IF to_regproc('poste_append_6') IS NULL THEN
    CREATE FUNCTION poste_append_6(
        streams uuid[], versions bigint[], topics text[], states bytea[], previous bytea[],
        kept bytea[],
        erased_streams uuid[], erased_versions bigint[],
        queues bytea[], numbers bigint[], sizes bigint[], since bigint[], dids bytea[],
        outbounds smallint[], expires bigint[], requests bigint[], contracts bigint[],
        registrations bigint[], idle bigint[], published bigint[]
    ) RETURNS bigint[] LANGUAGE plpgsql
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
    AS $$
    DECLARE
        positions bigint[];
    BEGIN
        PERFORM set_config('idle_in_transaction_session_timeout', '2s', true);
        PERFORM pg_advisory_xact_lock({TURN});
        IF EXISTS (
            SELECT FROM unnest(streams, versions, previous) AS r (stream, version, digest)
            WHERE digest IS NOT NULL AND version > 1 AND NOT EXISTS (
                SELECT FROM public.stored_events
                WHERE originator_id = stream AND originator_version = version - 1
                    AND substring(state FROM length(state) - length(digest) + 1) = digest
            )
        ) THEN
            RAISE unique_violation USING MESSAGE = 'the seal before this one is not there';
        END IF;
        WITH given AS (
            SELECT * FROM unnest(streams, versions, topics, states) WITH ORDINALITY
            AS r (originator_id, originator_version, topic, state, number)
        ), stored AS (
            INSERT INTO public.stored_events (originator_id, originator_version, topic, state)
            SELECT originator_id, originator_version, topic, state FROM given ORDER BY number
            RETURNING notification_id
        ) SELECT array_agg(notification_id ORDER BY notification_id) INTO positions FROM stored;
        IF kept IS NOT NULL THEN
            INSERT INTO contents (position, content)
            SELECT * FROM unnest(positions, kept) AS r (position, content)
            WHERE r.content IS NOT NULL;
        END IF;
        IF erased_streams IS NOT NULL THEN
            DELETE FROM contents
            USING unnest(erased_streams, erased_versions) AS gone (stream, version),
                public.stored_events
            WHERE originator_id = stream AND originator_version = version
                AND position = notification_id;
        END IF;
        IF queues IS NOT NULL THEN
            INSERT INTO queue_depths ({NAMES})
            SELECT * FROM unnest(queues, numbers, sizes, since, dids, outbounds,
                expires, requests, contracts, registrations, idle, published)
            ON CONFLICT (stream) DO UPDATE SET {CHANGES};
        END IF;
        RETURN positions;
    END $$;
    END IF; END $make$
    """  # noqa: S608 - own text
"""A changed function gets a new name: nodes of two releases append to one log.

A connection plans the function once, perhaps while the tables are empty. Without the function's own
settings, each append would then read whole tables, under the lock, until the server analyses them
again.
"""
# In binary form, because bytes as text are twice as long.
_APPEND: Final = (
    "SELECT poste_append_6(%b::uuid[], %b::bigint[], %b::text[], %b::bytea[], %b::bytea[],"
    " %b::bytea[], %b::uuid[], %b::bigint[], %b::bytea[], %b::bigint[], %b::bigint[], %b::bigint[],"
    " %b::bytea[], %b::smallint[], %b::bigint[], %b::bigint[], %b::bigint[], %b::bigint[],"
    " %b::bigint[], %b::bigint[])"
)
_T = TypeVar("_T")


def append(
    cursor: Cursor[TupleRow],
    rows: Sequence[StoredEvent],
    events: Sequence[Event],
    depths: Sequence[QueueDepth],
) -> Sequence[int]:
    """Store rows, contents of their events and queue depths; return the positions of the rows.

    Raises:
        psycopg.Error: nothing was stored; if the server did not say so, that is unknown.
    """
    contents = map(content_of, events)
    erased = erased_by(rows, events) if events else []
    queues = [row_of(depth) for depth in depths]
    parameters: list[list[Any]] = [
        [row.originator_id for row in rows],
        [row.originator_version for row in rows],
        [row.topic for row in rows],
        [row.state for row in rows],
        [event.previous if isinstance(event, BatchSealed) else None for event in events],
        [None if content is None else content.stored for content in contents],
        [stream for stream, _ in erased],
        [version for _, version in erased],
        *([queue[place] for queue in queues] for place in range(len(COLUMNS))),
    ]
    cursor.execute(_APPEND, [_or_null(values) for values in parameters])
    ((positions,),) = cursor.fetchall()
    stored: Sequence[int] = positions
    return stored


def _or_null(values: list[_T | None]) -> list[_T | None] | None:
    """NULL for an array without a value, because NULL has no type that could be the wrong one."""
    return values if any(value is not None for value in values) else None
