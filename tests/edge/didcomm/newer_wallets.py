"""Wallets of DIDComm v2 at the mediator under test, and one who writes to them."""

from __future__ import annotations

import itertools
from typing import Any, Final

from http_edge.clients.didcomm import Recipient2, Wallet2, forward_2
from http_edge.clients.didcomm.connection import seal_for
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.envelopes.messages import NEW_PREFIX
from http_edge.didcomm.envelopes.v2.version import MEDIA_TYPE
from tests.edge.didcomm.wallet_network import WalletNetwork
from tests.edge.identities import Json
from tests.edge.mediator import Answer

_IDS: Final = itertools.count(1)


def basic_message(text: str) -> Json:
    """A message with an id that no other has."""
    kind = f"{NEW_PREFIX}basicmessage/2.0/message"
    return {"@type": kind, "@id": f"message-{next(_IDS)}", "content": text}


def ask_of(kind: str, /, **members: Any) -> Json:
    """A message to the mediator; ``kind`` is a type without its prefix."""
    return {"@type": NEW_PREFIX + kind, "@id": f"ask-{next(_IDS)}", **members}


class Sender:
    """Alice, who writes and is no agent of this mediator."""

    def __init__(self, network: WalletNetwork) -> None:
        self._network = network
        self.own = Recipient2(KeyPair.new(), "did:example:nowhere")

    def sealed(self, text: str, to: str) -> bytes:
        """A message for a DID, not forwarded."""
        return seal_for(self.own.version, self.own.did, basic_message(text), to)

    async def forward(self, to: str, *texts: str, routing_did: str = "", **headers: Any) -> Answer:
        """What one forward with a message for each text is answered."""
        envelopes = [self.sealed(text, to) for text in texts]
        body = forward_2(envelopes, to, routing_did, **headers)
        return await self._network.post(body, content_type=MEDIA_TYPE)

    async def write(self, to: Recipient2, *texts: str) -> None:
        """Messages in a forward each, which must be accepted."""
        for text in texts:
            answer = await self.forward(to.did, text)
            assert (answer.status, answer.body) == (202, b""), answer

    def text_in(self, to: Recipient2, envelope: bytes) -> str:
        """The text in an envelope, which must be hers."""
        message, did = to.unpack(envelope)
        assert did == self.own.did
        return str(message["content"])


async def connected(network: WalletNetwork, **options: Any) -> Wallet2:
    """A new wallet that is mediated."""
    url = network.mediator.url("/invitation")
    return await Wallet2.connect(url, session=network.session, **options)


async def answer_to(wallet: Wallet2, kind: str, /, **members: Any) -> Json:
    """What a wallet is answered, a problem report too."""
    answer = await wallet.ask(ask_of(kind, **members))
    assert answer is not None
    return answer
