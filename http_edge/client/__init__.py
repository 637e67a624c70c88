"""The client library of the Decentrl mediator protocol (DCTRL-0004).

    async with MediatorClient("http://127.0.0.1:8080") as mediator:
        identity = Identity.create("alice", (await mediator.document()).did)
        alice = mediator.as_(identity)
        await alice.register(expires_at_s=time.time() + 86_400)

It runs on aiohttp and imports nothing of the server but the wire forms.
"""

from http_edge.client.account import Account
from http_edge.client.backoff import ONCE, PATIENT, Backoff
from http_edge.client.client import MediatorClient, Resolver
from http_edge.client.contracts import Contract
from http_edge.client.envelope import Channel, signed_command
from http_edge.client.errors import (
    ClientError,
    CommandRefused,
    MediatorUnknown,
    MediatorUnreachable,
    NotAuthentic,
    OutcomeUnknown,
    SocketRefused,
    UnexpectedAnswer,
    UnusableIdentity,
)
from http_edge.client.events import Envelope
from http_edge.client.identity import Identity
from http_edge.client.records import (
    EventToSave,
    Page,
    PendingContractRequest,
    PendingEvent,
    PublicEvent,
    SavedEvent,
    StoredContract,
)
from http_edge.client.socket import ContractsUpdated, MessagesArrived, NoticeSocket, Reconnected
from http_edge.client.sources import Sources
from http_edge.client.transport import TransportLimits

__all__ = [
    "ONCE",
    "PATIENT",
    "Account",
    "Backoff",
    "Channel",
    "ClientError",
    "CommandRefused",
    "Contract",
    "ContractsUpdated",
    "Envelope",
    "EventToSave",
    "Identity",
    "MediatorClient",
    "MediatorUnknown",
    "MediatorUnreachable",
    "MessagesArrived",
    "NotAuthentic",
    "NoticeSocket",
    "OutcomeUnknown",
    "Page",
    "PendingContractRequest",
    "PendingEvent",
    "PublicEvent",
    "Reconnected",
    "Resolver",
    "SavedEvent",
    "SocketRefused",
    "Sources",
    "StoredContract",
    "TransportLimits",
    "UnexpectedAnswer",
    "UnusableIdentity",
    "signed_command",
]
