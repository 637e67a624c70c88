"""Whatever message of a wallet's way in is lost, cut off or repeated, its next try succeeds.

Every message from the handshake to the first message that is written to the new recipient, in both
generations, is cut in every way, there and back; afterwards nothing is there twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any, Final, TypeVar

import aiohttp
import pytest

from http_edge.clients.didcomm import (
    Recipient,
    Recipient2,
    Wallet,
    Wallet2,
    forward,
    forward_2,
)
from http_edge.clients.didcomm.errors import WalletError
from http_edge.clients.didcomm.handshake import HandshakeProtocol
from http_edge.clients.didcomm.mediation import MEDIATION_2, MEDIATION_3, MediationVersion
from http_edge.clients.didcomm.transport import post
from http_edge.didcomm.envelopes.keys import KeyPair, did_key
from http_edge.didcomm.envelopes.own_dids import OwnDids
from http_edge.didcomm.envelopes.v2.version import MEDIA_TYPE
from tests.edge.conftest import StartMediator
from tests.edge.didcomm.cut_connections import Cut, CuttingProxy
from tests.edge.didcomm.newer_wallets import Sender, ask_of, connected
from tests.edge.didcomm.wallet_network import SERVICE, WalletNetwork, envelope_of
from tests.edge.identities import Json
from tests.edge.mediator import Mediator
from tests.ports import free_port

_R = TypeVar("_R")
GRANTED: Final = ("success", "no_change")


class Way(WalletNetwork):
    """A mediator behind a proxy that cuts connections, and wallets that try again."""

    def __init__(self, mediator: Mediator, proxy: CuttingProxy, session: Any) -> None:
        super().__init__(mediator, session)
        self.proxy = proxy

    async def until_done(self, act: Callable[[], Awaitable[_R]]) -> _R:
        """What a wallet does, once more if it failed, as a wallet would."""
        try:
            return await act()
        except WalletError:
            return await act()

    async def posted(self, body: bytes, media_type: str) -> None:
        async def once() -> None:
            await post(
                self.session, f"{self.mediator.settings.url}/didcomm", body, media_type=media_type
            )

        await self.until_done(once)

    def facts(self) -> Counter[str]:
        """How many events there are of each type."""
        return Counter(topic.rpartition(".")[0] for topic in self.mediator.facts())


@pytest.fixture
async def way(start_mediator: StartMediator) -> AsyncIterator[Way]:
    port, proxy_port = free_port(), free_port()
    mediator = await start_mediator(
        listen=f"127.0.0.1:{port}", public_url=f"http://127.0.0.1:{proxy_port}"
    )
    proxy = CuttingProxy(port)
    connector = aiohttp.TCPConnector(force_close=True)
    async with (
        proxy.serving(proxy_port),
        aiohttp.ClientSession(connector=connector) as session,
    ):
        yield Way(mediator, proxy, session)


def stranger_of(known: Wallet2, key: KeyPair, network: WalletNetwork) -> Wallet2:
    """A wallet with a key of its own that knows the mediator of another, and has said nothing."""
    connection = replace(known.connection, key=key, is_known=False)
    return Wallet2(connection, session=network.session, routing_did=known.routing_did)


async def provision(way: Way, handshake: HandshakeProtocol) -> list[str]:
    """A wallet of DIDComm v1 from its handshake to its first message; the texts that it got."""
    key, to = KeyPair.new(), KeyPair.new()
    invitation = await way.invitation()
    wallet = await way.until_done(
        lambda: Wallet.connect(invitation, session=way.session, handshake=handshake, key=key)
    )
    mediation = await way.until_done(wallet.request_mediation)
    (changed,) = await way.until_done(lambda: wallet.update_keylist(add=[to.public]))
    assert changed.result in GRANTED
    envelope = envelope_of(to.public, "hello")
    await way.posted(forward(envelope, to.public, [SERVICE.public]), "application/ssi-agent-wire")
    listed = await way.until_done(wallet.query_keylist)
    assert len(listed.keys) == 1
    recipient = Recipient(to, mediation)
    way.proxy.pass_all()
    return [
        str(recipient.unpack(picked.envelope).message["content"])
        async for picked in wallet.drain(9)
    ]


async def provision_2(way: Way, version: MediationVersion) -> list[str]:
    """The same of DIDComm v2."""
    key, to = KeyPair.new(), KeyPair.new()
    url = way.mediator.url("/invitation")
    wallet = await way.until_done(
        lambda: Wallet2.connect(url, session=way.session, mediation=version, key=key)
    )
    recipient, sender = Recipient2(to, wallet.routing_did), Sender(way)
    (changed,) = await way.until_done(lambda: wallet.update_recipients(add=[recipient.did]))
    assert changed.result == "success"
    await way.posted(
        forward_2([sender.sealed("hello", recipient.did)], recipient.did, wallet.routing_did),
        MEDIA_TYPE,
    )
    listed = await way.until_done(wallet.query_recipients)
    assert len(listed.dids) == 2, "its own, and the one that it registered"
    way.proxy.pass_all()
    return [sender.text_in(recipient, picked.envelope) async for picked in wallet.drain(9)]


ONCE: Final = {
    "connection-established": 1,
    "mediation-granted": 1,
    "message-queued": 1,
}


@pytest.mark.thorough
@pytest.mark.parametrize("how", Cut)
@pytest.mark.parametrize("handshake", ["didexchange/1.1", "connections/1.0"])
async def test_a_wallet_of_v1_is_provisioned_whatever_is_cut(
    way: Way, how: Cut, handshake: HandshakeProtocol
) -> None:
    await cut_everything(way, how, lambda: provision(way, handshake), keys=1)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("how", "version"), [*[(how, MEDIATION_3) for how in Cut], (Cut.UNANSWERED, MEDIATION_2)]
)
async def test_a_wallet_of_v2_is_provisioned_whatever_is_cut(
    way: Way, how: Cut, version: MediationVersion
) -> None:
    await cut_everything(way, how, lambda: provision_2(way, version), keys=2)


async def cut_everything(
    way: Way, how: Cut, provisioned: Callable[[], Awaitable[list[str]]], *, keys: int
) -> None:
    """Cut each message of a new wallet's way in, one wallet for each."""
    way.proxy.cut(0, how)
    assert await provisioned() == ["hello"]
    messages = way.proxy.passed
    # To be granted, to register, to be written to, to ask; in v1 a handshake comes before.
    assert messages >= (5 if keys == 1 else 4)
    for number in range(1, messages + 1):
        before = way.facts()
        way.proxy.cut(number, how)
        assert await provisioned() == ["hello"], number
        assert way.proxy.was_cut
        made = way.facts() - before
        assert {name: made[name] for name in ONCE} == ONCE, number
        assert made["keylist-updated"] == keys, number


