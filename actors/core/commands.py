"""The commands that an identity answers: one closed family.

Rules of this file: commands are frozen records of primitive fields, free of any wire format;
``Command`` is the whole family, so a missing case in ``actors.core.decide`` fails type checking.

Units: ``*_s`` Unix seconds, ``*_ms`` Unix milliseconds. The target of a command, which a submission
names (``actors.core.submissions``), is the identity that decides; the command itself names the
others.
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
    FindAccount,
    FindKeyOwner,
    GrantMediation,
    NameSpeaker,
    PushDevice,
    QueryPushDevice,
    ReleaseKey,
    RotateAccount,
    SeeAgent,
    SetPushDevice,
    UnnameSpeaker,
)
from actors.core.refusals import Refusal
from eventstore.log.event_log import SavedEventsFilter
from eventstore.log.events import RefusedCommands, Seconds

__all__ = [
    "ClaimKey",
    "ClaimedKey",
    "Connection",
    "EndAccount",
    "FindAccount",
    "FindKeyOwner",
    "GrantMediation",
    "NameSpeaker",
    "PushDevice",
    "QueryPushDevice",
    "ReleaseKey",
    "RotateAccount",
    "SeeAgent",
    "SetPushDevice",
    "UnnameSpeaker",
]
"""Re-exported from ``account_commands``; the commands among these belong to the family too."""


class Page(msgspec.Struct, frozen=True, array_like=True):
    """Zero-based page number, page size (DCTRL-0004 9.1), and the most bytes of its records."""

    number: int
    size: int
    bytes_max: int | None = None

    @property
    def offset(self) -> int:
        """Records before the page."""
        return self.number * self.size


class Contract(msgspec.Struct, frozen=True, array_like=True):
    """A signed contract whose signatures the edge has verified.

    ``signed``: contract and both signatures in canonical JSON; ``digest``: SHA-256 of the contract.
    """

    requestor_did: str
    recipient_did: str
    expires_at_s: Seconds
    digest: bytes
    signed: bytes


class Register(CommandBase, frozen=True):
    """Store a contract between the target and the mediator (8.1, registration).

    ``admitted``: the mediator admits the target as a new identity; otherwise it may only renew.
    """

    contract: Contract
    admitted: bool = True


class RequestContract(CommandBase, frozen=True):
    """Store an encrypted contract request for the target (8.1, forwarded)."""

    sender_did: str
    encrypted_contract_request: str
    requestor_ephemeral_public_key: str


class StoreContract(CommandBase, frozen=True):
    """Store a contract with which another identity answered the target (8.2).

    ``contract`` is the edge's validation result; a refusal counts only after authorization.
    """

    contract: Contract | Refusal


class SaveContract(CommandBase, frozen=True):
    """Store a contract that the target saves itself (8.5); ``contract`` as in ``StoreContract``."""

    contract: Contract | Refusal


class QueryContractRequests(CommandBase, frozen=True):
    """Ask for a page of the target's waiting contract requests (8.3)."""

    page: Page


class AcknowledgeContractRequests(CommandBase, frozen=True):
    """Drop waiting contract requests; unknown ids are ignored (8.4)."""

    request_ids: list[str]


class QueryContracts(CommandBase, frozen=True):
    """Ask for a page of the target's contracts (8.6). Bounds are exclusive; None is no filter."""

    page: Page
    did: str | None = None
    expires_before_s: Seconds | None = None
    expires_after_s: Seconds | None = None


class QueueMessage(CommandBase, frozen=True):
    """Queue an opaque message from ``sender_did`` for the target (7.2)."""

    sender_did: str
    payload: bytes


class QueryMessages(CommandBase, frozen=True):
    """Ask for a page of the target's waiting messages, oldest first (8.7)."""

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
    """Ask for permission to read a page of saved events (8.10) from the read model."""

    page: Page
    where: SavedEventsFilter


class TagUpdate(msgspec.Struct, frozen=True, array_like=True):
    """The new tags of one saved event (8.11)."""

    event_id: str
    encrypted_tags: list[str]


class UpdateEventTags(CommandBase, frozen=True):
    """Replace tags (8.11). Later parts of the same update store ``later_bytes``; theirs is None."""

    updates: list[TagUpdate]
    later_bytes: int | None = 0


class PublishPublicEvent(CommandBase, frozen=True):
    """Publish an event (DCTRL-0007); the edge has set ``signature_valid``."""

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
    """Check that the target is registered, else refuse: RECIPIENT_NOT_REGISTERED (6.2 step 4).

    With ``or_was`` it is enough that it has been registered, so that it may renew (8.1); a target
    that was given up for another DID in DIDComm may not: UNAUTHORIZED_COMMAND.
    """

    or_was: bool = False


class OpenSession(CommandBase, frozen=True):
    """Start pushing the target's notifications to ``edge`` (10.2 step 7, 10.5)."""

    edge: str


class CloseSession(CommandBase, frozen=True):
    """Stop pushing the target's notifications to ``edge``: its last socket there has closed."""

    edge: str


class Connect(CommandBase, frozen=True):
    """Store the target's connection, replacing an earlier one (RFC 0160, RFC 0023)."""

    connection: Connection


