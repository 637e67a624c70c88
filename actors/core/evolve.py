"""The fold: ``evolve`` applies each event to the state of its identity.

Rules of this file: an event is a fact, so applying it checks no rule and only records. The same
events in the same order give the same state, from the first event or from a snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

import msgspec

from actors.core.commands import Connection, PushDevice
from actors.core.identity import (
    PRIOR_DIDS_MAX,
    PRIOR_SPEAKERS_MAX,
    RECENT_COUNTS_MAX,
    RECENT_MAX,
    ContractRecord,
    Correspondent,
    Depth,
    Identity,
    PublicEvent,
    QueuedMessage,
    WaitingRequest,
)
from actors.core.names import share_names, shared
from actors.core.replies import QueuePolicy
from actors.core.stored_bytes import stored_bytes
from eventstore.log.content import size_of
from eventstore.log.errors import CorruptRow
from eventstore.log.events import (
    DIDCOMM,
    DIDCOMM_V2,
    AccountEnded,
    AccountExpired,
    AccountRotated,
    AgentSeen,
    AnyContractRequested,
    AnyContractRequestsAcknowledged,
    AnyEventSaved,
    AnyMessageQueued,
    AnyMessagesRemoved,
    AnyPublicEventPublished,
    AnyPublicEventsDeleted,
    ConnectionEstablished,
    ContractExpired,
    ContractRequestsExpired,
    ContractStored,
    Event,
    EventTagsUpdated,
    IdentityDedicated,
    IdentityErased,
    IdentityErasureBegun,
    IdentityRegistered,
    IdentityReleased,
    InvitationUsed,
    KeyClaimed,
    KeylistUpdated,
    KeyReleased,
    MediationGranted,
    MessageExpirySet,
    MessagesDelivered,
    PublicEventsExpired,
    PushDeviceSet,
    QueuePolicySet,
    QueueRefused,
    RefusalsCounted,
    SavedEventsErased,
    SavedEventsUnlisted,
    Seconds,
    SpeakerNamed,
)
from eventstore.log.signs_of_life import is_sign_of_life

_SNAPSHOT_ENCODER: Final = msgspec.msgpack.Encoder()
_SNAPSHOT_DECODER: Final = msgspec.msgpack.Decoder(Identity)
_S = TypeVar("_S", bound=msgspec.Struct)


def evolve_all(state: Identity, events: Iterable[Event]) -> None:
    """Apply the next events of the identity's stream, in place; contracts that expire, together.

    Raises:
        CorruptRow: an event cannot stand in the stream of an identity.
    """
    expired: list[ContractExpired] = []
    for event in events:
        if type(event) is ContractExpired:
            expired.append(event)
            continue
        if expired:
            _expire_contracts(state, expired)
            expired = []
        evolve(state, event)
    if expired:
        _expire_contracts(state, expired)


def _expire_contracts(state: Identity, events: Sequence[ContractExpired]) -> None:
    _drop_contracts(state, events)
    state.version += len(events)


def evolve(state: Identity, event: Event) -> None:  # noqa: C901 - one arm per event
    """Apply the next event of the identity's stream, in place.

    Raises:
        CorruptRow: the event cannot stand in the stream of an identity.
    """
    version = state.version + 1
    match event:
        case AnyMessageQueued():
            _queue(state, event, version)
        case MessagesDelivered():
            state.last_delivered_ms = event.at_ms
        case AnyMessagesRemoved():
            _remove(state, event)
        case IdentityRegistered():
            state.registered_until_s = max(state.registered_until_s, event.expires_at_s)
            state.is_erased = False
        case ContractStored():
            _keep_contract(state, event, version)
        case AnyContractRequested():
            _keep_request(state, event, version)
        case ContractExpired():
            _drop_contracts(state, [event])
        case AnyContractRequestsAcknowledged() | ContractRequestsExpired():
            _drop_requests(state, event.request_ids)
        case AnyEventSaved():
            state.saved_events += 1
            state.saved_bytes += stored_bytes(event)
        case EventTagsUpdated():
            # The log keeps the tags that were replaced.
            state.saved_bytes += stored_bytes(event)
        case AnyPublicEventPublished():
            channel_id = shared(event.channel_id)
            published = PublicEvent(channel_id, version, stored_bytes(event), event.at_ms)
            state.public_events[event.event_id] = published
            state.public_bytes += published.stored_bytes
        case AnyPublicEventsDeleted() | PublicEventsExpired():
            for event_id in event.event_ids:
                withdrawn = state.public_events.pop(event_id, None)
                state.public_bytes -= 0 if withdrawn is None else withdrawn.stored_bytes
        case _:
            _evolve_agent(state, event, version)
    if state.connection is not None and is_sign_of_life(event):
        state.seen_ms = max(state.seen_ms, event.at_ms)
    state.version = version


def _queue(state: Identity, event: AnyMessageQueued, version: int) -> None:
    size_bytes, at_ms = size_of(event.payload), event.at_ms
    state.queue_bytes += size_bytes
    state.last_added_ms = at_ms
    # Thousands of messages name the same few keys and senders.
    is_v2 = event.protocol == DIDCOMM_V2
    is_envelope = is_v2 or event.protocol == DIDCOMM
    if is_envelope:
        key, depths = shared(event.recipient_key), state.by_key
        state.messages[event.message_id] = QueuedMessage(
            event.sender_did, version, size_bytes, at_ms, is_envelope, key, is_v2
        )
        state.envelopes[event.message_id] = None
        state.envelope_bytes += size_bytes
        depth = depths.get(key)
        if depth is None:
            depth = depths[key] = Depth(0, 0)
        if event.command and key:
            _remember(state, event.command, event.message_id, RECENT_MAX)
    else:
        sender, depths = shared(event.sender_did), state.by_sender
        state.messages[event.message_id] = QueuedMessage(sender, version, size_bytes, at_ms)
        depth = depths.get(sender)
        if depth is None:
            depth = depths[sender] = Depth(0, 0)
    depth.messages += 1
    depth.bytes += size_bytes


def _remember(state: Identity, command: bytes, message_id: str, recent_max: int) -> None:
    state.recent[command] = message_id
    if len(state.recent) > recent_max:
        del state.recent[next(iter(state.recent))]


def _remove(state: Identity, event: AnyMessagesRemoved) -> None:
    for message_id in event.message_ids:
        removed = state.messages.pop(message_id, None)
        if removed is not None:
            state.queue_bytes -= removed.size_bytes
            if removed.is_envelope:
                del state.envelopes[message_id]
                state.envelope_bytes -= removed.size_bytes
                _leave(state.by_key, removed.recipient_key, removed.size_bytes)
            else:
                _leave(state.by_sender, removed.sender_did, removed.size_bytes)
    if state.expiring:
        _forget_expiries(state, event.message_ids)
    state.last_removed_ms = event.at_ms
    state.refusing = False


def _expire(state: Identity, event: MessageExpirySet) -> None:
    waiting, at_s = [i for i in event.message_ids if i in state.messages], event.expires_at_s
    if waiting:
        state.expiring.update(dict.fromkeys(waiting, at_s))
        # Passing over the expiries of a full queue would take twice as long as queueing a message.
        state.expires_first_s = min(state.expires_first_s or at_s, at_s)


def _forget_expiries(state: Identity, message_ids: Sequence[str]) -> None:
    gone = [state.expiring.pop(message_id, None) for message_id in message_ids]
    if state.expires_first_s in gone:
        state.expires_first_s = min(state.expiring.values(), default=0)


def _leave(depths: dict[str, Depth], origin: str, size_bytes: int) -> None:
    depth = depths[origin]
    depth.messages -= 1
    depth.bytes -= size_bytes
    if not depth.messages:
        del depths[origin]


def _keep_request(state: Identity, event: AnyContractRequested, version: int) -> None:
    sender, size_bytes = shared(event.sender_did), stored_bytes(event)
    state.requests[event.request_id] = WaitingRequest(sender, version, size_bytes, event.at_ms)
    state.requests_by_sender[sender] = state.requests_by_sender.get(sender, 0) + 1
    state.request_bytes += size_bytes


def _drop_requests(state: Identity, request_ids: Sequence[str]) -> None:
    for request_id in request_ids:
        dropped = state.requests.pop(request_id, None)
        if dropped is None:
            continue
        state.request_bytes -= dropped.stored_bytes
        left = state.requests_by_sender[dropped.sender_did] - 1
        if left:
            state.requests_by_sender[dropped.sender_did] = left
        else:
            del state.requests_by_sender[dropped.sender_did]


def _evolve_agent(  # noqa: C901 - one arm per event
    state: Identity, event: Event, version: int
) -> None:
    """Apply the events of DIDComm agents, invitations, edges and placement."""
    match event:
        case ConnectionEstablished():
            state.is_erased = False
            state.connection = _stated_in(event, Connection)
        case AgentSeen():
            pass  # ``evolve`` sets ``seen_ms`` from its ``at_ms``
        case MediationGranted():
            state.mediated = True
        case KeylistUpdated():
            for key in event.removed:
                state.keylist.pop(key, None)
            state.keylist.update(zip(event.added, event.claims, strict=True))
        case QueuePolicySet():
            state.policy = _stated_in(event, QueuePolicy)
            state.refusing = False
        case QueueRefused():
            state.refusing = True
        case InvitationUsed():
            state.used_by = event.by_did
        case IdentityDedicated():
            state.dedicated_by = event.reason
        case IdentityReleased():
            state.dedicated_by = ""
        case RefusalsCounted():
            _remember(state, event.command, "", RECENT_COUNTS_MAX)
        case _:
            _evolve_account(state, event, version)


def _stated_in(event: Event, kind: type[_S]) -> _S:
    """The record whose fields an event has under the same names."""
    return kind(*[getattr(event, name) for name in kind.__struct_fields__])


def _evolve_account(  # noqa: C901 - one arm per event
    state: Identity, event: Event, version: int
) -> None:
    """Apply the events of keys, devices, DIDComm v2 accounts and erasure."""
    match event:
        case MessageExpirySet():
            _expire(state, event)
        case PushDeviceSet():
            device = PushDevice(event.channel, event.device_token, event.device_platform)
            state.push_device = device if event.channel else None
        case KeyClaimed():
            if state.owner_did not in {"", event.owner_did}:
                state.former_did = state.owner_did
            state.owner_did = event.owner_did
            state.claim = version
        case KeyReleased():
            state.owner_did = state.former_did = ""
        case SpeakerNamed():
            state.account_did = event.account_did
        case AccountRotated():
            _give_up_did(state)
            _replace_speaker(state, event)
            state.rotated_at_s = event.issued_at_s
        case AccountEnded():
            state.connection = state.policy = state.push_device = None
            state.mediated = state.refusing = False
            state.ended_at_s = event.issued_at_s
            state.prior_dids = []
        case AccountExpired():
            state.connection = state.policy = state.push_device = None
            state.mediated = state.refusing = False
            state.keylist, state.prior_dids = {}, []
        case (
            IdentityErasureBegun() | SavedEventsErased() | SavedEventsUnlisted() | IdentityErased()
        ):
            _erase(state, event, version)
        case _:
            raise CorruptRow(type(event).__name__, "cannot stand in an identity's stream")


_LEFT_TO_ERASE: Final = frozenset(
    [
        *("version", "messages", "queue_bytes", "by_sender", "envelopes", "envelope_bytes"),
        *("by_key", "expiring", "expires_first_s", "requests", "requests_by_sender"),
        *("request_bytes", "public_events", "public_bytes"),
        *("last_added_ms", "last_delivered_ms", "last_removed_ms", "refusing"),
        *("dedicated_by", "erased_events"),
    ]
)
"""Fields that the first step of an erasure keeps: later steps need them, or they name no one."""


def _erase(
    state: Identity,
    event: IdentityErasureBegun | SavedEventsErased | SavedEventsUnlisted | IdentityErased,
    version: int,
) -> None:
    match event:
        case IdentityErasureBegun():
            saved, blank = state.saved_events, Identity()
            for name in Identity.__struct_fields__:
                if name not in _LEFT_TO_ERASE:
                    setattr(state, name, getattr(blank, name))
            state.erasing = version
            state.erased_events += saved
            state.erased_until = 0 if saved else version
        case SavedEventsErased():
            state.erased_until = event.after + event.count
        case SavedEventsUnlisted():
            pass  # the state has no lists
        case IdentityErased():
            state.erasing = state.erased_until = 0
            state.is_erased = True


def _give_up_did(state: Identity) -> None:
    """Move the DID that the agent has stated to ``prior_dids``, for some more rotations."""
    stated = "" if state.connection is None else state.connection.peer_did
    known = [did for did in state.prior_dids if did != stated]
    state.prior_dids = [*known, *([stated] if stated else [])][-PRIOR_DIDS_MAX:]


def _replace_speaker(state: Identity, event: AccountRotated) -> None:
    spoke = (*state.prior_speakers, state.speaker_did)
    known = [did for did in spoke if did not in {"", event.speaker_did}]
    state.prior_speakers = known[-PRIOR_SPEAKERS_MAX:]
    state.speaker_did = event.speaker_did


def _keep_contract(state: Identity, event: ContractStored, version: int) -> None:
    size_bytes, until_s = stored_bytes(event), event.expires_at_s
    requestor, recipient = shared(event.requestor_did), shared(event.recipient_did)
    state.contracts[event.contract_id] = ContractRecord(
        requestor, recipient, until_s, version, size_bytes
    )
    state.contract_ids[event.digest] = event.contract_id
    state.contract_bytes += size_bytes
    state.contracts_until_s = min(state.contracts_until_s or until_s, until_s)
    for did in dict.fromkeys((requestor, recipient)):  # in one order, whatever their hashes are
        party = state.correspondents.get(did)
        if party is None:
            party = state.correspondents[did] = Correspondent(0, 0, 0)
        party.until_s = max(party.until_s, until_s)
        party.contracts += 1
        party.stored_bytes += size_bytes


def _drop_contracts(state: Identity, events: Sequence[ContractExpired]) -> None:
    """Drop contracts; one pass over those that are left serves them all."""
    partners: set[str] = set()
    for event in events:
        dropped = state.contracts.pop(event.contract_id, None)
        if dropped is not None:
            state.contract_bytes -= dropped.stored_bytes
            state.contract_ids.pop(event.digest, None)
            for did in {dropped.requestor_did, dropped.recipient_did}:
                partners.add(did)
                state.correspondents[did].contracts -= 1
                state.correspondents[did].stored_bytes -= dropped.stored_bytes
    if not partners:
        return
    left = state.contracts.values()
    state.contracts_until_s = min((kept.expires_at_s for kept in left), default=0)
    until: dict[str, Seconds] = {}
    for kept in left:
        until_s = kept.expires_at_s
        for did in (kept.requestor_did, kept.recipient_did):
            if did in partners:
                until[did] = max(until.get(did, until_s), until_s)
    for did in partners:
        if did in until:
            state.correspondents[did].until_s = until[did]
        else:
            del state.correspondents[did]


def to_snapshot(state: Identity) -> bytes:
    """Encode the state as a snapshot."""
    return _SNAPSHOT_ENCODER.encode(msgspec.structs.replace(state, envelopes={}))


def from_snapshot(data: bytes) -> Identity | None:
    """Decode a snapshot; None if it does not decode, so that the log is read instead."""
    try:
        state = _SNAPSHOT_DECODER.decode(data)
    except msgspec.DecodeError:
        return None
    share_names(state)
    state.envelopes = {i: None for i, message in state.messages.items() if message.is_envelope}
    return state
