"""Sums of queue_depths in SQLite, kept by triggers: every change of a queue changes them."""

from __future__ import annotations

from typing import Final

MAKE: Final = (
    "DROP TABLE IF EXISTS queue_totals",
    """
    CREATE TABLE queue_totals (
        id INTEGER PRIMARY KEY, queues INTEGER NOT NULL, messages INTEGER NOT NULL,
        bytes INTEGER NOT NULL
    )
    """,
    """
    INSERT INTO queue_totals
    SELECT 0, count(*), coalesce(sum(messages), 0), coalesce(sum(bytes), 0) FROM queue_depths
    """,
    """
    CREATE TRIGGER queue_added AFTER INSERT ON queue_depths BEGIN
        UPDATE queue_totals SET queues = queues + 1, messages = messages + new.messages,
        bytes = bytes + new.bytes;
    END
    """,
    """
    CREATE TRIGGER queue_changed AFTER UPDATE OF messages, bytes ON queue_depths
    WHEN new.messages <> old.messages OR new.bytes <> old.bytes BEGIN
        UPDATE queue_totals SET messages = messages + new.messages - old.messages,
        bytes = bytes + new.bytes - old.bytes;
    END
    """,
    """
    CREATE TRIGGER queue_removed AFTER DELETE ON queue_depths BEGIN
        UPDATE queue_totals SET queues = queues - 1, messages = messages - old.messages,
        bytes = bytes - old.bytes;
    END
    """,
)
MADE_LAST: Final = "queue_removed"
