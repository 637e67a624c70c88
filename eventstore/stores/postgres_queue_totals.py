"""The sums over all queues, which PostgreSQL keeps itself: one more row for each statement.

A single row that each append changed would have as many versions as there were appends since the
oldest running transaction (of a dump, for example), and each append would pass over all of them. So
each statement adds a row with its change, and one in some hundreds merges the rows.

Triggers keep the sums, not the code that appends, so that nodes of an earlier release, and all else
that changes a queue, keep them too. The sums change within the turn of each append.
"""

from __future__ import annotations

from typing import Final

from eventstore.stores.postgres_append import TURN

TOGETHER: Final = 512
"""The number of statements whose rows are merged at a time."""
_SUMS: Final = (
    "coalesce(sum(messages), 0)::bigint AS messages, coalesce(sum(bytes), 0)::bigint AS bytes FROM"
)
_ADD: Final = "INSERT INTO queue_totals (queues, messages, bytes)"
_TRIGGERS: Final = (
    "EXISTS (SELECT 1 FROM pg_trigger WHERE tgname = 'queue_removed'"
    " AND tgrelid = to_regclass('queue_depths'))"
)
"""Tests the table that is there now: a table that was made anew has no triggers."""
_MAY_BE_PUBLISHED: Final = (
    "EXISTS (SELECT 1 FROM pg_class WHERE oid = to_regclass('queue_totals') AND relreplident = 'f')"
)
"""Without an identity of its rows, the server refuses each merge if the table is in a publication:
logical replication of all tables, which an upgrade of PostgreSQL can use, would fail appends."""
IS_MADE: Final = (
    f"to_regclass('queue_totals_place_seq') IS NOT NULL AND {_TRIGGERS} AND {_MAY_BE_PUBLISHED}"
)
"""The table of an earlier release, and its function, are replaced under the same triggers: between
two appends, and not while a dump reads the table. The old table is right until then, and the next
start tries again. Only a role that owns the tables can replace it."""
MAKE: Final = (
    f"""
    DO $make$ BEGIN
        IF to_regclass('queue_totals') IS NOT NULL AND {_TRIGGERS} THEN
            PERFORM pg_advisory_xact_lock({TURN});
            PERFORM set_config('lock_timeout', '1s', true);
            LOCK TABLE queue_totals IN ACCESS EXCLUSIVE MODE;
        END IF;
        LOCK TABLE queue_depths IN SHARE ROW EXCLUSIVE MODE;
        DROP TABLE IF EXISTS queue_totals;
        CREATE TABLE queue_totals (
            place bigserial, queues bigint NOT NULL, messages bigint NOT NULL, bytes bigint NOT NULL
        );
        ALTER TABLE queue_totals REPLICA IDENTITY FULL;
        {_ADD} SELECT count(*), {_SUMS} queue_depths;
        CREATE OR REPLACE FUNCTION poste_queue_totals_1() RETURNS trigger LANGUAGE plpgsql AS $$
        DECLARE
            number bigint;
        BEGIN
            IF TG_OP = 'INSERT' THEN
                {_ADD} SELECT a.* FROM (SELECT count(*) AS queues, {_SUMS} added) AS a
                WHERE a.queues > 0 RETURNING place INTO number;
            ELSIF TG_OP = 'UPDATE' THEN
                {_ADD} SELECT 0, a.messages - g.messages, a.bytes - g.bytes
                FROM (SELECT {_SUMS} added) AS a, (SELECT {_SUMS} gone) AS g
                WHERE a.messages <> g.messages OR a.bytes <> g.bytes RETURNING place INTO number;
            ELSE
                {_ADD} SELECT -g.queues, -g.messages, -g.bytes
                FROM (SELECT count(*) AS queues, {_SUMS} gone) AS g
                WHERE g.queues > 0 RETURNING place INTO number;
            END IF;
            IF number % {TOGETHER} = 0 THEN
                WITH old AS (DELETE FROM queue_totals RETURNING queues, messages, bytes)
                {_ADD} SELECT coalesce(sum(queues), 0), {_SUMS} old;
            END IF;
            RETURN NULL;
        END $$;
        IF NOT {_TRIGGERS} THEN
            CREATE TRIGGER queue_added AFTER INSERT ON queue_depths
                REFERENCING NEW TABLE AS added
                FOR EACH STATEMENT EXECUTE FUNCTION poste_queue_totals_1();
            CREATE TRIGGER queue_changed AFTER UPDATE ON queue_depths
                REFERENCING OLD TABLE AS gone NEW TABLE AS added
                FOR EACH STATEMENT EXECUTE FUNCTION poste_queue_totals_1();
            CREATE TRIGGER queue_removed AFTER DELETE ON queue_depths
                REFERENCING OLD TABLE AS gone
                FOR EACH STATEMENT EXECUTE FUNCTION poste_queue_totals_1();
        END IF;
    EXCEPTION WHEN lock_not_available OR insufficient_privilege THEN
        IF NOT {_TRIGGERS} THEN
            RAISE;
        END IF;
    END $make$
    """,  # noqa: S608 - own text
)