@pytest.mark.parametrize("generation", [1, 2])
async def test_a_socket_that_is_cut_after_each_message_doubles_nothing(
    network: WalletNetwork, generation: int
) -> None:
    """The same over a WebSocket whose wallet never reads an answer, then one that does."""
    key, to = KeyPair.new(), KeyPair.new()
    asks: list[Json]
    if generation == 1:
        wallet: Wallet | Wallet2 = await network.connect(key=key)
        update = {"recipient_key": did_key(to.public), "action": "add"}
        asks = [
            ask_of("coordinate-mediation/1.0/mediate-request"),
            ask_of("coordinate-mediation/1.0/keylist-update", updates=[update]),
        ]
    else:
        wallet = stranger_of(await connected(network), key, network)
        update = {"recipient_did": OwnDids(to).peer4, "action": "add"}
        asks = [
            ask_of("coordinate-mediation/3.0/mediate-request"),
            ask_of("coordinate-mediation/3.0/recipient-update", updates=[update]),
        ]
    before = Counter(network.mediator.facts())
    for ask in asks:
        message = {**ask, "~transport": {"return_route": "all"}}
        for _ in range(3):
            async with network.socket() as socket:
                await socket.raw.send_bytes(wallet.connection.pack(message))
                # Nothing is read: the connection ends as if the network were gone.
                socket.raw._response.close()
        async with network.socket() as socket:
            await socket.raw.send_bytes(wallet.connection.pack(message))
            answer = wallet.connection.open(await socket.data())
            assert isinstance(answer, dict)
            assert "problem" not in str(answer["@type"])
    made = Counter(network.mediator.facts()) - before
    assert made["mediation-granted.1"] == 1
    if isinstance(wallet, Wallet2):
        listed = len((await wallet.query_recipients()).dids)
        assert listed == 2, "its own, and the one that it registered"
    else:
        assert len((await wallet.query_keylist()).keys) == 1
