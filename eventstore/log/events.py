"""Every event type of the log, as frozen records of primitive fields.

This is the only declaration of an event: its topic, its fields, and their form in exported files.
The codec, the schema of the export (``eventstore.parquet.schema``), Spark's schema and the types
that projections read are derived from it.

Rules of this file: an event says what happened, never what to do; a released type never changes,
a new shape is a new type with a new version in its topic; nothing here is computed. The registry
is closed: a row whose topic was not released here cannot be loaded. Golden files in
``tests/golden`` pin the encoding of every released type.

A field is exported as a column of the same name, unless an annotation says otherwise:
``ExportColumn`` (another name, or a time), ``SIZE_ALONE``, ``STATE_ALONE``. ``NamesStream`` marks
the field of a first event that names the identity of its stream.

Data from peers is a ``Content``: the event holds its digest and size, and the log keeps the bytes
apart (``eventstore.log.content``), so that it can erase them once they are not needed. The events
that say so name the versions whose contents it erases (``versions``). The first types of these
events, with the content in the row, end with ``1``: they are read for ever, and never written. What
both types have in common is declared once, in a base class ``Any…``; readers match that.

Units: ``at_ms`` is Unix milliseconds by the owner's clock; ``expires_at_s`` and ``timestamp_s``
are Unix seconds as the client wrote them (an integer stays an integer, a fraction a fraction).
``command`` is the 16-byte key of the command that caused the event (see ``eventstore.log.seal``).
"""

from __future__ import annotations

from typing import Annotated, Final

from eventstore.log.account_events import (
    AccountEnded,
    AccountRotated,
    PushDeviceSet,
    SpeakerNamed,
)
from eventstore.log.content import Content
from eventstore.log.event_declaration import (
    FREQUENT,
    NAME,
    SIZE_ALONE,
    STATE_ALONE,
    TOPIC_BY_TYPE,
    Event,
    ExportColumn,
    NamesStream,
    RefusedCommands,
    Seconds,
    released,
    topics_of,
    type_name,
)
from eventstore.log.retention_events import (
    AccountExpired,
    AgentSeen,
    PublicEventsExpired,
    SavedEventsErased,
    SavedEventsUnlisted,
)

__all__ = [
    "FREQUENT",
    "TOPIC_BY_TYPE",
    "AccountEnded",
    "AccountExpired",
    "AccountRotated",
    "AgentSeen",
    "Event",
    "PublicEventsExpired",
    "PushDeviceSet",
    "RefusedCommands",
    "SavedEventsErased",
    "SavedEventsUnlisted",
    "Seconds",
    "SpeakerNamed",
    "topics_of",
    "type_name",
]
"""Declared in modules beside this one; importers take them from here."""


@released("identity-registered.1")
class IdentityRegistered(Event, frozen=True, kw_only=True):
    """An identity registered: its signed contract with the mediator was stored.

    See DCTRL-0004 8.1 and DCTRL-0003 9.

    The first event of every identity that is not only a DIDComm agent. ``did`` repeats the DID of
    the stream.
    """

    did: Annotated[str, NamesStream(), NAME]
    expires_at_s: Seconds
    contract: Annotated[bytes, SIZE_ALONE, NAME]


@released("identity-dedicated.1")
class IdentityDedicated(Event, frozen=True, kw_only=True):
    """The identity left its shard and is now a partition of its own.

    ``reason`` is operator or load. The owner that the identity leaves seals this event. ``did``
    repeats the DID of the stream, for the list of all dedicated identities.
    """

    did: Annotated[str, NAME]
    reason: str


@released("identity-released.1")
class IdentityReleased(Event, frozen=True, kw_only=True):
    """The identity returned to its shard; fields as in ``IdentityDedicated``."""

    did: Annotated[str, NAME]
    reason: str


@released("contract-stored.1")
class ContractStored(Event, frozen=True, kw_only=True):
    """A signed communication contract was stored for this identity (8.2, 8.5).

    ``digest`` is SHA-256 of the canonical contract: one record per owner and digest.
    """

    contract_id: str
    requestor_did: Annotated[str, NAME]
    recipient_did: Annotated[str, NAME]
    expires_at_s: Seconds
    digest: bytes
    contract: Annotated[bytes, SIZE_ALONE, NAME]


