"""Every event type of the log, as frozen records of primitive fields.

Rules of this file: an event says what happened, never what to do; a released type never changes,
a new shape is a new type with a new version in its topic; nothing here is computed.

Topics are short stable names with a version (never a Python path). ``TOPIC_BY_TYPE`` is the
whole registry: a row whose topic is not in it cannot be loaded. Golden files in ``tests/golden``
pin the encoding of every released type.

Units: ``at_ms`` is Unix milliseconds by the owner's clock; ``expires_at_s`` and ``timestamp_s``
are Unix seconds as the client wrote them (an integer stays an integer, a fraction a fraction).
``command`` is the 16-byte key of the command that caused the event (see ``eventstore.seal``).
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

Seconds: TypeAlias = int | float


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """What every event carries: when it was decided and which command caused it."""

    at_ms: int
    command: bytes


class IdentityRegistered(Event, frozen=True, kw_only=True):
    """A contract with the mediator was signed and stored (DCTRL-0004 8.1, DCTRL-0003 9).

    The first event of every identity that is not a DIDComm agent alone; repeats the DID of its
    stream.
    """

    did: str
    expires_at_s: Seconds
    contract: bytes


class IdentityDedicated(Event, frozen=True, kw_only=True):
    """From now on the identity belongs to no shard: it is a partition of its own.

    ``reason`` says who wanted it: operator, load. Sealed by the owner that it leaves. ``did``
    repeats the DID of the stream, for the list of all that are dedicated.
    """

    did: str
    reason: str


class IdentityReleased(Event, frozen=True, kw_only=True):
    """From now on the identity belongs to its shard again; fields as in ``IdentityDedicated``."""

    did: str
    reason: str


class ContractStored(Event, frozen=True, kw_only=True):
    """A signed communication contract is now owned by this identity (8.2, 8.5).

    ``digest`` is SHA-256 of the canonical signed contract: one record per owner and digest.
    """

    contract_id: str
    requestor_did: str
    recipient_did: str
    expires_at_s: Seconds
    digest: bytes
    contract: bytes


class ContractRequested(Event, frozen=True, kw_only=True):
    """An encrypted contract request waits for this identity (8.1, forwarded form)."""

    request_id: str
    sender_did: str
    encrypted_contract_request: str
    requestor_ephemeral_public_key: str


class ContractRequestsAcknowledged(Event, frozen=True, kw_only=True):
    """These contract requests are not offered again (8.4)."""

    request_ids: list[str]


class MessageQueued(Event, frozen=True, kw_only=True):
    """A message waits for this identity (7.2 step 7; RFC 0094 forward).

    ``sender_did`` is empty where the protocol hides the sender; ``recipient_key`` is empty where
    the message is addressed to the identity itself. ``payload`` is opaque.
    """

    message_id: str
    protocol: str
    sender_did: str
    recipient_key: str
    payload: bytes


class MessagesDelivered(Event, frozen=True, kw_only=True):
    """These messages were handed out and still wait; ``channel`` says how (``pickup/2.0``, …)."""

    message_ids: list[str]
    channel: str


class MessagesRemoved(Event, frozen=True, kw_only=True):
    """These messages left the queue (8.8; RFC 0685 messages-received).

    ``reason`` is acknowledged, delivered (by a protocol without acknowledgement), expired or
    purged.
    """

    message_ids: list[str]
    reason: str


class QueueRefused(Event, frozen=True, kw_only=True):
    """The queue began to refuse messages, for ``reason``; told once until something changes.

    Once, because every refusal on its own would let a stranger fill the disk.
    """

    recipient_key: str
    reason: str


class QueuePolicySet(Event, frozen=True, kw_only=True):
    """The owner's own rules for its queue (Aries queue 1.0); 0 is no limit of its own."""

    will_queue: bool
    age_s_max: int
    messages_max: int
    message_bytes_max: int
    bytes_max: int


class ConnectionEstablished(Event, frozen=True, kw_only=True):
    """A DIDComm agent connected (RFC 0160, RFC 0023); a later one replaces what it said.

    ``did`` is the identity, the did:key of the agent's verification key; ``peer_did`` is the DID
    that the agent uses for the connection; ``endpoint`` is empty where it has none.
    """

    did: str
    peer_did: str
    label: str
    endpoint: str
    routing_keys: list[str]
    protocol: str
    invitation_id: str


class MediationGranted(Event, frozen=True, kw_only=True):
    """The agent may register keys from now on (RFC 0211)."""


