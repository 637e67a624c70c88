"""Live mode of an agent whose DID is replaced, on its socket or elsewhere, or given up."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
from aiohttp import WSMsgType

from actors.core.commands import Command, StartLive
from actors.host.port import HostUnavailable
from http_edge.clients.didcomm import ConnectionLost, Recipient2, Wallet2
from http_edge.clients.didcomm.pickup import delivered
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.identities import Identities
from tests.edge.didcomm.newer_wallets import Sender, connected
from tests.edge.didcomm.test_rotated_accounts import moved, packed, successor
from tests.edge.didcomm.wallet_network import RawSocket, WalletNetwork
from tests.edge.identities import Json
from tests.edge.local_host import LocalHostPort
from tests.edge.mediator import WAIT_S

PING: Final = "trust-ping/2.0/ping"
LIVE_3: Final[tuple[str, Json]] = (
    "messagepickup/3.0/live-delivery-change",
    {"live_delivery": True},
)


@asynccontextmanager
async def live_on(network: WalletNetwork, wallet: Wallet2) -> AsyncIterator[RawSocket]:
    """A socket on which a wallet has live mode."""
    async with network.socket() as socket:
        await socket.raw.send_bytes(packed(wallet, *LIVE_3))
        await socket.data()
        yield socket


async def pushed(socket: RawSocket, to: Wallet2, by: Sender, recipient: Recipient2) -> list[str]:
    """The texts of the next delivery to a wallet, which its sender wrote to this recipient."""
    delivery = to.connection.open(await socket.data())
    assert isinstance(delivery, dict)
    return [by.text_in(recipient, one.envelope) for one in delivered(delivery)]


@pytest.mark.parametrize("is_rotated", [True, False])
async def test_a_live_mode_of_a_did_ends_with_its_socket_once_that_is_given_up(
    network: WalletNetwork, *, is_rotated: bool
) -> None:
    wallet = await connected(network)
    async with wallet.live() as live:
        await (wallet.rotate(KeyPair.new()) if is_rotated else wallet.end())
        with pytest.raises(ConnectionLost) as lost:
            await live.next(WAIT_S)
    assert lost.value.close_code == 4403


async def test_a_did_that_is_rotated_on_its_socket_may_go_live_there_again(
    network: WalletNetwork,
) -> None:
    old, sender = await connected(network), Sender(network)
    recipient, new = await old.new_recipient(), successor(network, old)
    async with live_on(network, old) as socket:
        await socket.raw.send_bytes(packed(new, *LIVE_3, from_prior=moved(old, new)))
        status = new.connection.open(await socket.data())
        assert isinstance(status, dict)
        assert status["live_delivery"] is True
        await sender.write(recipient, "one")
        assert await pushed(socket, new, sender, recipient) == ["one"]


@pytest.mark.parametrize("kind", ["messagepickup/3.0/status-request", PING])
async def test_a_live_socket_goes_on_for_the_did_that_replaced_its_own_there(
    network: WalletNetwork, kind: str
) -> None:
    old, sender = await connected(network), Sender(network)
    recipient, new = await old.new_recipient(), successor(network, old)
    async with live_on(network, old) as socket:
        await socket.raw.send_bytes(packed(new, kind, from_prior=moved(old, new)))
        answer = new.connection.open(await socket.data())
        assert isinstance(answer, dict)
        assert "problem-report" not in str(answer["@type"])
        await sender.write(recipient, "one")
        assert await pushed(socket, new, sender, recipient) == ["one"]


async def test_a_did_that_replaces_another_on_its_live_socket_may_send_anything_at_once(
    network: WalletNetwork,
) -> None:
    old, sender = await connected(network), Sender(network)
    recipient, new = await old.new_recipient(), successor(network, old)
    async with live_on(network, old) as socket:
        status = packed(new, "messagepickup/3.0/status-request", from_prior=moved(old, new))
        for frame in (status, packed(new, *LIVE_3), packed(new, PING)):
            await socket.raw.send_bytes(frame)
        answers = [new.connection.open(await socket.data()) for _ in range(3)]
        kinds = [str(one["@type"]).rsplit("/", 1)[1] for one in answers if isinstance(one, dict)]
        assert kinds == ["status", "status", "ping-response"]
        await sender.write(recipient, "one")
        assert await pushed(socket, new, sender, recipient) == ["one"]


async def test_what_is_queued_between_a_rotation_and_the_live_mode_that_goes_on_is_pushed(
    network: WalletNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = Identities.ask
    old, sender = await connected(network), Sender(network)
    recipient, new = await old.new_recipient(), successor(network, old)

    async def after_a_message(
        self: Identities, target: str, command: Command, *rest: Any, **more: Any
    ) -> Any:
        if isinstance(command, StartLive):
            await sender.write(recipient, "between")
        return await ask(self, target, command, *rest, **more)

    async with live_on(network, old) as socket:
        monkeypatch.setattr(Identities, "ask", after_a_message)
        await socket.raw.send_bytes(packed(new, PING, from_prior=moved(old, new)))
        await socket.data()
        assert await pushed(socket, new, sender, recipient) == ["between"]


async def test_a_socket_on_which_live_mode_cannot_go_on_after_a_rotation_ends(
    network: WalletNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = LocalHostPort.submit
    old = await connected(network)
    new = successor(network, old)

    async def away(port: LocalHostPort, batch: bytes) -> bytes:
        if b"StartLive" in batch:
            raise HostUnavailable("it takes too long")
        return await submit(port, batch)

    async with live_on(network, old) as socket:
        monkeypatch.setattr(LocalHostPort, "submit", away)
        await socket.raw.send_bytes(packed(new, PING, from_prior=moved(old, new)))
        await socket.data()
        end = await socket.raw.receive(WAIT_S)
        assert (end.type, end.data, end.extra) == (WSMsgType.CLOSE, 4403, "did-rotated")
