"""The sender's side: forwards around an envelope, and posting it (RFC 0094, RFC 0025)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import aiohttp
import orjson

from http_edge.didcomm.envelope import pack
from http_edge.didcomm.keys import KeyPair
from http_edge.didcomm.messages import NEW_PREFIX, Json
from http_edge.wallet.connection import Key, spelled
from http_edge.wallet.conversation import new_id
from http_edge.wallet.transport import post

_FORWARD: Final = NEW_PREFIX + "routing/1.0/forward"


@dataclass(frozen=True, slots=True)
class Address:
    """What a sender knows of a recipient: its key, and the way there."""

    key: bytes
    endpoint: str
    routing_keys: tuple[bytes, ...] = ()

    def seal(self, message: Json, sender: KeyPair | None = None) -> bytes:
        """A message for the recipient alone, ready to be posted to the endpoint.

        The recipient learns who the sender is, those on the way do not.
        """
        envelope = pack(orjson.dumps(message), [self.key], sender)
        return forward(envelope, self.key, self.routing_keys)


def forward(envelope: bytes, to: Key, routing_keys: Sequence[bytes]) -> bytes:
    """An envelope for ``to`` inside one forward for each routing key, the last one outermost."""
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
    """Post an envelope as somebody who expects nothing back: the HTTP status, a success.

    Raises: MediatorRefused, MediatorUnreachable.
    """
    return (await post(session, endpoint, envelope)).status
