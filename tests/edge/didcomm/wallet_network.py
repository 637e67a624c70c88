"""The wallets of one mediator under test, and those who write to them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import orjson
from aiohttp import WSMsgType

from http_edge.clients.didcomm import (
    Connection,
    Invitation,
    Picked,
    Recipient,
    Wallet,
    fetch_invitation,
    forward,
)
from http_edge.crypto.mediator_keys import service_seed
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.envelopes.messages import NEW_PREFIX, OLD_PREFIX
from http_edge.didcomm.envelopes.v1.envelope import pack
from tests.edge.identities import Json
from tests.edge.mediator import KEYS, WAIT_S, Answer, Mediator, Socket

SERVICE: Final = KeyPair.from_seed(service_seed(KEYS))
"""The mediator's own key."""
SENDER: Final = KeyPair.from_seed(b"a" * 32)
"""Alice, who writes and is no agent of this mediator."""
ENVELOPE: Final = "application/didcomm-envelope-enc"
PREFIXES: Final = [NEW_PREFIX, OLD_PREFIX]
SUBSCRIBERS: Final = "poste_subscribers"
IN_FLIGHT: Final = "poste_requests_in_flight"
IN_FLIGHT_BYTES: Final = "poste_requests_in_flight_bytes"
_IDS: Final = itertools.count(1)


def fresh(**members: Any) -> Json:
    """A message with an id that no other has."""
    return {"@id": f"message-{next(_IDS)}", **members}


def envelope_of(key: bytes, text: str) -> bytes:
    """An envelope by Alice for a key."""
    message = fresh(**{"@type": NEW_PREFIX + "basicmessage/1.0/message", "content": text})
    return pack(orjson.dumps(message), [key], SENDER)


def forwarded(to: Any, msg: Any, *, sender: KeyPair | None = None, **members: Any) -> bytes:
    """A forward for the mediator with ``to`` and ``msg`` as they are given."""
    message = fresh(**{"@type": NEW_PREFIX + "routing/1.0/forward", "to": to, "msg": msg})
    return pack(orjson.dumps({**message, **members}), [SERVICE.public], sender)


def sealed(connection: Connection, kind: str, **members: Any) -> bytes:
    """A message of a wallet for the mediator, with no decorator that was not asked for."""
    return connection.pack(fresh(**{"@type": NEW_PREFIX + kind, **members}))


def routed(route: str = "all", **members: Any) -> Json:
    """The decorator that opens a return route, for ``sealed``."""
    return {"~transport": {"return_route": route, **members}}


@dataclass(frozen=True, slots=True)
class Bob:
    """A wallet with one registered key."""

    wallet: Wallet
    recipient: Recipient

    @property
    def key(self) -> bytes:
        """The registered key."""
        return self.recipient.key.public

    @property
    def connection(self) -> Connection:
        """The wallet's connection."""
        return self.wallet.connection

    def read(self, envelope: Any) -> str:
        """The text in one envelope."""
        message, sender = self.recipient.unpack(_bytes(envelope))
        assert sender == SENDER.public
        return str(message["content"])

    def texts(self, envelopes: Iterable[Any]) -> list[str]:
        """The texts in envelopes, or in what was picked up."""
        return [self.read(one) for one in envelopes]

    async def drained(self) -> list[str]:
        """Everything that waits, by pickup 2.0."""
        return [self.read(picked) async for picked in self.wallet.drain(100)]


class RawSocket(Socket):
    """A WebSocket in the hands of a client that knows nothing of wallets."""

    async def data(self) -> bytes:
        """The next binary frame."""
        message = await self.raw.receive(WAIT_S)
        assert message.type is WSMsgType.BINARY, message
        assert isinstance(message.data, bytes)
        return message.data

    async def text(self) -> bytes:
        """The next text frame."""
        message = await self.raw.receive(WAIT_S)
        assert message.type is WSMsgType.TEXT, message
        assert isinstance(message.data, str)
        return message.data.encode()

    async def ended_because(self) -> tuple[int, str]:
        """The code and the reason that the server closes with."""
        message = await self.raw.receive(WAIT_S)
        assert message.type is WSMsgType.CLOSE, message
        return message.data, message.extra or ""


