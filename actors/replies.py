"""Everything an identity can answer: one closed family of replies, and pushes.

Replies leave the host only after the commit of the batch that they belong to.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from actors.refusals import Refusal
from eventstore.events import Seconds


class _Reply(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all replies: a tagged array on the wire between host and edge."""


class Done(_Reply, frozen=True):
    """Done; nothing to say."""


class Refused(_Reply, frozen=True):
    """Refused; nothing was changed but the nonce being used up."""

    code: Refusal


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


class WaitingMessage(msgspec.Struct, frozen=True, array_like=True):
    """One waiting message (8.7) or pushed message (10.5)."""

    message_id: str
    sender_did: str
    payload: bytes


class MessagesPage(_Reply, frozen=True):
    """Waiting messages, oldest first, and how many match."""

    messages: list[WaitingMessage]
    total: int


class ReadAllowed(_Reply, frozen=True):
    """The sender may read its read model: send the ``Read``."""


Reply: TypeAlias = (
    Done
    | Refused
    | MessageAccepted
    | PublicEventAccepted
    | Registered
    | ContractRequestsPage
    | ContractsPage
    | MessagesPage
    | ReadAllowed
)


class MessageArrived(_Reply, frozen=True):
    """PENDING_EVENTS: a message was queued (10.5)."""

    message: WaitingMessage


class ContractsUpdated(_Reply, frozen=True):
    """CONTRACTS_UPDATED: contracts or contract requests changed (10.5)."""


Notice: TypeAlias = MessageArrived | ContractsUpdated


class Push(msgspec.Struct, frozen=True, array_like=True):
    """A notice for every socket of ``did`` on one edge."""

    did: str
    notice: Notice


class BatchResult(msgspec.Struct, frozen=True, array_like=True):
    """The answer to a batch: one reply per submission, in order, and pushes for that edge.

    ``incarnation`` changes when the host restarts: sessions must be opened again.
    """

    incarnation: str
    replies: list[Reply]
    pushes: list[Push]
