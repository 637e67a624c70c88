"""The read model of queues: how much waits for each identity, and since when.

Written with the events that change a queue, in their transaction, from what the owner knows: an
operator sees the depth of all queues, those of sleeping identities included, without waking one.
"""

from __future__ import annotations

from collections.abc import Sequence

from eventstore.log import LogFigures, QueueDepth
from eventstore.session import Session


def save(session: Session, depths: Sequence[QueueDepth]) -> None:
    """Replace the depths of these streams."""
    session.run_many(
        "INSERT INTO queue_depths (stream, messages, bytes, oldest_at_ms) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (stream) DO UPDATE SET messages = excluded.messages,"
        " bytes = excluded.bytes, oldest_at_ms = excluded.oldest_at_ms",
        [(d.stream.bytes, d.messages, d.bytes, d.oldest_at_ms) for d in depths],
    )


def total(session: Session, position: int) -> LogFigures:
    """The sums over all identities."""
    ((identities, messages, size_bytes, oldest_at_ms),) = session.rows(
        "SELECT COUNT(*), SUM(messages), SUM(bytes), MIN(oldest_at_ms) FROM queue_depths"
    )
    return LogFigures(
        log_position=position,
        identities=identities,
        queue_messages=int(messages or 0),
        queue_bytes=int(size_bytes or 0),
        queue_oldest_at_ms=oldest_at_ms,
    )
