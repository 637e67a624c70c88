"""The bounds of what one append stores in one transaction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from eventsourcing.persistence import StoredEvent

from eventstore.log.errors import AppendRefused
from eventstore.log.event_contents import content_of
from eventstore.log.events import Event, EventSaved, PublicEventPublished

ROW_BYTES_MAX: Final = 32 * 1024 * 1024
BATCH_BYTES_MAX: Final = 256 * 1024 * 1024
"""Each counts states and contents."""


def check_batch(rows: Sequence[StoredEvent], events: Sequence[Event]) -> None:
    """Refuse a batch that no store could take whole.

    Raises:
        AppendRefused: rows and events differ in number, a version is below 1, a row or the
            batch is over its size in bytes, or a timestamp cannot be ordered.
    """
    if len(rows) != len(events):
        raise AppendRefused(f"{len(rows)} rows for {len(events)} events")
    size_bytes = 0
    for row, event in zip(rows, events, strict=True):
        row_bytes = _size_bytes(row, event)
        size_bytes += row_bytes
        if row_bytes > ROW_BYTES_MAX:
            raise AppendRefused(f"{row.topic}: {row_bytes} bytes, at most {ROW_BYTES_MAX}")
        if row.originator_version < 1:
            raise AppendRefused(f"{row.topic}: version {row.originator_version}, the first is 1")
        if isinstance(event, EventSaved | PublicEventPublished) and not math.isfinite(
            event.timestamp_s
        ):
            raise AppendRefused(f"{row.topic}: timestamp {event.timestamp_s}")
    if size_bytes > BATCH_BYTES_MAX:
        raise AppendRefused(f"batch of {size_bytes} bytes, at most {BATCH_BYTES_MAX}")


def batch_bytes(rows: Sequence[StoredEvent], events: Sequence[Event]) -> int:
    """The size of a batch, with its contents."""
    return sum(map(_size_bytes, rows, events))


def _size_bytes(row: StoredEvent, event: Event) -> int:
    content = content_of(event)
    return len(row.state) + (0 if content is None else content.size_bytes)
