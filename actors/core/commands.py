"""Everything that can be asked of an identity: one closed family of commands.

Rules of this file: commands are frozen records of primitive fields, free of any wire format;
``Command`` is the whole family, so a missing case in ``actors.core.decide`` fails type checking.

Units: ``*_s`` Unix seconds, ``*_ms`` Unix milliseconds. ``target`` of a ``Submission`` names
the identity that decides; the command itself names the others.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

import msgspec

from actors.core.account_commands import (
    ClaimedKey,
    ClaimKey,
    CommandBase,
    Connection,
    EndAccount,
    EraseIdentity,
    ExpireRecords,
    FindAccount,
    FindKeyOwner,
    GrantMediation,
    NameSpeaker,
    QueueEnvelopes,
    ReleaseKey,
    RotateAccount,
    SeeAgent,
    UnnameSpeaker,
)
from actors.core.nonces import NonceClaim
from actors.core.refusals import Refusal
from eventstore.log.event_log import PublicEventsFilter, SavedEventsFilter
from eventstore.log.events import RefusedCommands, Seconds

__all__ = [
    "ClaimKey",
    "ClaimedKey",
    "Connection",
    "EndAccount",
    "EraseIdentity",
    "ExpireRecords",
    "FindAccount",
    "FindKeyOwner",
    "GrantMediation",
    "NameSpeaker",
    "QueueEnvelopes",
    "ReleaseKey",
    "RotateAccount",
    "SeeAgent",
    "UnnameSpeaker",
]
"""Declared beside this module, and part of the family all the same."""


class Page(msgspec.Struct, frozen=True, array_like=True):
    """Zero-based page and its size (DCTRL-0004 9.1); of records ``bytes_max`` at most."""

    number: int
    size: int
    bytes_max: int | None = None

    @property
    def offset(self) -> int:
        """Records before the page."""
        return self.number * self.size


class Contract(msgspec.Struct, frozen=True, array_like=True):
    """A signed contract whose signatures the edge has verified.

    ``signed`` is it with both signatures, in canonical JSON, ``digest`` the SHA-256 of it alone.
    """

    requestor_did: str
    recipient_did: str
    expires_at_s: Seconds
    digest: bytes
    signed: bytes


class Register(CommandBase, frozen=True):
    """Store a contract between the target and the mediator (8.1, registration).

    ``admitted``: the mediator takes it as a new identity; without that it may only renew.
    """

    contract: Contract
    admitted: bool = True


class RequestContract(CommandBase, frozen=True):
    """Store an encrypted contract request for the target (8.1, forwarded)."""

    sender_did: str
    encrypted_contract_request: str
    requestor_ephemeral_public_key: str


class StoreContract(CommandBase, frozen=True):
    """Store a contract that another identity answered for the target (8.2).

    ``contract`` is the edge's validation result: a refusal counts only after authorization.
    """

    contract: Contract | Refusal


class SaveContract(CommandBase, frozen=True):
    """Store a contract that the target itself saves (8.5); ``contract`` as in ``StoreContract``."""

    contract: Contract | Refusal


class QueryContractRequests(CommandBase, frozen=True):
    """A page of the target's waiting contract requests (8.3)."""

    page: Page


class AcknowledgeContractRequests(CommandBase, frozen=True):
    """Drop waiting contract requests; unknown ids are ignored (8.4)."""

    request_ids: list[str]


class QueryContracts(CommandBase, frozen=True):
    """A page of the target's contracts (8.6). Bounds are exclusive; None is no filter."""

    page: Page
    did: str | None = None
    expires_before_s: Seconds | None = None
    expires_after_s: Seconds | None = None


class QueueMessage(CommandBase, frozen=True):
    """Queue an opaque message from ``sender_did`` for the target (7.2)."""

    sender_did: str
    payload: bytes


class QueryMessages(CommandBase, frozen=True):
    """A page of the target's waiting messages, oldest first (8.7)."""

    page: Page
    sender_did: str | None = None


class AcknowledgeMessages(CommandBase, frozen=True):
    """Remove waiting messages; unknown ids are ignored (8.8)."""

    message_ids: list[str]


class NewSavedEvent(msgspec.Struct, frozen=True, array_like=True):
    """One event to save (8.9)."""

    sender_did: str
    recipient_did: str
    contract_id: str | None
    timestamp_s: Seconds
    payload: str
    encrypted_tags: list[str]


class SaveEvents(CommandBase, frozen=True):
    """Save storage-encrypted events, all or none (8.9)."""

    events: list[NewSavedEvent]


