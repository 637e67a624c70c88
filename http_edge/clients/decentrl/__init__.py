"""The client library of the Decentrl mediator protocol (DCTRL-0004).

    async with MediatorClient("http://127.0.0.1:8080") as mediator:
        identity = Identity.create("alice", (await mediator.document()).did)
        alice = mediator.as_(identity)
        await alice.register(expires_at_s=time.time() + 86_400)

It runs on aiohttp, and of the server it imports only the wire forms.
"""

from http_edge.clients.decentrl.account import Account, MediatorClient
from http_edge.clients.decentrl.backoff import ONCE, PATIENT, Backoff
from http_edge.clients.decentrl.commands import Channel, signed_command
from http_edge.clients.decentrl.contracts import Contract
from http_edge.clients.decentrl.errors import (
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
from http_edge.clients.decentrl.events import Envelope
from http_edge.clients.decentrl.identity import Identity
from http_edge.clients.decentrl.mediator import Mediator, Resolver
from http_edge.clients.decentrl.records import (
    EventToSave,
    Page,
    Pagination,
    PendingContractRequest,
    PendingEvent,
    PublicEvent,
    SavedEvent,
    Seconds,
    StoredContract,
)
from http_edge.clients.decentrl.socket import (
    ContractsUpdated,
    MessagesArrived,
    Notice,
    NoticeSocket,
    Reconnected,
)
from http_edge.clients.decentrl.transport import TransportLimits
from http_edge.clients.sources import Sources
from http_edge.dids.contract_profile import ContractRequest
from http_edge.dids.document import DidDocument

__all__ = [
    "ONCE",
    "PATIENT",
    "Account",
    "Backoff",
    "Channel",
    "ClientError",
    "CommandRefused",
    "Contract",
    "ContractRequest",
    "ContractsUpdated",
    "DidDocument",
    "Envelope",
    "EventToSave",
    "Identity",
    "Mediator",
    "MediatorClient",
    "MediatorUnknown",
    "MediatorUnreachable",
    "MessagesArrived",
    "NotAuthentic",
    "Notice",
    "NoticeSocket",
    "OutcomeUnknown",
    "Page",
    "Pagination",
    "PendingContractRequest",
    "PendingEvent",
    "PublicEvent",
    "Reconnected",
    "Resolver",
    "SavedEvent",
    "Seconds",
    "SocketRefused",
    "Sources",
    "StoredContract",
    "TransportLimits",
    "UnexpectedAnswer",
    "UnusableIdentity",
    "signed_command",
]
