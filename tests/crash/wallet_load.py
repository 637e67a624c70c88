"""Senders who write to wallets while processes are killed; each intent is noted before it is sent.

They send everything once. Most of it goes in a forward for one wallet, in either generation of
DIDComm; some is one envelope for two wallets, which the mediator queues for each on its own.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from http import HTTPStatus
from typing import Final, NamedTuple

import aiohttp
import orjson

from eventstore.log.seal import COMMAND_KEY_BYTES
from http_edge.clients.didcomm import (
    MediatorRefused,
    MediatorUnreachable,
    Recipient,
    Recipient2,
    forward,
    forward_2,
    post,
)
from http_edge.clients.didcomm.connection import seal_for
from http_edge.clients.didcomm.protocol_session import new_id
from http_edge.didcomm.envelopes.keys import KeyPair, base58, did_key
from http_edge.didcomm.envelopes.messages import NEW_PREFIX, Json
from http_edge.didcomm.envelopes.v1.envelope import pack
from http_edge.didcomm.envelopes.v1.version import MEDIA_TYPE
from http_edge.didcomm.envelopes.v2.version import MEDIA_TYPE as MEDIA_TYPE_2
from tests.crash.pickup_ledger import Fate, PickupLedger, Sent

FILLER_CHARS_MAX: Final = 1_000
FOR_TWO: Final = 0.1
IN_V2: Final = 0.5
"""Of those for one wallet."""
PAUSE_S: Final = 0.03
_SILENT_S_MAX: Final = 120.0
_BASIC_MESSAGE: Final = NEW_PREFIX + "basicmessage/1.0/message"


class Mailbox(NamedTuple):
    """Where a sender writes to: a wallet, and one of its keys."""

    wallet: str
    recipient: Recipient


@dataclass(slots=True)
class WalletLoad:
    """What all wallets of one run share.

    ``pause_s`` is how long a sender rests between two messages. ``accepted_at`` has, of each
    wallet, when the last message was sent to it that was accepted. ``routing_did`` is what senders
    of DIDComm v2 know the mediator by.
    """

    session: aiohttp.ClientSession
    ledger: PickupLedger
    chance: random.Random
    routing_did: str
    accepted: int = 0
    progress: asyncio.Event = field(default_factory=asyncio.Event)
    accepted_at: dict[str, float] = field(default_factory=dict)
    pause_s: float = 0.0
    stopping: bool = False

    async def more(self, count: int) -> None:
        """Wait until so many more were accepted. Raises: TimeoutError: for long none was."""
        due = self.accepted + count
        while self.accepted < due:
            self.progress.clear()
            async with asyncio.timeout(_SILENT_S_MAX):
                await self.progress.wait()

    async def write(
        self, name: str, mailboxes: Sequence[Mailbox], turns: Iterator[Mailbox]
    ) -> None:
        """Send one message after the other until the run stops.

        Senders share the ``turns`` of the mailboxes.
        """
        sender = KeyPair.new()
        for number, mailbox in enumerate(turns):
            if self.stopping:
                return
            to = [mailbox]
            if self.chance.random() < FOR_TWO:
                others = [box for box in mailboxes if box.wallet != to[0].wallet]
                to.append(self.chance.choice(others))
            filler = "x" * self.chance.randrange(FILLER_CHARS_MAX)
            done = await self.send(name, sender, f"{number} of {name} {filler}", to)
            await asyncio.sleep(self.pause_s if done else max(self.pause_s, PAUSE_S))

    async def send(self, name: str, sender: KeyPair, text: str, to: Sequence[Mailbox]) -> bool:
        """Send a text to one or two wallets, once: was it accepted?"""
        message: Json = {"@type": _BASIC_MESSAGE, "@id": new_id(), "content": text}
        keys = [box.recipient.key.public for box in to]
        mediation = to[0].recipient.mediation
        envelope = body = pack(orjson.dumps(message), keys, sender)
        media_type = MEDIA_TYPE
        if len(to) == 1 and self.chance.random() < IN_V2:
            did = did_key(keys[0])
            writer = Recipient2(sender, self.routing_did, "key")
            envelope = seal_for(writer.version, writer.did, message, did)
            body = forward_2([envelope], did, self.routing_did)
            media_type = MEDIA_TYPE_2
        elif len(to) == 1:
            body = forward(envelope, keys[0], mediation.routing_keys)
        command = blake2b(body, digest_size=COMMAND_KEY_BYTES).digest()
        intents = [
            self.ledger.intend(Sent(name, box.wallet, base58(key), text, envelope, command))
            for box, key in zip(to, keys, strict=True)
        ]
        sent_at = time.monotonic()
        fate = await self._post(mediation.endpoint, body, media_type)
        for intent in intents:
            intent.fate = fate
        if fate is Fate.ACCEPTED:
            self.accepted += 1
            self.accepted_at.update((box.wallet, sent_at) for box in to)
            self.progress.set()
        return fate is Fate.ACCEPTED

    async def _post(self, endpoint: str, body: bytes, media_type: str) -> Fate:
        try:
            await post(self.session, endpoint, body, media_type=media_type)
        except MediatorRefused as error:
            if error.status == HTTPStatus.SERVICE_UNAVAILABLE:
                return Fate.UNKNOWN
            raise
        except MediatorUnreachable as error:
            unsent = isinstance(error.__cause__, aiohttp.ClientConnectorError)
            return Fate.UNSENT if unsent else Fate.UNKNOWN
        return Fate.ACCEPTED
