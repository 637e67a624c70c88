"""What the read models make of the events of one append, in its transaction."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from uuid import UUID

from eventsourcing.persistence import StoredEvent

from eventstore import dedicated, public_events, saved_events
from eventstore.events import (
    Event,
    EventSaved,
    EventTagsUpdated,
    IdentityDedicated,
    IdentityReleased,
    PublicEventPublished,
    PublicEventsDeleted,
)
from eventstore.session import Session

INDEXED: Final = (
    *(EventSaved, EventTagsUpdated, PublicEventPublished, PublicEventsDeleted),
    *(IdentityDedicated, IdentityReleased),
)
"""The events that ``apply`` makes something of; depths of queues come from their owner."""
READ_MODELS: Final = ("postings", "queue_depths", "dedicated", "snapshots", "heartbeat")
"""The tables beside ``stored_events`` that can be made anew from it, or forgotten."""


def apply(open_session: Session, rows: Iterable[StoredEvent], events: Iterable[Event]) -> None:
    """Bring the read models up to these rows, which are already in ``stored_events``."""
    for row, event in zip(rows, events, strict=True):
        if not isinstance(event, INDEXED):
            continue
        assert isinstance(row.originator_id, UUID)
        owner, version = row.originator_id, row.originator_version
        match event:
            case EventSaved():
                saved_events.save(open_session, owner, version, event)
            case EventTagsUpdated():
                saved_events.update_tags(open_session, owner, version, event)
            case PublicEventPublished():
                public_events.publish(open_session, owner, version, event)
            case PublicEventsDeleted():
                public_events.withdraw(open_session, owner, event)
            case IdentityDedicated():
                dedicated.dedicate(open_session, owner, event)
            case IdentityReleased():
                dedicated.release(open_session, owner)
