"""Which events have a content, and which events erase contents."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from uuid import UUID

from eventsourcing.persistence import StoredEvent

from eventstore.log.content import Content
from eventstore.log.events import (
    ContractRequested,
    ContractRequestsAcknowledged,
    ContractRequestsExpired,
    Event,
    EventSaved,
    MessageQueued,
    MessagesRemoved,
    PublicEventPublished,
    PublicEventsDeleted,
    PublicEventsExpired,
    SavedEventsErased,
)

CONTENT_FIELDS: Final[dict[type[Event], str]] = {
    MessageQueued: "payload",
    ContractRequested: "encrypted_contract_request",
    EventSaved: "payload",
    PublicEventPublished: "event",
}
"""The event types with a content, and the field that holds it."""
ERASING: Final = (
    *(MessagesRemoved, PublicEventsDeleted, PublicEventsExpired),
    *(ContractRequestsAcknowledged, ContractRequestsExpired, SavedEventsErased),
)
"""The event types that erase contents of their stream: those at ``versions``."""


def erased_by(rows: Iterable[StoredEvent], events: Iterable[Event]) -> list[tuple[UUID, int]]:
    """The streams and versions of the contents that these rows erase."""
    return [
        (row.originator_id, version)
        for row, event in zip(rows, events, strict=True)
        if isinstance(event, ERASING) and isinstance(row.originator_id, UUID)
        for version in event.versions
    ]


def content_of(event: Event) -> Content | None:
    """The content of an event, None if its type has none."""
    field = CONTENT_FIELDS.get(type(event))
    return None if field is None else getattr(event, field)
