"""The state of an identity as rows of tables, which a rebuild from the exported log must equal.

Rules of this file: pure; a row holds only what the state contains, without the columns that the
rebuild adds (positions in the log, deliveries, sizes of contracts). The row classes alone declare
what a dump of a running mediator holds (``TABLES``), and the schema of its files follows from them.
Columns whose name ends with ``_at`` are times in Unix milliseconds, None for never. ``place`` is
the zero-based place among the rows of the identity: the order in which queues and lists are handed
out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from msgspec.structs import asdict

from actors.core.identity import Identity, QueuedMessage
from eventstore.log.events import DECENTRL, DIDCOMM, DIDCOMM_V2

Row: TypeAlias = tuple[Any, ...]


class IdentityRow(NamedTuple):
    """Every identity."""

    version: int
    saved_events: int
    added_at: int | None
    delivered_at: int | None
    removed_at: int | None
    refusing: bool
    dedicated: bool
    erased: bool


class RegistrationRow(NamedTuple):
    """A contract with the mediator."""

    expires_at_s: float


class ContractRow(NamedTuple):
    """A signed contract with another identity."""

    contract_id: str
    place: int
    version: int
    requestor_did: str
    recipient_did: str
    expires_at_s: float
    digest: bytes | None


class CorrespondentRow(NamedTuple):
    """An identity that a contract allows to send, and until when."""

    did: str
    expires_at_s: float


class ContractRequestRow(NamedTuple):
    """A contract request that waits for an answer."""

    request_id: str
    place: int
    version: int
    sender_did: str


class MessageRow(NamedTuple):
    """A message in the queue."""

    message_id: str
    place: int
    version: int
    recorded_at: int
    protocol: str
    sender_did: str
    recipient_key: str
    size_bytes: int


class QueueTotalRow(NamedTuple):
    """The whole queue in figures."""

    messages: int
    bytes: int
    envelopes: int
    envelope_bytes: int


class QueueKeyRow(NamedTuple):
    """The envelopes for one recipient key."""

    recipient_key: str
    messages: int
    bytes: int


class QueuePolicyRow(NamedTuple):
    """The owner's rules for its queue."""

    will_queue: bool
    age_s_max: int
    messages_max: int
    message_bytes_max: int
    bytes_max: int


class PublicEventRow(NamedTuple):
    """A public event that was not withdrawn."""

    event_id: str
    place: int
    channel_id: str


class ConnectionRow(NamedTuple):
    """What a connected agent last stated about itself."""

    peer_did: str
    label: str
    endpoint: str
    routing_keys: list[str]
    handshake: str
    invitation_id: str


class PushDeviceRow(NamedTuple):
    """The device of an agent that is notified of waiting messages."""

    channel: str


class MediationRow(NamedTuple):
    """An agent that was granted mediation."""


class KeylistRow(NamedTuple):
    """A key of the keylist."""

    key: str
    place: int
    claim: int


class MessageExpiryRow(NamedTuple):
    """The expiry of a message in the queue, set by its sender."""

    message_id: str
    expires_at_s: float


class SpeakerRow(NamedTuple):
    """The DID that speaks for an account instead of the account's own."""

    speaker_did: str


class AccountNameRow(NamedTuple):
    """The account of another DID that this DID speaks for."""

    account_did: str


class KeyOwnerRow(NamedTuple):
    """The owner of a key; in the stream of the key."""

    version: int
    owner_did: str


class InvitationRow(NamedTuple):
    """The identity that used an invitation; in the stream of the invitation."""

    by_did: str


TABLES: Final[Mapping[str, type[NamedTuple]]] = {
    "identities": IdentityRow,
    "registrations": RegistrationRow,
    "contracts": ContractRow,
    "correspondents": CorrespondentRow,
    "contract_requests": ContractRequestRow,
    "queues": MessageRow,
    "queue_totals": QueueTotalRow,
    "queue_keys": QueueKeyRow,
    "queue_policies": QueuePolicyRow,
    "message_expiries": MessageExpiryRow,
    "public_events": PublicEventRow,
    "connections": ConnectionRow,
    "push_devices": PushDeviceRow,
    "mediation": MediationRow,
    "keylists": KeylistRow,
    "speakers": SpeakerRow,
    "account_names": AccountNameRow,
    "key_owners": KeyOwnerRow,
    "invitations": InvitationRow,
}
"""The rows of each table, after the column ``identity``."""
TABLE_OF: Final[Mapping[type, str]] = {row: table for table, row in TABLES.items()}


def state_rows(state: Identity) -> Iterator[Row]:
    """The rows of this identity, each for the table that ``TABLE_OF`` names."""
    yield IdentityRow(
        state.version,
        state.saved_events + state.erased_events,
        state.last_added_ms or None,
        state.last_delivered_ms or None,
        state.last_removed_ms or None,
        state.refusing,
        bool(state.dedicated_by),
        state.is_erased,
    )
    if state.registered_until_s:
        yield RegistrationRow(float(state.registered_until_s))
    yield from _contracts(state)
    yield from _queue(state)
    for place, (event_id, published) in enumerate(state.public_events.items()):
        yield PublicEventRow(event_id, place, published.channel_id)
    yield from _agent(state)
    if state.speaker_did:
        yield SpeakerRow(state.speaker_did)
    if state.account_did:
        yield AccountNameRow(state.account_did)
    if state.owner_did:
        yield KeyOwnerRow(state.claim, state.owner_did)
    if state.used_by:
        yield InvitationRow(state.used_by)


def _contracts(state: Identity) -> Iterator[Row]:
    digests = {contract_id: digest for digest, contract_id in state.contract_ids.items()}
    for place, (contract_id, kept) in enumerate(state.contracts.items()):
        yield ContractRow(
            contract_id,
            place,
            kept.version,
            kept.requestor_did,
            kept.recipient_did,
            float(kept.expires_at_s),
            digests.get(contract_id),
        )
    for did, each in state.correspondents.items():
        yield CorrespondentRow(did, float(each.until_s))
    for place, (request_id, waiting) in enumerate(state.requests.items()):
        yield ContractRequestRow(request_id, place, waiting.version, waiting.sender_did)


def _queue(state: Identity) -> Iterator[Row]:
    for place, (message_id, message) in enumerate(state.messages.items()):
        yield MessageRow(
            message_id,
            place,
            message.version,
            message.at_ms,
            _protocol(message),
            message.sender_did,
            message.recipient_key,
            message.size_bytes,
        )
    totals = QueueTotalRow(
        len(state.messages), state.queue_bytes, len(state.envelopes), state.envelope_bytes
    )
    if any(totals):
        yield totals
    for key, depth in state.by_key.items():
        yield QueueKeyRow(key, depth.messages, depth.bytes)
    for message_id, at_s in state.expiring.items():
        yield MessageExpiryRow(message_id, float(at_s))
    if state.policy is not None:
        yield QueuePolicyRow(**asdict(state.policy))


def _protocol(message: QueuedMessage) -> str:
    """The protocol as in the event that queued the message."""
    if message.is_v2:
        return DIDCOMM_V2
    return DIDCOMM if message.is_envelope else DECENTRL


def _agent(state: Identity) -> Iterator[Row]:
    if state.connection is not None:
        known = state.connection
        yield ConnectionRow(
            known.peer_did,
            known.label,
            known.endpoint,
            known.routing_keys,
            known.protocol,
            known.invitation_id,
        )
    if state.push_device is not None:
        yield PushDeviceRow(state.push_device.channel)
    if state.mediated:
        yield MediationRow()
    for place, (key, claim) in enumerate(state.keylist.items()):
        yield KeylistRow(key, place, claim)
