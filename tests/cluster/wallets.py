"""Wallets at a real mediator, and a sender that writes to them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Self, TypeVar

import aiohttp

from http_edge.clients.didcomm import Picked, Recipient, Wallet, WalletError, fetch_invitation, send
from http_edge.clients.didcomm.protocol_session import new_id
from http_edge.didcomm.envelopes.keys import KeyPair, did_key
from http_edge.didcomm.envelopes.messages import NEW_PREFIX, Json
from tests.cluster.accounts import WAIT_S_MAX

SENDER: Final = KeyPair.from_seed(b"a" * 32)
"""Who writes, and is no agent of the mediator."""
_BASIC_MESSAGE: Final = NEW_PREFIX + "basicmessage/1.0/message"
_PAUSE_S: Final = 0.05
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class MediatedAgent:
    """A wallet with one registered key."""

    wallet: Wallet
    recipient: Recipient

    @classmethod
    async def arrive(cls, session: aiohttp.ClientSession, url: str, **options: Any) -> Self:
        """Connect by the invitation at ``url``, be mediated, register a key."""
        invitation = await fetch_invitation(session, f"{url}/invitation")
        wallet = await Wallet.connect(invitation, session=session, **options)
        return cls(wallet, await wallet.new_recipient())

    @property
    def did(self) -> str:
        """Its identity at the mediator."""
        return did_key(self.wallet.connection.key.public)

    async def write(self, *texts: str, over: aiohttp.ClientSession | None = None) -> None:
        """A sender writes to this wallet, and each message is accepted. Raises: WalletError."""
        for text in texts:
            await post(over or self.wallet.session, self.recipient, text)

    def read(self, envelope: bytes) -> str:
        """The text in an envelope."""
        message, sender = self.recipient.unpack(envelope)
        assert sender == SENDER.public
        return str(message["content"])

    def texts(self, picked: Iterable[Picked]) -> list[str]:
        """The texts of what was picked up."""
        return [self.read(one.envelope) for one in picked]

    async def drained(self) -> list[str]:
        """Everything that waits, by Pickup 2.0. Raises: WalletError."""
        return [self.read(one.envelope) async for one in self.wallet.drain(100)]


async def post(session: aiohttp.ClientSession, to: Recipient, text: str) -> None:
    """Write to a recipient. Raises: WalletError."""
    message: Json = {"@type": _BASIC_MESSAGE, "@id": new_id(), "content": text}
    await send(session, to.address.endpoint, to.address.seal(message, SENDER))


async def served(ask: Callable[[], Awaitable[Found]]) -> Found:
    """What ``ask`` answers as soon as it neither fails nor answers with nothing."""
    async with asyncio.timeout(WAIT_S_MAX):
        while True:
            try:
                found = await ask()
            except WalletError:
                found = None
            if found:
                return found
            await asyncio.sleep(_PAUSE_S)