class AnyContractRequested(Event, frozen=True, kw_only=True):
    """Any type of ``ContractRequested``."""

    request_id: str
    sender_did: Annotated[str, NAME]
    encrypted_contract_request: Annotated[Content | str, SIZE_ALONE]
    requestor_ephemeral_public_key: Annotated[str, STATE_ALONE]


@released("contract-requested.1")
class ContractRequested1(AnyContractRequested, frozen=True, kw_only=True):
    """As ``ContractRequested``, with the content in the row."""

    encrypted_contract_request: Annotated[str, SIZE_ALONE]


@released("contract-requested.2")
class ContractRequested(AnyContractRequested, frozen=True, kw_only=True):
    """An encrypted contract request waits for this identity (8.1, forwarded form)."""

    encrypted_contract_request: Annotated[Content, SIZE_ALONE]


class AnyContractRequestsAcknowledged(Event, frozen=True, kw_only=True):
    """Any type of ``ContractRequestsAcknowledged``."""

    request_ids: list[str]


@released("contract-requests-acknowledged.1")
class ContractRequestsAcknowledged1(AnyContractRequestsAcknowledged, frozen=True, kw_only=True):
    """As ``ContractRequestsAcknowledged``, but the contents stay."""


@released("contract-requests-acknowledged.2")
class ContractRequestsAcknowledged(AnyContractRequestsAcknowledged, frozen=True, kw_only=True):
    """The recipient acknowledged these contract requests, queued at ``versions`` (8.4)."""

    versions: Annotated[list[int], STATE_ALONE]


@released("contract-requests-expired.1")
class ContractRequestsExpired(Event, frozen=True, kw_only=True):
    """The mediator removed these contract requests, queued at ``versions``, unanswered.

    ``reason`` is expired (they waited longer than the operator keeps requests), or unregistered
    (the registration of their recipient is over).
    """

    request_ids: list[str]
    reason: str
    versions: Annotated[list[int], STATE_ALONE]


@released("contract-expired.1")
class ContractExpired(Event, frozen=True, kw_only=True):
    """The mediator removed a contract of this identity; fields as in ``ContractStored``.

    ``reason`` is expired (the contract ended longer ago than the operator keeps expired contracts),
    or unregistered (the registration of its owner is over).
    """

    contract_id: str
    digest: bytes
    reason: str


DECENTRL: Final = "decentrl"
"""The ``protocol`` of messages in ``MessageQueued`` that came in Decentrl."""
DIDCOMM: Final = "didcomm"
"""That of envelopes that came in DIDComm v1, and the prefix of that of every envelope."""
DIDCOMM_V2: Final = "didcomm/v2"


class AnyMessageQueued(Event, frozen=True, kw_only=True):
    """Any type of ``MessageQueued``."""

    message_id: str
    protocol: str
    sender_did: Annotated[str, NAME]
    recipient_key: Annotated[str, NAME]
    payload: Annotated[Content | bytes, SIZE_ALONE]


@released("message-queued.1", is_frequent=True)
class MessageQueued1(AnyMessageQueued, frozen=True, kw_only=True):
    """As ``MessageQueued``, with the content in the row."""

    payload: Annotated[bytes, SIZE_ALONE]


@released("message-queued.2", is_frequent=True)
class MessageQueued(AnyMessageQueued, frozen=True, kw_only=True):
    """A message waits for this identity (7.2 step 7; RFC 0094 forward).

    ``sender_did`` is empty where the protocol hides the sender; ``recipient_key`` is empty where
    the message is addressed to the identity itself. ``payload`` is opaque.
    """

    payload: Annotated[Content, SIZE_ALONE]


@released("message-expiry-set.1")
class MessageExpirySet(Event, frozen=True, kw_only=True):
    """The sender set an expiry time for these messages, which were queued just before."""

    message_ids: list[str]
    expires_at_s: Seconds


@released("messages-delivered.1", is_frequent=True)
class MessagesDelivered(Event, frozen=True, kw_only=True):
    """These messages were delivered and still wait; ``channel`` says how (``pickup/2.0``, …)."""

    message_ids: list[str]
    channel: str


class AnyMessagesRemoved(Event, frozen=True, kw_only=True):
    """Any type of ``MessagesRemoved``."""

    message_ids: list[str]
    reason: str


