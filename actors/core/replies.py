"""The replies of an identity, one closed family, and the notices that are pushed.

Replies leave the host only after the commit of their batch.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from actors.core.commands import ClaimedKey, Connection, PushDevice
from actors.core.refusals import Refusal
from eventstore.log.events import Seconds


class _Reply(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of all replies: a tagged array on the wire between host and edge."""


class Done(_Reply, frozen=True):
    """Done, without a result."""


class Refused(_Reply, frozen=True):
    """Refused: the command changed nothing, but its nonce is used up.

    RATE_LIMITED uses up no nonce; ``retry_after_s`` says when the same command will be accepted.
    """

    code: Refusal
    retry_after_s: float = 0.0


NOT_OWNER: Final = Refused(Refusal.NOT_OWNER)
UNAVAILABLE: Final = Refused(Refusal.TEMPORARILY_UNAVAILABLE)


class MessageAccepted(_Reply, frozen=True):
    """The message is durable under this id (7.3)."""

    message_id: str


class PublicEventAccepted(_Reply, frozen=True):
    """The public event is durable under this id."""

    event_id: str


class Registered(_Reply, frozen=True):
    """The target is registered until ``until_s`` (Unix seconds)."""

    until_s: Seconds


class WaitingContractRequest(msgspec.Struct, frozen=True, array_like=True):
    """One waiting contract request (8.3)."""

    request_id: str
    sender_did: str
    encrypted_contract_request: str
    requestor_ephemeral_public_key: str


class ContractRequestsPage(_Reply, frozen=True):
    """A page of waiting contract requests, oldest first, and their total."""

    requests: list[WaitingContractRequest]
    total: int


class OwnedContract(msgspec.Struct, frozen=True, array_like=True):
    """One stored contract: the mediator's id for it, and the signed object in canonical JSON."""

    contract_id: str
    signed: bytes


class ContractsPage(_Reply, frozen=True):
    """A page of stored contracts, oldest first, and how many match."""

    contracts: list[OwnedContract]
    total: int


class WaitingMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One waiting message (8.7) or pushed message (10.5).

    ``recipient_key`` and ``at_ms`` as in ``DeliveredMessage``; only a read of a delivery sets them.
    """

    message_id: str
    sender_did: str
    payload: bytes
    recipient_key: str = ""
    at_ms: int = 0


class MessagesPage(_Reply, frozen=True):
    """A page of waiting messages, oldest first, and how many match."""

    messages: list[WaitingMessage]
    total: int


class MessagesBeside(_Reply, frozen=True):
    """The versions of a large page of waiting messages; the edge sends a ``Read`` for it."""

    versions: list[int]
    total: int


class ReadAllowed(_Reply, frozen=True):
    """The sender may read its read model; the edge sends the ``Read``."""


class Connected(_Reply, frozen=True):
    """The target as a DIDComm agent; see ``actors.core.account_commands.Connection``.

    ``prior_dids`` are its most recent former DIDs, as the agent stated them.
    """

    connection: Connection
    mediated: bool
    prior_dids: list[str] = []


class KeyOwner(_Reply, frozen=True):
    """The owner of a key, and the number of its newest claim; 0 from a host of an earlier build."""

    owner_did: str
    claim: int = 0


class KeyClaim(_Reply, frozen=True):
    """The number of a claim: a later claim of the same key has a greater number.

    ``former_did`` is the owner that lost the key to the holder of its private half, if any.
    ``owned_before``: an earlier claim of the claimer held the key, and its keylist may have the key
    by now. A host of an earlier build does not say, so this is to be expected of its answer.
    """

    number: int
    former_did: str = ""
    owned_before: bool = True


class AccountFound(_Reply, frozen=True):
    """What the mediator knows of a DID as an account.

    ``account_did`` is another account that the DID speaks for, or empty; ``speaker_did`` is the DID
    that speaks for this account; ``keys`` are the requested keys that are in its keylist, and
    ``has_room`` says whether the others would fit. A rotation from before ``rotates_from_s``, in
    Unix seconds, is a repeated old message. ``never_spoke``: it is certain that the DID in question
    has never spoken for this account; a host of an earlier release does not say so.
    """

    account_did: str
    speaker_did: str
    connected: bool
    keys: list[str]
    rotates_from_s: Seconds = 0
    has_room: bool = True
    never_spoke: bool = False


class AccountOver(_Reply, frozen=True):
    """The account has ended, and the claims of its keylist with it."""

    keys: list[ClaimedKey]


class KeysKnown(_Reply, frozen=True):
    """The requested keys that are in the keylist, and the length of the keylist.

    ``claims`` are the numbers of the claims that hold these keys, in the same order; none from a
    host of an earlier build.
    """

    keys: list[str]
    total: int
    claims: list[int] = []


class KeylistChanged(_Reply, frozen=True):
    """The keys that were actually added, and those actually removed, with their ended claims."""

    added: list[str]
    removed: list[ClaimedKey]


class KeylistPart(_Reply, frozen=True):
    """A part of a keylist: keys in base58, oldest first, and the length of the keylist."""

    keys: list[str]
    total: int


class EnvelopeQueued(_Reply, frozen=True):
    """The envelope is durable under this id, that of the last one if a message has several.

    ``outbound``: its recipient has an endpoint. ``pushes``: it has a device to notify.
    ``is_repeat``: an earlier transaction stored it, and the sender sent it again.
    """

    message_id: str
    outbound: bool
    pushes: bool = False
    is_repeat: bool = False


class PushDeviceFound(_Reply, frozen=True):
    """The device to notify of messages for the target, None for no device."""

    device: PushDevice | None


class QueuePolicy(msgspec.Struct, frozen=True, array_like=True):
    """The rules in force for a queue, the operator's and the owner's together; 0 is no limit."""

    will_queue: bool
    age_s_max: int
    messages_max: int
    message_bytes_max: int
    bytes_max: int


class QueueState(_Reply, frozen=True):
    """The state of a queue of envelopes. Times are Unix milliseconds, 0 for never.

    ``messages`` and ``bytes`` count all waiting envelopes; ``available`` counts those not leased,
    ``held_back`` those that their senders delay, and ``set_aside`` those that an endpoint did not
    accept. ``oldest_ms`` and ``newest_ms`` are the times of waiting envelopes. ``version`` is the
    identity's.
    """

    messages: int
    bytes: int
    available: int
    oldest_ms: int
    newest_ms: int
    last_added_ms: int
    last_delivered_ms: int
    last_removed_ms: int
    policy: QueuePolicy
    live: bool
    version: int
    held_back: int = 0
    set_aside: int = 0


class DeliveredMessage(msgspec.Struct, frozen=True, array_like=True):
    """One envelope that was handed out; ``at_ms`` is when it was queued."""

    message_id: str
    recipient_key: str
    payload: bytes
    at_ms: int


class Delivery(_Reply, frozen=True):
    """Envelopes handed out, oldest first, and the state of the queue, which still holds them.

    ``beside``: versions of envelopes that take many bytes; the edge sends a ``Read`` for them, and
    there are no ``messages``. ``is_large``: they take many bytes, and nothing was handed out.
    """

    messages: list[DeliveredMessage]
    state: QueueState
    beside: list[int] = []
    is_large: bool = False

    @property
    def size_bytes(self) -> int:
        """The length of all payloads in ``messages``."""
        return sum(len(message.payload) for message in self.messages)


class Dedication(_Reply, frozen=True):
    """Why the identity is dedicated, empty if it is not, and whether the command changed that."""

    reason: str
    changed: bool


class Purged(_Reply, frozen=True):
    """How many messages were removed."""

    messages: int


class Erased(_Reply, frozen=True):
    """A step of an erasure: how many records it erased; ``is_over``: nothing is left to erase.

    ``keys`` are the keys that the target had registered and ``speaker_dids`` are other DIDs that
    spoke for it; the edge is to release both. ``is_known``: the identity exists or existed.
    """

    records: int
    is_over: bool
    keys: list[ClaimedKey] = []
    is_known: bool = True
    speaker_dids: list[str] = []


class AgentNoted(_Reply, frozen=True):
    """The agent's message was noted; no other need be noted before ``again_ms`` (Unix)."""

    again_ms: int


