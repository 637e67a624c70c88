"""The search for identities of which something is due, in the read model of queues.

Each time (``Due``) has an index of its own that holds those identities alone that have one. Rows
that an earlier release wrote have none but the age of the oldest message.
"""

from __future__ import annotations

from typing import Final

from eventstore.log.event_log import Due, DueIdentity, DuePlace
from eventstore.log.session import Session

DUE_COLUMNS: Final = tuple(time.value for time in Due if time is not Due.MESSAGES)
"""The columns of ``queue_depths`` that are for this search alone."""
DUE_INDEXES: Final = tuple(
    f"CREATE INDEX IF NOT EXISTS due_by_{time.value} ON queue_depths ({time.value}, stream)"
    f" WHERE {time.value} IS NOT NULL"
    for time in Due
)
_FIRST: Final = DuePlace(-(2**62), b"")


def find(
    session: Session, time: Due, *, until_ms: int, after: DuePlace | None, limit: int
) -> list[DueIdentity]:
    """Identities whose time is not after ``until_ms``, in its order, from a place on."""
    start, at = after or _FIRST, time.value
    found = session.rows(
        f"SELECT did, {at}, stream FROM queue_depths WHERE {at} IS NOT NULL AND {at} <= ?"  # noqa: S608 - own text
        f" AND ({at}, stream) > (?, ?) ORDER BY {at}, stream LIMIT ?",
        (until_ms, start.at_ms, start.stream, limit),
    )
    return [
        DueIdentity(bytes(did).decode(), DuePlace(at_ms, bytes(stream)))
        for did, at_ms, stream in found
    ]
