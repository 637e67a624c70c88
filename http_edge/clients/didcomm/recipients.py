"""Recipients, and how senders write to them: posted forwards.

Recipients are keys (RFC 0094, RFC 0025), and DIDs in DIDComm v2 (routing 2.0).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import aiohttp
import orjson

from http_edge.clients.didcomm.connection import (
    DidMethod2,
    Key,
    Opened,
    agreement_key,
    endpoints_of,
    messaging_service,
    open_for,
    open_for_did,
    own_did,
    seal_for,
    spelled,
)
from http_edge.clients.didcomm.errors import NotAuthentic, UnusableInvitation
from http_edge.clients.didcomm.flat_messages import to_flat
from http_edge.clients.didcomm.mediation import Mediation
from http_edge.clients.didcomm.protocol_session import new_id
from http_edge.clients.didcomm.transport import post
from http_edge.didcomm.envelopes.agent_documents import messaging_services, own_document
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.envelopes.messages import NEW_PREFIX, Json
from http_edge.didcomm.envelopes.own_dids import OwnDids
from http_edge.didcomm.envelopes.v1.envelope import pack
from http_edge.didcomm.envelopes.v2 import envelope
from http_edge.didcomm.envelopes.v2.version import V2

_FORWARD: Final = NEW_PREFIX + "routing/1.0/forward"
_FORWARD_2: Final = NEW_PREFIX + "routing/2.0/forward"


@dataclass(frozen=True, slots=True)
class Address:
    """A sender's data on a recipient: its key, the endpoint, and the routing keys."""

    key: bytes
    endpoint: str
    routing_keys: tuple[bytes, ...] = ()

    def seal(self, message: Json, sender: KeyPair | None = None) -> bytes:
        """Pack a message for the recipient alone, ready to be posted to the endpoint.

        The recipient learns the sender's key; mediators on the way do not.

        Raises:
            ValueError: nothing can be packed to one of the keys.
        """
        envelope = pack(orjson.dumps(message), [self.key], sender)
        return forward(envelope, self.key, self.routing_keys)


@dataclass(frozen=True, slots=True)
class Recipient:
    """A registered key of the wallet, and the mediation through which senders reach it.

    Each correspondent gets a key of its own: they cannot see that they write to the same wallet.
    """

    key: KeyPair = field(repr=False)
    mediation: Mediation

    @property
    def address(self) -> Address:
        """The address to give to a sender."""
        return Address(self.key.public, self.mediation.endpoint, self.mediation.routing_keys)

    def unpack(self, envelope: bytes) -> Opened:
        """Open an envelope: the message, and the key of its sender.

        Raises:
            NotAuthentic: the envelope is for another key, or does not open.
            UnexpectedAnswer: the bytes are no envelope.
        """
        opened = open_for(self.key, envelope)
        if opened is None:
            raise NotAuthentic("an envelope for another key")
        return opened


def forward(envelope: bytes, to: Key, routing_keys: Sequence[bytes]) -> bytes:
    """Wrap an envelope for ``to`` in a forward for each routing key, the last one outermost.

    Raises:
        ValueError: nothing can be packed to one of the routing keys.
    """
    for routing_key in routing_keys:
        message = b'{"@type":"%b","@id":"%b","to":%b,"msg":%b}' % (
            _FORWARD.encode(),
            new_id().encode(),
            orjson.dumps(spelled(to)),
            envelope,
        )
        envelope, to = pack(message, [routing_key], None), routing_key
    return envelope


async def send(session: aiohttp.ClientSession, endpoint: str, envelope: bytes) -> int:
    """Post an envelope without expecting a message back; return the HTTP status of its success.

    Raises: MediatorRefused, MediatorUnreachable, UnexpectedAnswer.
    """
    return (await post(session, endpoint, envelope)).status


@dataclass(frozen=True)
class Recipient2:
    """A registered DID of the wallet, one for each correspondent, behind the mediator's DID."""

    key: KeyPair = field(repr=False)
    routing_did: str
    method: DidMethod2 = "peer4"

    @cached_property
    def own(self) -> OwnDids:
        """The DIDs of the key; their documents lead to the mediator."""
        return OwnDids(self.key, [messaging_service(self.routing_did)])

    @cached_property
    def did(self) -> str:
        """The registered DID, which is the address to give to a sender."""
        return own_did(self.own, self.method)

    @cached_property
    def version(self) -> V2:
        """Packs and unpacks envelopes from and to this DID."""
        return V2(self.own)

    def unpack(self, packed: bytes) -> tuple[Json, str]:
        """Open an envelope: the flat message, and its sender's DID, empty if it is anonymous.

        Raises:
            NotAuthentic: the envelope is for another DID or does not open, or the message is not
                from the sender that it names.
            UnexpectedAnswer: the bytes are no envelope.
        """
        opened = open_for_did(self.version, packed)
        if opened is None:
            raise NotAuthentic("an envelope for another DID")
        message = self.version.read(opened)
        if message is None:
            raise NotAuthentic("a message by another than it says")
        return to_flat(opened.parsed), message.sender_did if opened.sender is not None else ""

    def seal(self, message: Json, to: str) -> bytes:
        """Pack a flat message from this DID for the DID ``to``, to be posted to ``endpoint_of``.

        Raises:
            UnusableInvitation: ``to`` names no mediator, or nothing can be packed to a key on the
                way.
        """
        return forward_2([seal_for(self.version, self.did, message, to)], to)


def forward_2(
    envelopes: Sequence[bytes], to: str, routing_did: str = "", **headers: object
) -> bytes:
    """Put envelopes for the DID ``to`` into one forward with ``headers`` to its mediator.

    ``routing_did`` is the mediator's DID, by default the one in the document of ``to``.

    Raises:
        UnusableInvitation: the mediator is not known, or nothing can be packed to its key.
    """
    mediator = routing_did or mediator_of(to)
    message: Json = {
        "id": new_id(),
        "type": _FORWARD_2,
        "to": [mediator],
        "body": {"next": to},
        "attachments": [{"data": {"json": orjson.Fragment(each)}} for each in envelopes],
    }
    recipient = envelope.Recipient(*agreement_key(mediator))
    written = orjson.dumps({**message, **headers})
    try:
        return envelope.seal(written, [recipient], None)
    except ValueError as error:
        raise UnusableInvitation(f"{mediator}: {error}") from error


def endpoint_of(did: str) -> str:
    """The HTTP endpoint of a DID's mediator, to which forwards are posted; empty for none.

    Raises:
        UnusableInvitation: the DID names no mediator.
    """
    return endpoints_of(mediator_of(did))[0]


def mediator_of(did: str) -> str:
    """The DID of the mediator that the document of a DID names.

    Raises:
        UnusableInvitation: the document names none.
    """
    document = own_document(did)
    services = [] if document is None else messaging_services(document)
    found = next((each.uri for each in services if each.uri.startswith("did:")), None)
    if found is None:
        raise UnusableInvitation(f"{did} names no mediator")
    return found