class WalletNetwork:
    """A mediator, its wallets, and a way to write to them."""

    def __init__(self, mediator: Mediator, session: aiohttp.ClientSession) -> None:
        self.mediator = mediator
        self.session = session

    async def invitation(self) -> Invitation:
        """The public invitation."""
        return await fetch_invitation(self.session, self.mediator.url("/invitation"))

    async def connect(self, **options: Any) -> Wallet:
        """A new wallet that is connected."""
        return await Wallet.connect(await self.invitation(), session=self.session, **options)

    async def bob(self, **options: Any) -> Bob:
        """A new wallet that is mediated and has a key."""
        wallet = await self.connect(**options)
        return Bob(wallet, await wallet.new_recipient())

    async def bobs(self, number: int) -> list[Bob]:
        """Several of them."""
        return [await self.bob() for _ in range(number)]

    def stranger(self) -> Wallet:
        """A wallet that never connected."""
        url = self.mediator.url("/didcomm")
        connection = Connection(
            key=KeyPair.new(),
            did="",
            mediator_did="",
            mediator_key=SERVICE.public,
            http_url=url,
            ws_url=url,
        )
        return Wallet(connection, session=self.session)

    async def post(self, body: bytes | str, *, content_type: str | None = ENVELOPE) -> Answer:
        """POST anything to the endpoint; without a content type if that is None.

        On the wallets' own connection: what was handed over before has left the queue by then.
        """
        headers = {} if content_type is None else {"Content-Type": content_type}
        skip = ["Content-Type"] if content_type is None else []
        url = self.mediator.url("/didcomm")
        async with self.session.post(
            url, data=body, headers=headers, skip_auto_headers=skip
        ) as answer:
            return Answer(answer.status, answer.headers, await answer.read())

    async def say(self, connection: Connection, kind: str, **members: Any) -> Answer:
        """What a message of a wallet brings back over HTTP, unopened."""
        return await self.post(sealed(connection, kind, **members))

    async def polled(self) -> None:
        """Return when a request waits for messages."""
        async with asyncio.timeout(WAIT_S):
            while not self.measured(SUBSCRIBERS):  # noqa: ASYNC110 - no event says so
                await asyncio.sleep(0)

    def measured(self, name: str) -> float:
        """A metric of the one edge."""
        (edge,) = self.mediator.edges
        (family,) = [each for each in edge.report() if each.name == name]
        return sum(value for _, _, value in family.samples)

    async def write(self, bob: Bob, *texts: str) -> None:
        """Messages for a wallet's key, which must be accepted."""
        for text in texts:
            assert (await self.forward_text(bob.key, text)).status == 202

    async def forward_text(self, key: bytes, text: str) -> Answer:
        """What Alice is answered when she writes to a key."""
        return await self.post(forward(envelope_of(key, text), key, [SERVICE.public]))

    async def idle_replies(self, wallet: Wallet, number: int) -> None:
        """Fill a wallet's queue as the plugin's tests do, by pings whose answers have to wait."""
        for _ in range(number):
            # The old prefix and the misspelled member are theirs.
            message = fresh(
                **{"@type": OLD_PREFIX + "trust_ping/1.0/ping", "response_resquested": True}
            )
            assert (await self.post(wallet.connection.pack(message))).status == 202

    async def settled(self, wallet: Wallet) -> None:
        """All that came over a wallet's socket has left the queue, as the pongs say.

        That it was read takes one round trip, that it is removed another.
        """
        await wallet.ping()
        await wallet.ping()

    def bound_silence(self) -> None:
        """From now on a socket has but a moment for its first message; the settings are frozen."""
        vars(self.mediator.settings.didcomm)["socket_first_message_s"] = 0.05

    @asynccontextmanager
    async def socket(self, **options: Any) -> AsyncIterator[RawSocket]:
        """A socket that has said nothing yet."""
        url = self.mediator.url("/didcomm")
        async with self.session.ws_connect(url, max_msg_size=0, **options) as raw:
            yield RawSocket(raw)


async def subscribers(network: WalletNetwork, number: int) -> None:
    """Return when so many sockets and long polls of the one edge are subscribed."""
    async with asyncio.timeout(WAIT_S):
        while network.measured(SUBSCRIBERS) != number:  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0)


async def answer_to(wallet: Wallet, kind: str, **members: Any) -> Json:
    """What a wallet is answered; ``kind`` is a type without its prefix, or with it."""
    spelled = kind if ":" in kind else NEW_PREFIX + kind
    answer = await wallet.ask(fresh(**{"@type": spelled, **members}))
    assert answer is not None
    return answer


def opened(connection: Connection, body: bytes) -> Json:
    """A message of the mediator in an answer."""
    message = connection.open(body)
    assert isinstance(message, dict), body
    return message


def ids(picked: Iterable[Picked]) -> list[str]:
    """The ids of messages that were picked up."""
    return [one.id for one in picked]


def numbered(number: int, start: int = 0) -> list[str]:
    """Texts that tell their order."""
    return [f"message {index:03}" for index in range(start, start + number)]


def keys(number: int) -> Iterator[bytes]:
    """Fresh public keys."""
    return (KeyPair.new().public for _ in range(number))


def _bytes(envelope: Any) -> bytes:
    found = envelope.envelope if isinstance(envelope, Picked) else envelope
    assert isinstance(found, bytes), found
    return found