class Expired(_Reply, frozen=True):
    """How many records of each kind were removed because they expired.

    ``agents`` is 1 if the account of an idle agent ended; ``keys`` are then its registered keys,
    which an edge is to release.
    """

    messages: int
    contract_requests: int
    contracts: int
    public_events: int = 0
    agents: int = 0
    keys: list[ClaimedKey] = []

    @property
    def records(self) -> int:
        """The number of all removed records."""
        of_queue = self.messages + self.contract_requests
        return of_queue + self.contracts + self.public_events + self.agents


Reply: TypeAlias = (
    Done
    | Refused
    | MessageAccepted
    | PublicEventAccepted
    | Registered
    | ContractRequestsPage
    | ContractsPage
    | MessagesPage
    | MessagesBeside
    | ReadAllowed
    | Connected
    | KeyOwner
    | KeyClaim
    | KeysKnown
    | AccountFound
    | AccountOver
    | KeylistChanged
    | KeylistPart
    | EnvelopeQueued
    | PushDeviceFound
    | QueueState
    | Delivery
    | Dedication
    | Purged
    | Erased
    | Expired
    | AgentNoted
)


class MessageArrived(_Reply, frozen=True):
    """PENDING_EVENTS: a message was queued (10.5)."""

    message: WaitingMessage


class ContractsUpdated(_Reply, frozen=True):
    """CONTRACTS_UPDATED: contracts or contract requests changed (10.5)."""


class EnvelopesWaiting(_Reply, frozen=True):
    """Envelopes can be handed out: one was queued, or the lease of one has ended."""


class EnvelopeDelivered(_Reply, frozen=True):
    """An envelope was queued and leased to the live session, and comes with this notice."""

    session: str
    message: DeliveredMessage


class IdentityGone(_Reply, frozen=True):
    """The erasure of the identity has begun: no more notices follow for it."""


class KeysOver(_Reply, frozen=True):
    """The account of an idle agent has ended: release these keys, which it had registered.

    This goes to one edge, which sends the releases to the keys' hosts, and to no socket.
    """

    keys: list[ClaimedKey]


Notice: TypeAlias = (
    MessageArrived | ContractsUpdated | EnvelopesWaiting | EnvelopeDelivered | IdentityGone
)


class Push(msgspec.Struct, frozen=True, array_like=True):
    """A notice for every socket of ``did`` on one edge, or an order to that edge itself."""

    did: str
    notice: Notice | KeysOver


class BatchResult(msgspec.Struct, frozen=True, array_like=True):
    """The answer to a batch: one reply per submission, in order, and pushes for that edge.

    ``incarnation`` changes when the edge's sessions are lost; the edge then closes its sockets.
    """

    incarnation: str
    replies: list[Reply]
    pushes: list[Push]
