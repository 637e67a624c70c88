"""What each event does to the state of its identity: ``evolve``.

Rules of this file: an event of the log never fails and never asks anything; it only records.
The same events in the same order give the same state, from the first or from a snapshot.
"""

from __future__ import annotations

from typing import Final

import msgspec

from actors.identity import ContractRecord, Identity, QueuedMessage, WaitingRequest
from eventstore.errors import CorruptRow
from eventstore.events import (
    ContractRequested,
    ContractRequestsAcknowledged,
    ContractStored,
    Event,
    EventSaved,
    EventTagsUpdated,
    IdentityRegistered,
    MessageQueued,
    MessagesRemoved,
    PublicEventPublished,
    PublicEventsDeleted,
)

_SNAPSHOT_ENCODER: Final = msgspec.msgpack.Encoder()
_SNAPSHOT_DECODER: Final = msgspec.msgpack.Decoder(Identity)


def evolve(state: Identity, event: Event) -> None:  # noqa: C901 - one arm per event
    """Apply the next event of the identity's stream, in place.

    Raises:
        CorruptRow: the event cannot stand in the stream of an identity.
    """
    version = state.version + 1
    match event:
        case MessageQueued():
            state.messages[event.message_id] = QueuedMessage(
                event.sender_did, version, len(event.payload), event.at_ms
            )
            state.queue_bytes += len(event.payload)
        case MessagesRemoved():
            for message_id in event.message_ids:
                removed = state.messages.pop(message_id, None)
                if removed is not None:
                    state.queue_bytes -= removed.size_bytes
        case IdentityRegistered():
            state.registered_until_s = max(state.registered_until_s, event.expires_at_s)
        case ContractStored():
            _keep_contract(state, event, version)
        case ContractRequested():
            state.requests[event.request_id] = WaitingRequest(event.sender_did, version)
        case ContractRequestsAcknowledged():
            for request_id in event.request_ids:
                state.requests.pop(request_id, None)
        case EventSaved():
            state.saved_events += 1
        case EventTagsUpdated():
            pass
        case PublicEventPublished():
            state.public_events[event.event_id] = event.channel_id
        case PublicEventsDeleted():
            for event_id in event.event_ids:
                state.public_events.pop(event_id, None)
        case _:
            raise CorruptRow(type(event).__name__, "cannot stand in an identity's stream")
    state.version = version


def _keep_contract(state: Identity, event: ContractStored, version: int) -> None:
    state.contracts[event.contract_id] = ContractRecord(
        event.requestor_did, event.recipient_did, event.expires_at_s, version
    )
    state.contract_ids[event.digest] = event.contract_id
    for party in (event.requestor_did, event.recipient_did):
        known = state.correspondents.get(party, 0)
        state.correspondents[party] = max(known, event.expires_at_s)


def to_snapshot(state: Identity) -> bytes:
    """The state as bytes for the snapshot cache."""
    return _SNAPSHOT_ENCODER.encode(state)


def from_snapshot(data: bytes) -> Identity | None:
    """The state of a snapshot, or None when it does not decode: then the log is read."""
    try:
        return _SNAPSHOT_DECODER.decode(data)
    except msgspec.DecodeError:
        return None