class KeylistUpdated(Event, frozen=True, kw_only=True):
    """Keys that messages may be forwarded to; base58, no key twice (RFC 0211).

    ``claims`` are the numbers of the claims of ``added``: the versions of ``KeyClaimed`` in the
    streams of the keys. A key may be added again, with a later claim.
    """

    added: list[str]
    claims: list[int]
    removed: list[str]


class KeyClaimed(Event, frozen=True, kw_only=True):
    """A key belongs to one identity from now on; in the stream of the key.

    Its version is the number of the claim; a later claim of the same owner replaces it.
    """

    key: str
    owner_did: str


class KeyReleased(Event, frozen=True, kw_only=True):
    """The key belongs to nobody; in the stream of the key."""

    key: str


class InvitationUsed(Event, frozen=True, kw_only=True):
    """A single-use invitation was taken by this identity; in the stream of the invitation."""

    invitation_id: str
    by_did: str


class RefusedCommands(msgspec.Struct, frozen=True, array_like=True):
    """Commands that one edge refused alike: how many, and when the first and the last of them.

    ``protocol`` is ``decentrl`` or ``didcomm``; ``command`` its name for what was asked, empty
    where it is not known or was not told apart; ``reason`` the code of the refusal. ``sender_did``
    is who signed or packed them, empty where nobody is proven to have or where there were many.
    """

    protocol: str
    command: str
    reason: str
    sender_did: str
    count: int
    first_ms: int
    last_ms: int


class RefusalsCounted(Event, frozen=True, kw_only=True):
    """What one edge refused in a period, summed up; in the stream of the edge.

    The period is in Unix milliseconds by the edge's clock. A bounded number of entries, whatever
    was refused how often: refused commands must not fill the disk.
    """

    edge: str
    since_ms: int
    until_ms: int
    refusals: list[RefusedCommands]


class EventSaved(Event, frozen=True, kw_only=True):
    """One storage-encrypted event of the owner's own history (8.9)."""

    event_id: str
    sender_did: str
    recipient_did: str
    contract_id: str | None
    timestamp_s: Seconds
    payload: str
    encrypted_tags: list[str]
    processed: bool


class EventTagsUpdated(Event, frozen=True, kw_only=True):
    """All tags of one saved event were replaced; the event is processed from now on (8.11).

    Recorded as the owner asked: an ``event_id`` that the owner does not have changes nothing.
    """

    event_id: str
    encrypted_tags: list[str]


class PublicEventPublished(Event, frozen=True, kw_only=True):
    """A signed public event is readable by everybody (DCTRL-0007)."""

    event_id: str
    channel_id: str
    event: str
    tags: list[str]
    timestamp_s: Seconds
    event_signature: str


class PublicEventsDeleted(Event, frozen=True, kw_only=True):
    """Public events were withdrawn by their publisher (DCTRL-0007).

    ``channel_id`` restricts the deletion to that channel when it is not None.
    """

    event_ids: list[str]
    channel_id: str | None


class BatchSealed(Event, frozen=True, kw_only=True):
    """The seal of one partition's part of one transaction (see ``eventstore.seal``).

    ``nonces`` is a packed array of accepted nonces; ``rows`` counts the event rows that stand
    directly before this one in the log; ``digest`` chains them to ``previous``.
    """

    partition: str
    epoch: int
    window_ms: int
    nonces: bytes
    rows: int
    previous: bytes
    digest: bytes


TOPIC_BY_TYPE: dict[type[Event], str] = {
    IdentityRegistered: "identity-registered.1",
    IdentityDedicated: "identity-dedicated.1",
    IdentityReleased: "identity-released.1",
    ContractStored: "contract-stored.1",
    ContractRequested: "contract-requested.1",
    ContractRequestsAcknowledged: "contract-requests-acknowledged.1",
    MessageQueued: "message-queued.1",
    MessagesDelivered: "messages-delivered.1",
    MessagesRemoved: "messages-removed.1",
    QueueRefused: "queue-refused.1",
    QueuePolicySet: "queue-policy-set.1",
    ConnectionEstablished: "connection-established.1",
    MediationGranted: "mediation-granted.1",
    KeylistUpdated: "keylist-updated.1",
    KeyClaimed: "key-claimed.1",
    KeyReleased: "key-released.1",
    InvitationUsed: "invitation-used.1",
    RefusalsCounted: "refusals-counted.1",
    EventSaved: "event-saved.1",
    EventTagsUpdated: "event-tags-updated.1",
    PublicEventPublished: "public-event-published.1",
    PublicEventsDeleted: "public-events-deleted.1",
    BatchSealed: "batch-sealed.1",
}
