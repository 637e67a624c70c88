"""What the read models make of the events of one append, in its transaction."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from uuid import UUID

from eventsourcing.persistence import StoredEvent

from eventstore.log.events import (
    Event,
    EventSaved,
    EventTagsUpdated,
    IdentityDedicated,
    IdentityReleased,
    PublicEventPublished,
    PublicEventsDeleted,
)
from eventstore.log.session import Session
from eventstore.read_models import dedicated_identities, public_events, saved_events

INDEXED: Final = (
    *(EventSaved, EventTagsUpdated, PublicEventPublished, PublicEventsDeleted),
    *(IdentityDedicated, IdentityReleased),
)
"""The events that change a read model; depths of queues come from their owner."""
READ_MODELS: Final = ("postings", "queue_depths", "dedicated", "snapshots", "heartbeat")
"""The tables beside ``stored_events`` that can be made anew from it, or forgotten."""


def update_read_models(
    session: Session, rows: Iterable[StoredEvent], events: Iterable[Event]
) -> None:
    """Bring the read models up to these rows, which are already in ``stored_events``."""
    for row, event in zip(rows, events, strict=True):
        if not isinstance(event, INDEXED):
            continue
        assert isinstance(row.originator_id, UUID)
        owner, version = row.originator_id, row.originator_version
        match event:
            case EventSaved():
                saved_events.save(session, owner, version, event)
            case EventTagsUpdated():
                saved_events.update_tags(session, owner, version, event)
            case PublicEventPublished():
                public_events.publish(session, owner, version, event)
            case PublicEventsDeleted():
                public_events.withdraw(session, owner, event)
            case IdentityDedicated():
                dedicated_identities.dedicate(session, owner, event)
            case IdentityReleased():
                dedicated_identities.release(session, owner)