class QuerySavedEvents(CommandBase, frozen=True):
    """Ask for leave to read a page of saved events (8.10); the read model answers."""

    page: Page
    where: SavedEventsFilter


class TagUpdate(msgspec.Struct, frozen=True, array_like=True):
    """The new tags of one saved event (8.11)."""

    event_id: str
    encrypted_tags: list[str]


class UpdateEventTags(CommandBase, frozen=True):
    """Replace tags (8.11). Parts behind this one store ``later_bytes``; each of those has None."""

    updates: list[TagUpdate]
    later_bytes: int | None = 0


class PublishPublicEvent(CommandBase, frozen=True):
    """Publish an event (DCTRL-0007); ``signature_valid`` is the edge's result."""

    channel_id: str
    event: str
    tags: list[str]
    timestamp_s: Seconds
    event_signature: str
    signature_valid: bool


class DeletePublicEvents(CommandBase, frozen=True):
    """Withdraw public events; unknown and foreign ids are ignored (DCTRL-0007)."""

    event_ids: list[str]
    channel_id: str | None = None


class CheckRegistered(CommandBase, frozen=True):
    """Is the target registered? Refused with RECIPIENT_NOT_REGISTERED if not (6.2 step 4)."""


class OpenSession(CommandBase, frozen=True):
    """Start pushing the target's notifications to ``edge`` (10.2 step 7, 10.5)."""

    edge: str


class CloseSession(CommandBase, frozen=True):
    """Stop pushing the target's notifications to ``edge``: its last socket there closed."""

    edge: str


class Connect(CommandBase, frozen=True):
    """Store the connection of the target; once more replaces it (RFC 0160, RFC 0023)."""

    connection: Connection


class UseInvitation(CommandBase, frozen=True):
    """Use up a single-use invitation; the target is ``invitation:`` and its id."""

    by_did: str


class QueryConnection(CommandBase, frozen=True):
    """What is known of the target as a DIDComm agent."""


class CheckKeys(CommandBase, frozen=True):
    """Which of these keys are in the target's keylist, and how long is it?"""

    keys: list[str]


class UpdateKeylist(CommandBase, frozen=True):
    """Add and remove keys of the target, all in one step (RFC 0211).

    Keys to add have been claimed before; keys that were removed are released afterwards.
    """

    add: list[ClaimedKey]
    remove: list[str]


class QueryKeylist(CommandBase, frozen=True):
    """A part of the target's keylist, oldest first (RFC 0211)."""

    offset: int
    limit: int


class QueueEnvelope(CommandBase, frozen=True):
    """Queue a DIDComm envelope for the target (RFC 0094).

    ``recipient_key`` is the key of its keylist that it was forwarded to, in base58; empty for a
    message of the mediator itself.
    """

    recipient_key: str
    payload: bytes


class QueryQueue(CommandBase, frozen=True):
    """How the target's queue stands; of one key alone when it is not None (RFC 0685, queue 1.0)."""

    recipient_key: str | None = None


class SetQueuePolicy(CommandBase, frozen=True):
    """Change the rules of the target's own queue; None leaves a rule as it is (queue 1.0)."""

    will_queue: bool | None = None
    age_s_max: int | None = None
    messages_max: int | None = None
    message_bytes_max: int | None = None
    bytes_max: int | None = None


class DeliverMessages(CommandBase, frozen=True):
    """Lease waiting envelopes to a session, oldest first, and hand them out.

    ``session`` names who holds them until they are removed, released, or ``lease_ms`` is over.
    ``limit`` and ``bytes_max`` bound the answer (one message at least). ``recipient_key`` and
    ``message_ids`` narrow it where not None; ids may name leased messages of the same session.
    With a ``lease_ms`` of 0 it is a read: nothing is leased, and ids may name any message.
    ``at_least``: hand out nothing when fewer are there. ``after_version``: only what was queued
    after that version of the identity. ``live``: refused when ``session`` does not hold the live
    mode. ``implicit``: refused while another session holds implicit pickup.
    """

    session: str
    channel: str
    limit: int
    bytes_max: int
    lease_ms: int
    recipient_key: str | None = None
    message_ids: list[str] | None = None
    at_least: int = 0
    after_version: int = 0
    live: bool = False
    implicit: bool = False


class RemoveMessages(CommandBase, frozen=True):
    """Remove envelopes; unknown ids are ignored. ``reason`` as in ``MessagesRemoved``."""

    message_ids: list[str]
    reason: str


class PurgeQueue(CommandBase, frozen=True):
    """Remove everything that waits for the target, by the operator's word."""


class ReleaseLeases(CommandBase, frozen=True):
    """What ``session`` holds is offered again; its live mode and its implicit pickup end."""

    session: str


