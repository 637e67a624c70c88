"""The keys of recipients, and how senders write to them: posted forwards (RFC 0094, RFC 0025)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import aiohttp
import orjson

from http_edge.clients.didcomm.connection import Key, Opened, open_for, spelled
from http_edge.clients.didcomm.errors import NotAuthentic
from http_edge.clients.didcomm.mediation import Mediation
from http_edge.clients.didcomm.protocol_session import new_id
from http_edge.clients.didcomm.transport import post
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.envelopes.messages import NEW_PREFIX, Json
from http_edge.didcomm.envelopes.v1.envelope import pack

_FORWARD: Final = NEW_PREFIX + "routing/1.0/forward"


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
