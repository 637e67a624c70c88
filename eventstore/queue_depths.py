"""The read model of queues: how much waits for each identity, and since when.

Written with the events that change a queue, in their transaction, from what the owner knows: an
operator sees the depth of all queues, those of sleeping identities included, without waking one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from eventstore.codec import identity_stream
from eventstore.log import LogFigures, QueueDepth, WaitingQueue
from eventstore.session import Session

_SELECT: Final = "SELECT did, messages, bytes, oldest_at_ms, outbound FROM queue_depths"


def save(session: Session, depths: Sequence[QueueDepth]) -> None:
    """Replace the depths of these streams."""
    session.run_many(
        "INSERT INTO queue_depths (stream, messages, bytes, oldest_at_ms, did, outbound)"
        " VALUES (?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (stream) DO UPDATE SET messages = excluded.messages,"
        " bytes = excluded.bytes, oldest_at_ms = excluded.oldest_at_ms,"
        " did = excluded.did, outbound = excluded.outbound",
        [
            (d.stream.bytes, d.messages, d.bytes, d.oldest_at_ms, d.did.encode(), int(d.outbound))
            for d in depths
        ],
    )


def waiting(session: Session, *, outbound_only: bool, limit: int) -> list[WaitingQueue]:
    """Queues that are not empty, those that wait longest first."""
    # Two texts: PostgreSQL uses the partial index only for the condition that it was made with.
    condition = "messages > 0 AND outbound = 1" if outbound_only else "messages > 0"
    return _queues(
        session.rows(f"{_SELECT} WHERE {condition} ORDER BY oldest_at_ms LIMIT ?", (limit,))
    )


def waiting_of(session: Session, did: str) -> list[WaitingQueue]:
    """The queue of one identity, if it is not empty."""
    condition = "messages > 0 AND stream = ?"
    return _queues(session.rows(f"{_SELECT} WHERE {condition}", (identity_stream(did).bytes,)))


def _queues(found: Sequence[Sequence[Any]]) -> list[WaitingQueue]:
    return [
        WaitingQueue(bytes(did).decode(), messages, size_bytes, oldest_at_ms, bool(outbound))
        for did, messages, size_bytes, oldest_at_ms, outbound in found
    ]


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
