"""Updates of the read models by the events of one append, in its transaction."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from typing import Any, Final
from uuid import UUID

from eventsourcing.persistence import StoredEvent

from eventstore.log.event_log import DedicatedIdentity
from eventstore.log.events import (
    AnyEventSaved,
    AnyPublicEventPublished,
    AnyPublicEventsDeleted,
    Event,
    EventTagsUpdated,
    IdentityDedicated,
    IdentityReleased,
    PublicEventsExpired,
    SavedEventsErased,
    SavedEventsUnlisted,
)
from eventstore.log.session import Session
from eventstore.read_models import public_events, saved_events, saved_events_erasure
from eventstore.read_models.saved_events_erasure import LastSteps

INDEXED: Final = (
    *(AnyEventSaved, EventTagsUpdated),
    *(AnyPublicEventPublished, AnyPublicEventsDeleted, PublicEventsExpired),
    *(IdentityDedicated, IdentityReleased, SavedEventsErased, SavedEventsUnlisted),
)
"""The events that change a read model; queue depths come from the owner of the queue."""
MADE: Final = ("postings", "queue_depths", "dedicated")
"""The read models: what they hold follows from the rows of the log."""
READ_MODELS: Final = (*MADE, "snapshots", "heartbeat")
"""The tables beside ``stored_events`` that can be made anew from it, or forgotten."""
UNFILLED: Final = "unfilled_read_models"
"""A constant that a log has from when a missing read model is made, empty, until it is filled."""
_DEDICATE: Final = (
    "INSERT INTO dedicated (stream, did, reason) VALUES (?, ?, ?)"
    " ON CONFLICT (stream) DO UPDATE SET did = excluded.did, reason = excluded.reason"
)


def update_read_models(
    session: Session, rows: Iterable[StoredEvent], events: Iterable[Event], steps: LastSteps
) -> None:
    """Bring the read models up to these rows, which are already in ``stored_events``.

    ``steps`` are those of erasures in this log; an empty one costs time, and changes no result.
    Consecutive events of one owner and type, as one command makes them, go into one statement: a
    new statement costs more than one more row.
    """
    indexed = [
        (row.originator_id, type(event), (row.originator_version, event))
        for row, event in zip(rows, events, strict=True)
        if isinstance(event, INDEXED)
    ]
    for (owner, kind), group in groupby(indexed, key=itemgetter(0, 1)):
        assert isinstance(owner, UUID)
        _update(session, owner, kind, [versioned for _, _, versioned in group], steps)


def _update(
    session: Session,
    owner: UUID,
    kind: type[Event],
    events: list[tuple[int, Any]],
    steps: LastSteps,
) -> None:
    """Apply the events of one type, each with its version."""
    if issubclass(kind, AnyEventSaved):
        saved_events.save(session, owner, events)
    elif kind is EventTagsUpdated:
        saved_events.update_tags(session, owner, events)
    else:
        for version, event in events:
            _update_one(session, owner, version, event, steps)


def _update_one(
    session: Session, owner: UUID, version: int, event: Event, steps: LastSteps
) -> None:
    match event:
        case AnyPublicEventPublished():
            public_events.publish(session, owner, version, event)
        case AnyPublicEventsDeleted():
            public_events.withdraw(session, owner, event.event_ids, event.channel_id)
        case PublicEventsExpired():
            public_events.withdraw(session, owner, event.event_ids)
        case SavedEventsErased():
            saved_events_erasure.erase(session, owner, version, event, steps)
        case SavedEventsUnlisted():
            saved_events_erasure.unlist(session, owner, version, event, steps)
        case IdentityDedicated():
            row = owner.bytes, event.did.encode(), event.reason.encode()
            session.run_many(_DEDICATE, [row])
        case IdentityReleased():
            session.run_many("DELETE FROM dedicated WHERE stream = ?", [(owner.bytes,)])
        case _:
            raise AssertionError(f"{type(event).__name__} changes no read model")


def dedicated(session: Session) -> list[DedicatedIdentity]:
    """The identities that are partitions of their own, by DID: the placer reads no log for them."""
    found = session.rows("SELECT did, reason FROM dedicated ORDER BY did")
    return [DedicatedIdentity(bytes(did).decode(), bytes(why).decode()) for did, why in found]