@released("messages-removed.1", is_frequent=True)
class MessagesRemoved1(AnyMessagesRemoved, frozen=True, kw_only=True):
    """As ``MessagesRemoved``, but the contents stay."""


@released("messages-removed.2", is_frequent=True)
class MessagesRemoved(AnyMessagesRemoved, frozen=True, kw_only=True):
    """These messages, queued at ``versions``, left the queue (8.8; RFC 0685 messages-received).

    ``reason`` is acknowledged, delivered (by a protocol without acknowledgement), expired, purged,
    ended or idle (with the account), unregistered (the registration of their recipient is over),
    erased, or lost (with their contents, which a restored export did not have).
    """

    versions: Annotated[list[int], STATE_ALONE]


@released("queue-refused.1")
class QueueRefused(Event, frozen=True, kw_only=True):
    """The queue began to refuse messages for ``reason``; recorded once until something changes.

    An event for each refusal would let any client fill the disk.
    """

    recipient_key: Annotated[str, NAME]
    reason: str


@released("queue-policy-set.1")
class QueuePolicySet(Event, frozen=True, kw_only=True):
    """The owner set rules for its queue (Aries queue 1.0); 0 is no limit by the owner."""

    will_queue: bool
    age_s_max: int
    messages_max: int
    message_bytes_max: int
    bytes_max: int


@released("connection-established.1")
class ConnectionEstablished(Event, frozen=True, kw_only=True):
    """A DIDComm agent connected (RFC 0160, RFC 0023); a later event replaces all fields.

    ``did`` is the identity, the did:key of the agent's verification key; ``peer_did`` is the DID
    that the agent uses for the connection; ``endpoint`` is empty where it has none.
    """

    did: Annotated[str, NamesStream(), NAME]
    peer_did: Annotated[str, NAME]
    label: Annotated[str, NAME]
    endpoint: Annotated[str, NAME]
    routing_keys: Annotated[list[str], NAME]
    protocol: Annotated[str, ExportColumn("handshake")]
    invitation_id: Annotated[str, NAME]


@released("mediation-granted.1")
class MediationGranted(Event, frozen=True, kw_only=True):
    """The mediator granted mediation: the agent may now register keys (RFC 0211)."""


@released("keylist-updated.1")
class KeylistUpdated(Event, frozen=True, kw_only=True):
    """An agent changed its keylist: keys (base58, none twice) to which senders forward (RFC 0211).

    A DID appears by its short name (coordinate-mediation 2.0).

    ``claims`` are the numbers of the claims of ``added``: the versions of ``KeyClaimed`` in the
    streams of the keys, less one if the key was its owner's before, so that no release ends such a
    claim. A key may be added again, with a later claim.
    """

    added: Annotated[list[str], ExportColumn("keys_added"), NAME]
    claims: list[int]
    removed: Annotated[list[str], ExportColumn("keys_removed"), NAME]


@released("key-claimed.1")
class KeyClaimed(Event, frozen=True, kw_only=True):
    """A key now belongs to one identity; recorded in the stream of the key.

    Its version is the number of the claim; a later claim of the same owner replaces it.
    """

    key: Annotated[str, NamesStream("key:"), NAME]
    owner_did: Annotated[str, NAME]


@released("key-released.1")
class KeyReleased(Event, frozen=True, kw_only=True):
    """The key no longer has an owner; recorded in the stream of the key."""

    key: Annotated[str, NAME]


@released("invitation-used.1")
class InvitationUsed(Event, frozen=True, kw_only=True):
    """This identity used a single-use invitation; recorded in the stream of the invitation."""

    invitation_id: Annotated[str, NamesStream("invitation:"), NAME]
    by_did: Annotated[str, NAME]


@released("refusals-counted.1")
class RefusalsCounted(Event, frozen=True, kw_only=True):
    """Counts of the commands that one edge refused in a period; in the stream of the edge.

    The period is in Unix milliseconds by the edge's clock. The number of entries is limited, so
    that refused commands cannot fill the disk.
    """

    edge: Annotated[str, NamesStream("edge:")]
    since_ms: Annotated[int, ExportColumn("since", is_time=True)]
    until_ms: Annotated[int, ExportColumn("until", is_time=True)]
    refusals: Annotated[list[RefusedCommands], NAME]