class Listen(CommandBase, frozen=True):
    """Tell ``edge`` whenever an envelope is queued for the target.

    A session named by ``implicit`` takes over implicit pickup (RFC 0092); what another one held
    by it is offered again.
    """

    edge: str
    implicit: str = ""


class StartLive(CommandBase, frozen=True):
    """``session`` takes over the live mode; what another one held is offered again (RFC 0685).

    So is what another one held by implicit pickup.

    What is queued from now on is leased to it for ``lease_ms`` and pushed whole, as long as it
    holds less than ``bytes_max``; with a ``lease_ms`` of 0 it is only notified, and fetches.
    """

    edge: str
    session: str
    lease_ms: int = 0
    bytes_max: int = 0


class EndLive(CommandBase, frozen=True):
    """The live mode ends if ``session`` holds it; what it holds stays leased (RFC 0685)."""

    session: str


class CountRefusals(CommandBase, frozen=True):
    """Record what an edge refused in a period; the target is ``edge:`` and its name.

    Sent again with the same command key it is recorded once.
    """

    edge: str
    since_ms: int
    until_ms: int
    refusals: list[RefusedCommands]


class DedicationReason(StrEnum):
    """Who wants an identity to be dedicated, or not to be any more."""

    OPERATOR = "operator"
    LOAD = "load"


class DedicateIdentity(CommandBase, frozen=True):
    """Make the target a partition of its own; its shard's owner is the last to be asked there."""

    by: DedicationReason


class ReleaseIdentity(CommandBase, frozen=True):
    """Give the target back to its shard."""

    by: DedicationReason


Command: TypeAlias = (
    Register
    | RequestContract
    | StoreContract
    | SaveContract
    | QueryContractRequests
    | AcknowledgeContractRequests
    | QueryContracts
    | QueueMessage
    | QueryMessages
    | AcknowledgeMessages
    | SaveEvents
    | QuerySavedEvents
    | UpdateEventTags
    | PublishPublicEvent
    | DeletePublicEvents
    | CheckRegistered
    | OpenSession
    | CloseSession
    | Connect
    | UseInvitation
    | QueryConnection
    | GrantMediation
    | FindAccount
    | NameSpeaker
    | UnnameSpeaker
    | RotateAccount
    | EndAccount
    | EraseIdentity
    | SeeAgent
    | ClaimKey
    | ReleaseKey
    | FindKeyOwner
    | CheckKeys
    | UpdateKeylist
    | QueryKeylist
    | QueueEnvelope
    | QueueEnvelopes
    | QueryQueue
    | SetQueuePolicy
    | DeliverMessages
    | RemoveMessages
    | PurgeQueue
    | ExpireRecords
    | ReleaseLeases
    | Listen
    | StartLive
    | EndLive
    | CountRefusals
    | DedicateIdentity
    | ReleaseIdentity
)


class Submission(msgspec.Struct, frozen=True, array_like=True):
    """One item of a batch from an edge to a host.

    Processed in the order of DCTRL-0004 5.4 and 6.2: first ``claim`` (if any), then ``refusal``
    (the edge's stateless validation: resolution, key, signature, payload), then ``command``.
    A claim alone (no command) answers ``Done``. The nonce of what the edge refused is kept in
    memory alone, as that of a claim without proof: neither has an effect.

    ``command_key`` is repeated in the events; ``request_id``, which a stranger may choose, is not:
    it stands beside the key in log lines, and is empty where no request is behind the command.

    ``source`` is whose turn it takes (``actors.core.cost.source_key``; empty for ourselves),
    ``cost`` the work for the writer, ``charge`` what the rate of ``source`` is charged; ``adds``:
    a step, if only a nonce, of what stores something (``actors.core.decide.adds``).
    ``speaker`` is the DID whose message the command comes of; empty for the mediator itself.
    """

    partition: str
    target_did: str
    command_key: bytes
    claim: NonceClaim | None = None
    refusal: Refusal | None = None
    command: Command | None = None
    request_id: str = ""
    source: bytes = b""
    cost: float = 1.0
    charge: float = 0.0
    adds: bool = False
    speaker: str = ""


class WaitingAt(msgspec.Struct, frozen=True, array_like=True, tag="waiting"):
    """The waiting messages at these versions, of ``total`` that match."""

    versions: list[int]
    total: int


class Read(msgspec.Struct, frozen=True, array_like=True):
    """A read beside the commands that needs no leave, or for which leave was given."""

    owner_did: str
    page: Page
    where: SavedEventsFilter | PublicEventsFilter | WaitingAt