class UseInvitation(CommandBase, frozen=True):
    """Use up a single-use invitation; the target is ``invitation:`` and its id."""

    by_did: str


class QueryConnection(CommandBase, frozen=True):
    """Ask what the mediator knows of the target as a DIDComm agent."""


class CheckKeys(CommandBase, frozen=True):
    """Ask which of these keys are in the target's keylist, and how long the keylist is."""

    keys: list[str]


class UpdateKeylist(CommandBase, frozen=True):
    """Add and remove keys of the target, all in one step (RFC 0211).

    The edge claims keys before it adds them, and releases removed keys afterwards.
    """

    add: list[ClaimedKey]
    remove: list[str]


class QueryKeylist(CommandBase, frozen=True):
    """Ask for a part of the target's keylist, oldest first (RFC 0211)."""

    offset: int
    limit: int


class QueueEnvelopes(CommandBase, frozen=True):
    """Queue the envelopes of one DIDComm message for the target, in order, all or none.

    ``recipient_key`` is the name in the target's keylist that the forward names (RFC 0094, routing
    2.0); it is empty for a message from the mediator itself. ``generation`` is that of the message,
    1 or 2. The envelopes expire at ``expires_at_s``, 0 for never. The host does not hand them out
    before ``delay_ms`` have passed, unless it restarts or delays too many messages already.
    """

    recipient_key: str
    payloads: list[bytes]
    generation: int = 1
    expires_at_s: Seconds = 0
    delay_ms: int = 0


class QueryQueue(CommandBase, frozen=True):
    """Ask for the state of the target's queue, or of one key's part (RFC 0685, queue 1.0)."""

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

    ``session`` holds them until they are removed or released, or ``lease_ms`` is over. ``limit``
    and ``bytes_max`` bound the answer (one message at least). ``recipient_key`` and
    ``message_ids`` narrow it unless None; ids may name messages already leased to this session.
    A ``lease_ms`` of 0 makes it a read: it leases nothing, and ids may name any message.
    ``at_least``: hand out nothing if fewer envelopes match. ``after_version``: only envelopes
    queued after that version of the identity. ``live``: refused unless ``session`` holds the live
    mode, or has asked for it and so takes it; from then on new envelopes are leased to it for
    ``lease_ms`` and pushed whole while it holds less than ``bytes_max``. ``implicit``: refused
    while another session holds implicit pickup or, if none does, the live mode. ``waits_for_turn``:
    a large answer hands nothing out (``replies.Delivery``); the edge asks again without this when
    it may read one. ``sets_aside``: the session gives up what it has leased, and no session holds
    these messages until ``lease_ms`` is over.
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
    waits_for_turn: bool = False
    sets_aside: bool = False


class RemoveMessages(CommandBase, frozen=True):
    """Remove envelopes; unknown ids are ignored. ``reason`` as in ``MessagesRemoved``."""

    message_ids: list[str]
    reason: str


class PurgeQueue(CommandBase, frozen=True):
    """Remove all messages that wait for the target, on the operator's order."""


class ReleaseLeases(CommandBase, frozen=True):
    """End the leases, live mode and implicit pickup of ``session``; offer its messages again."""

    session: str


class Listen(CommandBase, frozen=True):
    """Notify ``edge`` of every envelope that is queued for the target.

    A session named in ``implicit`` takes over implicit pickup (RFC 0092); envelopes that another
    session held by implicit pickup are offered again.
    """

    edge: str
    implicit: str = ""


class StartLive(CommandBase, frozen=True):
    """Let ``session`` take the live mode (RFC 0685) with its first ``DeliverMessages``.

    Envelopes that other sessions hold then, in live mode or by implicit pickup, are offered again.
    """

    edge: str
    session: str


class EndLive(CommandBase, frozen=True):
    """End the live mode if ``session`` holds it; the session keeps its leases (RFC 0685)."""

    session: str


class CountRefusals(CommandBase, frozen=True):
    """Record what an edge refused in a period; the target is ``edge:`` and its name.

    A retry with the same command key is recorded once.
    """

    edge: str
    since_ms: int
    until_ms: int
    refusals: list[RefusedCommands]


class DedicationReason(StrEnum):
    """Why an identity becomes dedicated, or returns to its shard."""

    OPERATOR = "operator"
    LOAD = "load"


class DedicateIdentity(CommandBase, frozen=True):
    """Make the target a partition of its own, by the last command that its shard's owner runs."""

    by: DedicationReason


class ReleaseIdentity(CommandBase, frozen=True):
    """Return the target to its shard."""

    by: DedicationReason


class EraseIdentity(CommandBase, frozen=True):
    """Erase the target's records, ``records_max`` at a time; ``by``: operator or owner.

    The caller repeats the command, then ``by`` ``CONTINUED`` (``actors.core.erasure``), until the
    answer says that nothing is left.
    """

    by: str
    records_max: int


class ExpireRecords(CommandBase, frozen=True):
    """Remove records that are due under the rules of retention, at most ``records_max``."""

    records_max: int


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
    | QueueEnvelopes
    | QueryQueue
    | SetQueuePolicy
    | SetPushDevice
    | QueryPushDevice
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