class AnyEventSaved(Event, frozen=True, kw_only=True):
    """Any type of ``EventSaved``."""

    event_id: str
    sender_did: Annotated[str, NAME]
    recipient_did: Annotated[str, NAME]
    contract_id: str | None
    timestamp_s: Seconds
    payload: Annotated[Content | str, SIZE_ALONE]
    encrypted_tags: Annotated[list[str], ExportColumn("tags"), NAME]
    processed: bool


@released("event-saved.1", is_frequent=True)
class EventSaved1(AnyEventSaved, frozen=True, kw_only=True):
    """As ``EventSaved``, with the content in the row."""

    payload: Annotated[str, SIZE_ALONE]


@released("event-saved.2", is_frequent=True)
class EventSaved(AnyEventSaved, frozen=True, kw_only=True):
    """The owner saved one storage-encrypted event in its history (8.9)."""

    payload: Annotated[Content, SIZE_ALONE]


@released("event-tags-updated.1", is_frequent=True)
class EventTagsUpdated(Event, frozen=True, kw_only=True):
    """The owner replaced all tags of one saved event, which now counts as processed (8.11).

    The event records the request: an ``event_id`` that the owner does not have changes nothing.
    """

    event_id: str
    encrypted_tags: Annotated[list[str], ExportColumn("tags"), NAME]


class AnyPublicEventPublished(Event, frozen=True, kw_only=True):
    """Any type of ``PublicEventPublished``."""

    event_id: str
    channel_id: Annotated[str, NAME]
    event: Annotated[Content | str, SIZE_ALONE]
    tags: Annotated[list[str], NAME]
    timestamp_s: Seconds
    event_signature: Annotated[str, STATE_ALONE]


@released("public-event-published.1")
class PublicEventPublished1(AnyPublicEventPublished, frozen=True, kw_only=True):
    """As ``PublicEventPublished``, with the content in the row."""

    event: Annotated[str, SIZE_ALONE]


@released("public-event-published.2")
class PublicEventPublished(AnyPublicEventPublished, frozen=True, kw_only=True):
    """The owner published a signed event, which any client can read (DCTRL-0007)."""

    event: Annotated[Content, SIZE_ALONE]


class AnyPublicEventsDeleted(Event, frozen=True, kw_only=True):
    """Any type of ``PublicEventsDeleted``."""

    event_ids: list[str]
    channel_id: Annotated[str | None, NAME]


@released("public-events-deleted.1")
class PublicEventsDeleted1(AnyPublicEventsDeleted, frozen=True, kw_only=True):
    """As ``PublicEventsDeleted``, but the contents stay."""


@released("public-events-deleted.2")
class PublicEventsDeleted(AnyPublicEventsDeleted, frozen=True, kw_only=True):
    """The publisher withdrew these public events, published at ``versions`` (DCTRL-0007).

    ``channel_id`` restricts the deletion to that channel when it is not None.
    """

    versions: Annotated[list[int], STATE_ALONE]


@released("identity-erasure-begun.1")
class IdentityErasureBegun(Event, frozen=True, kw_only=True):
    """The erasure of everything before this event began; ``reason`` is operator or owner.

    This event ends registration, contracts, connection, mediation, keylist, queue policy, device
    and the history of saved events. The events that follow erase everything that has contents, in
    steps.
    """

    reason: str


@released("identity-erased.1")
class IdentityErased(Event, frozen=True, kw_only=True):
    """The erasure of the identity is complete: no record from before its beginning is left.

    As the first event of a stream it is about an identity whose data is in another database.
    """


@released("batch-sealed.1", is_frequent=True)
class BatchSealed(Event, frozen=True, kw_only=True):
    """A seal covers the rows of one partition in one transaction (see ``eventstore.log.seal``).

    ``nonces`` is a packed array of accepted nonces; ``rows`` counts the event rows that stand
    directly before this one in the log; ``digest`` chains them to ``previous``. It is the last
    field: stores find it at the end of the state.
    """

    partition: str
    epoch: int
    window_ms: int
    nonces: bytes
    rows: Annotated[int, ExportColumn("sealed_rows")]
    previous: bytes
    digest: bytes


SEAL_TOPIC: Final = TOPIC_BY_TYPE[BatchSealed]
SEAL_TYPE: Final = type_name(BatchSealed)
TYPE_BY_TOPIC: Final = {topic: kind for kind, topic in TOPIC_BY_TYPE.items()}
