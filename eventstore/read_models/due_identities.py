"""The search for identities with due work, in the read model of queues.

Each time (``Due``) has an index of its own, with only the identities that have such a time. Rows
that an earlier release wrote have only the time of the oldest message.
"""

from __future__ import annotations

from typing import Final

from eventstore.log.event_log import Due, DueIdentity, DuePlace
from eventstore.log.session import Session

DUE_COLUMNS: Final = tuple(time.value for time in Due if time is not Due.MESSAGES)
"""The columns of ``queue_depths`` that only this search uses."""
DUE_INDEXES: Final = tuple(
    f"CREATE INDEX IF NOT EXISTS due_by_{time.value} ON queue_depths ({time.value}, stream)"
    f" WHERE {time.value} IS NOT NULL"
    for time in Due
)
_FIRST: Final = DuePlace(-(2**62), b"")


def find(
    session: Session, time: Due, *, until_ms: int, after: DuePlace | None, limit: int
) -> list[DueIdentity]:
    """Identities whose ``time`` is at most ``until_ms``, in its order, behind a place."""
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
