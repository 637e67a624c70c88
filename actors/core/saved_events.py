"""Decisions on saved events (DCTRL-0004 8.9 to 8.11) and public events (DCTRL-0007).

Rules of this file: pure; saved events can be millions, so the state only counts them and the read
model answers queries; the state keeps the ids of public events: only their owner may delete them.
"""

from __future__ import annotations

from collections.abc import Sequence

from actors.core.commands import (
    DeletePublicEvents,
    PublishPublicEvent,
    QuerySavedEvents,
    SaveEvents,
    UpdateEventTags,
)
from actors.core.decision import Accepted, Decision, DecisionContext
from actors.core.identity import Identity
from actors.core.refusals import Refusal
from actors.core.replies import Done, PublicEventAccepted, ReadAllowed
from actors.core.stored_bytes import stored_bytes
from eventstore.log.events import (
    EventSaved,
    EventTagsUpdated,
    PublicEventPublished,
    PublicEventsDeleted,
)


def save_events(state: Identity, command: SaveEvents, context: DecisionContext) -> Decision:
    """Save all events or none; events that the owner sent itself count as processed (8.9)."""
    if state.saved_events + len(command.events) > context.limits.saved_events_max:
        return Refusal.QUOTA_EXCEEDED
    saved = [
        EventSaved(
            at_ms=context.now_ms,
            command=context.command,
            event_id=f"{context.fresh_id}.{index}",
            sender_did=event.sender_did,
            recipient_did=event.recipient_did,
            contract_id=event.contract_id,
            timestamp_s=event.timestamp_s,
            payload=context.content(event.payload.encode(), index),
            encrypted_tags=event.encrypted_tags,
            processed=event.sender_did == context.target,
        )
        for index, event in enumerate(command.events)
    ]
    return _within_quota(state, saved, context)


def query_saved_events(
    _state: Identity, _command: QuerySavedEvents, _context: DecisionContext
) -> Accepted:
    """Allow the edge to read the page from the read model (8.10)."""
    return Accepted(ReadAllowed())


def update_event_tags(
    state: Identity, command: UpdateEventTags, context: DecisionContext
) -> Decision:
    """Replace tags; the last of several updates of one event counts (8.11).

    Ids of events that the owner does not have are skipped and not recorded.
    """
    last = {update.event_id: update.encrypted_tags for update in command.updates}
    updated = [
        EventTagsUpdated(
            at_ms=context.now_ms,
            command=context.command,
            event_id=event_id,
            encrypted_tags=encrypted_tags,
        )
        for event_id, encrypted_tags in last.items()
        if event_id in context.saved
    ]
    if command.later_bytes is None:
        # The first part checked the room for all parts, so none of the later ones is refused.
        return Accepted(Done(), list(updated))
    return _within_quota(state, updated, context, command.later_bytes)


def _within_quota(
    state: Identity,
    events: Sequence[EventSaved | EventTagsUpdated],
    context: DecisionContext,
    later_bytes: int = 0,
) -> Decision:
    """Store all events if the bytes of saved events and of the identity stay within bounds."""
    limits, size_bytes = context.limits, sum(map(stored_bytes, events)) + later_bytes
    if (
        state.saved_bytes + size_bytes > limits.saved_events_bytes_max
        or state.stored_bytes + size_bytes > limits.identity_bytes_max
    ):
        return Refusal.QUOTA_EXCEEDED
    return Accepted(Done(), list(events))


def publish_public_event(
    state: Identity, command: PublishPublicEvent, context: DecisionContext
) -> Decision:
    """Publish an event whose own signature holds (DCTRL-0007)."""
    if not command.signature_valid:
        return Refusal.INVALID_SIGNATURE
    limits = context.limits
    if len(state.public_events) >= limits.public_events_max:
        return Refusal.QUOTA_EXCEEDED
    published = PublicEventPublished(
        at_ms=context.now_ms,
        command=context.command,
        event_id=context.fresh_id,
        channel_id=command.channel_id,
        event=context.content(command.event.encode()),
        tags=command.tags,
        timestamp_s=command.timestamp_s,
        event_signature=command.event_signature,
    )
    size_bytes = stored_bytes(published)
    if (
        state.public_bytes + size_bytes > limits.public_events_bytes_max
        or state.stored_bytes + size_bytes > limits.identity_bytes_max
    ):
        return Refusal.QUOTA_EXCEEDED
    return Accepted(PublicEventAccepted(context.fresh_id), [published])


def delete_public_events(
    state: Identity, command: DeletePublicEvents, context: DecisionContext
) -> Accepted:
    """Withdraw own public events; unknown and foreign ids are ignored (DCTRL-0007)."""
    mine = [
        event_id
        for event_id in dict.fromkeys(command.event_ids)
        if event_id in state.public_events
        and command.channel_id in (None, state.public_events[event_id].channel_id)
    ]
    if not mine:
        return Accepted(Done())
    return Accepted(Done(), [public_events_deleted(state, mine, command.channel_id, context)])


def public_events_deleted(
    state: Identity, event_ids: list[str], channel_id: str | None, context: DecisionContext
) -> PublicEventsDeleted:
    """The event that withdraws these public events, all of which the identity has."""
    return PublicEventsDeleted(
        at_ms=context.now_ms,
        command=context.command,
        event_ids=event_ids,
        channel_id=channel_id,
        versions=[state.public_events[event_id].version for event_id in event_ids],
    )
