"""Everything an identity can answer: one closed family of replies, and pushes.

Replies leave the host only after the commit of the batch that they belong to.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from actors.core.commands import ClaimedKey, Connection
from actors.core.refusals import Refusal
from eventstore.log.events import Seconds


class _Reply(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of all replies: a tagged array on the wire between host and edge."""


class Done(_Reply, frozen=True):
    """Done; nothing to say."""


class Refused(_Reply, frozen=True):
    """Refused; nothing was changed but the nonce being used up.

    RATE_LIMITED uses up none, and says after how many seconds the same will be taken.
    """

    code: Refusal
    retry_after_s: float = 0.0


class MessageAccepted(_Reply, frozen=True):
    """The message is durable under this id (7.3)."""

    message_id: str


class PublicEventAccepted(_Reply, frozen=True):
    """The public event is durable under this id."""

    event_id: str


class Registered(_Reply, frozen=True):
    """The target is registered until then (Unix seconds)."""

    until_s: Seconds


class WaitingContractRequest(msgspec.Struct, frozen=True, array_like=True):
    """One waiting contract request (8.3)."""

    request_id: str
    sender_did: str
    encrypted_contract_request: str
    requestor_ephemeral_public_key: str


class ContractRequestsPage(_Reply, frozen=True):
    """Waiting contract requests, oldest first, and how many there are."""

    requests: list[WaitingContractRequest]
    total: int


class OwnedContract(msgspec.Struct, frozen=True, array_like=True):
    """One stored contract: its server-made id and the signed object in canonical JSON."""

    contract_id: str
    signed: bytes


class ContractsPage(_Reply, frozen=True):
    """Stored contracts, oldest first, and how many match."""

    contracts: list[OwnedContract]
    total: int


class WaitingMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One waiting message (8.7) or pushed message (10.5)."""

    message_id: str
    sender_did: str
    payload: bytes


class MessagesPage(_Reply, frozen=True):
    """Waiting messages, oldest first, and how many match."""

    messages: list[WaitingMessage]
    total: int


class MessagesBeside(_Reply, frozen=True):
    """A large page of waiting messages, by version: send a ``Read`` for it."""

    versions: list[int]
    total: int


class ReadAllowed(_Reply, frozen=True):
    """The sender may read its read model: send the ``Read``."""


class Connected(_Reply, frozen=True):
    """The target as a DIDComm agent; see ``actors.core.commands.Connection``.

    ``prior_dids`` are those that it has given up last, as it stated them.
    """

    connection: Connection
    mediated: bool
    prior_dids: list[str] = []


class KeyOwner(_Reply, frozen=True):
    """Whose key it is."""

    owner_did: str


class KeyClaim(_Reply, frozen=True):
    """The number of a claim: a later claim of the same key has a greater one.

    ``former_did`` is the owner that lost the key to the holder of its private half, if one did.
    """

    number: int
    former_did: str = ""


class AccountFound(_Reply, frozen=True):
    """What is known of a DID as an account.

    ``account_did`` is the account that it speaks for where that is another one, else empty;
    ``speaker_did`` is who speaks for this account; ``keys`` are those asked for that its keylist
    has. A rotation from before ``rotates_from_s``, Unix seconds, is an old message again.
    """

    account_did: str
    speaker_did: str
    connected: bool
    keys: list[str]
    rotates_from_s: Seconds = 0


class AccountOver(_Reply, frozen=True):
    """The account has ended; the claims of its keylist are over with it."""

    keys: list[ClaimedKey]


class KeysKnown(_Reply, frozen=True):
    """Those of the named keys that are in the keylist, and how many are in it in all."""

    keys: list[str]
    total: int


class KeylistChanged(_Reply, frozen=True):
    """Which of the named keys really came and went, the latter with the claims that are over."""

    added: list[str]
    removed: list[ClaimedKey]


class KeylistPart(_Reply, frozen=True):
    """Keys in base58, oldest first, and how many there are in all."""

    keys: list[str]
    total: int


class EnvelopeQueued(_Reply, frozen=True):
    """The envelope is durable under this id; ``outbound``: its recipient has an endpoint."""

    message_id: str
    outbound: bool


class QueuePolicy(msgspec.Struct, frozen=True, array_like=True):
    """The rules in force for a queue, the operator's and the owner's together; 0 is no limit."""

    will_queue: bool
    age_s_max: int
    messages_max: int
    message_bytes_max: int
    bytes_max: int


class QueueState(_Reply, frozen=True):
    """How a queue of envelopes stands. Times are Unix milliseconds, 0 for never.

    ``messages`` and ``bytes`` count what waits, leased or not; ``available`` what is not leased,
    ``held_back`` what is leased to no session but delayed by its sender's wish.
    ``oldest_ms`` and ``newest_ms`` are of the waiting ones. ``version`` is the identity's.
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


class DeliveredMessage(msgspec.Struct, frozen=True, array_like=True):
    """One envelope that was handed out; ``at_ms`` is when it was queued."""

    message_id: str
    recipient_key: str
    payload: bytes
    at_ms: int


class Delivery(_Reply, frozen=True):
    """Envelopes handed out, oldest first, and how the queue stands with them still in it."""

    messages: list[DeliveredMessage]
    state: QueueState


class Dedication(_Reply, frozen=True):
    """Why the identity is dedicated now, empty if it is not; did the command change that?"""

    reason: str
    changed: bool


class Purged(_Reply, frozen=True):
    """How many messages were removed."""

    messages: int


class Erased(_Reply, frozen=True):
    """A step of an erasure: how many records it took; ``is_over``: nothing is left to be erased.

    ``keys`` are those that the target had registered, and ``speaker_did`` is another DID that spoke
    for it, to be released; ``is_known``: there is, or was, such an identity.
    """

    records: int
    is_over: bool
    keys: list[ClaimedKey] = []
    is_known: bool = True
    speaker_did: str = ""


class AgentNoted(_Reply, frozen=True):
    """A message of the agent was taken note of; before ``again_ms`` (Unix) no other need be."""

    again_ms: int


class Expired(_Reply, frozen=True):
    """How many records of each kind were removed because their time was over.

    ``agents`` is 1 where the account of an idle agent ended; ``keys`` are those that it had
    registered then, to be released.
    """

    messages: int
    contract_requests: int
    contracts: int
    public_events: int = 0
    agents: int = 0
    keys: list[ClaimedKey] = []

    @property
    def records(self) -> int:
        """All of them."""
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
    """Envelopes can be handed out: one was queued, or a lease of one has ended."""


class EnvelopeDelivered(_Reply, frozen=True):
    """An envelope was queued and leased to the live session, which gets it with this."""

    session: str
    message: DeliveredMessage


class IdentityGone(_Reply, frozen=True):
    """The erasure of the identity has begun: nothing more comes for it."""


class KeysOver(_Reply, frozen=True):
    """The account had registered these keys and has ended by itself: they are to be released.

    For one edge, which asks the owners of the keys; it is for no socket.
    """

    keys: list[ClaimedKey]


Notice: TypeAlias = (
    MessageArrived | ContractsUpdated | EnvelopesWaiting | EnvelopeDelivered | IdentityGone
)


class Push(msgspec.Struct, frozen=True, array_like=True):
    """A notice for every socket of ``did`` on one edge, or what that edge itself is to do."""

    did: str
    notice: Notice | KeysOver


class BatchResult(msgspec.Struct, frozen=True, array_like=True):
    """The answer to a batch: one reply per submission, in order, and pushes for that edge.

    ``incarnation`` changes when the host restarts: sessions must be opened again.
    """

    incarnation: str
    replies: list[Reply]
    pushes: list[Push]
