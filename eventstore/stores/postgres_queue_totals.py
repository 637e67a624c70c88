"""The sums over all queues, which PostgreSQL keeps itself: one change of a row for each statement.

By triggers and not by who appends, so that nodes of an earlier release, and whatever else changes a
queue, keep them too. They change in the turn of each append.
"""

from __future__ import annotations

from typing import Final

_SUMS: Final = (
    "SELECT count(*) AS queues, coalesce(sum(messages), 0) AS messages,"
    " coalesce(sum(bytes), 0) AS bytes FROM"
)
MAKE: Final = (
    f"""
    DO $make$ BEGIN
        LOCK TABLE queue_depths IN SHARE ROW EXCLUSIVE MODE;
        DROP TABLE IF EXISTS queue_totals;
        CREATE TABLE queue_totals (
            id bigint PRIMARY KEY, queues bigint NOT NULL, messages bigint NOT NULL,
            bytes bigint NOT NULL
        ) WITH (fillfactor = 20);
        INSERT INTO queue_totals SELECT 0, s.* FROM ({_SUMS} queue_depths) AS s;
        CREATE OR REPLACE FUNCTION poste_queue_totals_1() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF TG_OP = 'INSERT' THEN
                UPDATE queue_totals AS t SET queues = t.queues + a.queues,
                    messages = t.messages + a.messages, bytes = t.bytes + a.bytes
                FROM ({_SUMS} added) AS a WHERE a.queues > 0;
            ELSIF TG_OP = 'UPDATE' THEN
                UPDATE queue_totals AS t SET messages = t.messages + a.messages - g.messages,
                    bytes = t.bytes + a.bytes - g.bytes
                FROM ({_SUMS} added) AS a, ({_SUMS} gone) AS g
                WHERE a.messages <> g.messages OR a.bytes <> g.bytes;
            ELSE
                UPDATE queue_totals AS t SET queues = t.queues - g.queues,
                    messages = t.messages - g.messages, bytes = t.bytes - g.bytes
                FROM ({_SUMS} gone) AS g WHERE g.queues > 0;
            END IF;
            RETURN NULL;
        END $$;
        CREATE TRIGGER queue_added AFTER INSERT ON queue_depths
            REFERENCING NEW TABLE AS added
            FOR EACH STATEMENT EXECUTE FUNCTION poste_queue_totals_1();
        CREATE TRIGGER queue_changed AFTER UPDATE ON queue_depths
            REFERENCING OLD TABLE AS gone NEW TABLE AS added
            FOR EACH STATEMENT EXECUTE FUNCTION poste_queue_totals_1();
        CREATE TRIGGER queue_removed AFTER DELETE ON queue_depths
            REFERENCING OLD TABLE AS gone
            FOR EACH STATEMENT EXECUTE FUNCTION poste_queue_totals_1();
    END $make$
    """,  # noqa: S608 - own text
)
IS_MADE: Final = (
    "EXISTS (SELECT 1 FROM pg_trigger WHERE tgname = 'queue_removed'"
    " AND tgrelid = to_regclass('queue_depths'))"
)
"""Of the table that is there now: one that was made anew has no triggers."""
