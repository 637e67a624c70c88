"""Wallets that pick up, each by one generation, or by another one at every turn.

A wallet does one thing after the other and reads whatever comes, so it is known what it got, and
in which order. Some of what it gets by Pickup 2.0 it forgets to acknowledge.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Literal, TypeAlias

import orjson

from http_edge.clients.didcomm import (
    PICKUP_2,
    PICKUP_3,
    PICKUP_4,
    Connection2,
    ConnectionLost,
    Live,
    MediatorUnreachable,
    NoAnswer,
    NotAuthentic,
    Picked,
    ProblemReported,
    Recipient,
    Recipient2,
    Socket,
    Wallet,
    Wallet2,
    WalletError,
)
from http_edge.clients.didcomm.connected_wallet import ConnectedWallet
from http_edge.clients.didcomm.connection import QUEUE, open_for
from http_edge.clients.didcomm.pickup import PickupVersion, SpeaksPickup
from http_edge.clients.didcomm.protocol_session import prepared
from http_edge.didcomm.envelopes.messages import NEW_PREFIX, Json
from tests.crash.pickup_ledger import Offer, Session
from tests.crash.wallet_load import PAUSE_S, Mailbox, WalletLoad

FORGETFULNESS: Final = 0.2
LISTENING: Final = 0.3
FRUITLESS_S_MAX: Final = 60.0
_LIMIT: Final = 10
_DELAY_MS: Final = 100
_SILENCE_S: Final = 0.2
_FRAMES_MAX: Final = 40
"""So much is received on one socket, then another one is opened."""
_EMPTY: Final = frozenset({"empty_queue", "timeout_occurred"})

Form: TypeAlias = Literal["raw", "padded", "rewritten"]
"""What a generation makes of an envelope: nothing, blanks behind it, the same JSON once more."""


class Picker(ABC):
    """A wallet with its recipient keys."""

    def __init__(
        self, name: str, wallet: Wallet, recipients: Sequence[Recipient], *, shared: bool = False
    ) -> None:
        self.name = name
        self.wallet = wallet
        self.recipients = list(recipients)
        self.shared = shared

    @property
    def mailboxes(self) -> list[Mailbox]:
        """Where to write to."""
        return [Mailbox(self.name, recipient) for recipient in self.recipients]

    @abstractmethod
    async def turn(self, load: WalletLoad) -> bool:
        """Pick up some of what waits: was there any? Raises: WalletError."""

    async def work(self, load: WalletLoad) -> None:
        """Take turns, whatever fails, until the run stops."""
        while not load.stopping:
            try:
                found = await self.turn(load)
            except WalletError:
                found = False
            if not found:
                await asyncio.sleep(max(load.pause_s, PAUSE_S))

    async def drain(self, load: WalletLoad) -> None:
        """Take turns until nothing waits, leased or not.

        After a kill a connection that was kept open fails when it is used next.

        Raises:
            WalletError: the mediator refused.
            TimeoutError: something waits, and for long none of it was handed out, or the mediator
                was away for as long.
        """
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(FRUITLESS_S_MAX) as bound:
            while True:
                try:
                    found = await self.turn(load)
                    if not found and not (await self.wallet.status()).message_count:
                        return
                except MediatorUnreachable:
                    await asyncio.sleep(PAUSE_S)
                    continue
                if found:
                    bound.reschedule(loop.time() + FRUITLESS_S_MAX)

    def request(self) -> Session:
        """A request is about to be sent."""
        return Session(time.time(), self.shared)

    def socket(self) -> Session:
        """A socket is about to be opened."""
        return Session(now_s := time.time(), self.shared, held_s=now_s)

    def got(self, load: WalletLoad, session: Session, envelope: bytes, form: Form) -> str:
        """Note a message that was handed over: its text."""
        text = self._text(envelope)
        load.ledger.offer(Offer(self.name, text, session, time.time()))
        sent = load.ledger.sent_to(self.name, text)
        if sent is not None and not _is_same(sent.envelope, envelope, form):
            load.ledger.changed.append(text)
        return text

    def _text(self, envelope: bytes) -> str:
        for recipient in self.recipients:
            opened = open_for(recipient.key, envelope)
            if opened is not None:
                return str(opened.message["content"])
            with suppress(NotAuthentic):
                message, _ = Recipient2(recipient.key, "", "key").unpack(envelope)
                return str(message["content"])
        raise AssertionError(f"{self.name} got what is for none of its keys")


class ByPickup2(Picker):
    """Pickup 2.0 over HTTP: delivery-request, messages-received."""

    async def turn(self, load: WalletLoad) -> bool:
        session = self.request()
        found = await self.wallet.fetch(_LIMIT)
        await self.acknowledge(load, session, found, self.wallet)
        return bool(found)

    async def acknowledge(
        self, load: WalletLoad, session: Session, found: Sequence[Picked], over: SpeaksPickup
    ) -> None:
        """Note what was handed over and acknowledge it, but for what is forgotten."""
        texts = {one.id: self.got(load, session, one.envelope, "padded") for one in found}
        forgetful = 0.0 if load.stopping else FORGETFULNESS
        known = {i: text for i, text in texts.items() if load.chance.random() >= forgetful}
        if known:
            asked_s = time.time()
            load.ledger.acknowledge(self.name, known.values())
            await over.received(list(known))
            load.ledger.remove(self.name, known.values(), time.time())
            if isinstance(over, Live):
                session.held_s = asked_s


class ByLiveMode(ByPickup2):
    """Live mode: asked for and pushed, acknowledged on the socket or over HTTP."""

    async def turn(self, load: WalletLoad) -> bool:
        session = self.socket()
        async with self.wallet.live() as live:
            return await self._listen(load, session, live, self.wallet)

    async def _listen(
        self, load: WalletLoad, session: Session, live: Live, wallet: ConnectedWallet
    ) -> bool:
        """Hear what is pushed and what was asked for in the order in which it comes."""
        any_found = False
        for _ in range(_FRAMES_MAX):
            await live.socket.say(delivery_request(_LIMIT, live.pickup))
            try:
                found = await live.next(_SILENCE_S)
            except NoAnswer:
                found = []
            if not found:
                if load.stopping:
                    break
                await asyncio.sleep(PAUSE_S)
                continue
            any_found = True
            over = load.chance.choice([live, wallet])
            await self.acknowledge(load, session, found, over)
        return any_found


class ByNewerPickup(ByLiveMode):
    """The same account in DIDComm v2, by its key alone: pickup 3.0 and 4.0, or live mode."""

    async def turn(self, load: WalletLoad) -> bool:
        newer = self._newer(load)
        if load.chance.random() >= LISTENING:
            session = self.request()
            found = await newer.fetch(_LIMIT)
            await self.acknowledge(load, session, found, newer)
            return bool(found)
        session = self.socket()
        async with newer.live() as live:
            return await self._listen(load, session, live, newer)

    def _newer(self, load: WalletLoad) -> Wallet2:
        """The wallet as it is in DIDComm v2, where its key is a DID."""
        was = self.wallet.connection
        connection = Connection2(was.key, "key", QUEUE, load.routing_did, was.http_url, was.ws_url)
        pickup = load.chance.choice([PICKUP_3, PICKUP_4])
        return Wallet2(connection, session=self.wallet.session, pickup=pickup)


class ByPickup1(Picker):
    """Pickup 1.0: batches, with and without a delay, and single messages as they are."""

    async def turn(self, load: WalletLoad) -> bool:
        session = self.request()
        delay_ms = load.chance.choice([None, _DELAY_MS])
        if load.chance.random() < 1 / 2:
            found = await self.wallet.batch(_LIMIT, delay_ms)
            for one in found:
                self.got(load, session, one.envelope, "rewritten")
            return bool(found)
        try:
            envelope = await self.wallet.noop(delay_ms)
        except ProblemReported as problem:
            if problem.code in _EMPTY:
                return False
            raise
        self.got(load, session, envelope, "raw")
        return True


class ByQueue1(Picker):
    """Aries queue 1.0: fetch-request, over HTTP and over sockets."""

    async def turn(self, load: WalletLoad) -> bool:
        if load.chance.random() < 1 / 2:
            return await self._fetch(load, self.request(), self.wallet)
        session = self.socket()
        async with self.wallet.socket() as socket:
            over = self.wallet.over(socket)
            found = await self._fetch(load, session, over)
            asked_s = time.time()
            await over.ping()  # meanwhile the pong says that all has arrived
            session.held_s = asked_s
            return found

    async def _fetch(self, load: WalletLoad, session: Session, over: Wallet) -> bool:
        found = await over.queue_fetch(_LIMIT)
        for one in found:
            self.got(load, session, one.envelope, "rewritten")
        return bool(found)


class ByReturnRoute(Picker):
    """Implicit pickup: one message as the answer of a request, or all of them over a socket."""

    async def turn(self, load: WalletLoad) -> bool:
        if load.chance.random() < 1 / 2:
            session = self.request()
            envelope = await self.wallet.implicit()
            if envelope is not None:
                self.got(load, session, envelope, "raw")
            return envelope is not None
        session = self.socket()
        async with self.wallet.implicit_socket() as socket:
            received = await self._hear(load, session, socket, _SILENCE_S)
        # What had been read when the socket was closed counts as arrived.
        return received + await self._hear(load, session, socket, 0) > 0

    async def _hear(
        self, load: WalletLoad, session: Session, socket: Socket, silence_s: float
    ) -> int:
        """Note what comes until nothing does, or it is enough for one socket: how much it was."""
        received = 0
        with suppress(NoAnswer, ConnectionLost):
            while received < _FRAMES_MAX or not silence_s:
                envelope = await socket.receive(silence_s)
                assert isinstance(envelope, bytes), envelope
                self.got(load, session, envelope, "raw")
                received += 1
        return received


class ByAll(Picker):
    """Another generation at every turn, on the same queue."""

    async def turn(self, load: WalletLoad) -> bool:
        generation = load.chance.choice(GENERATIONS)
        picker = generation(self.name, self.wallet, self.recipients, shared=self.shared)
        return await picker.turn(load)


class ByTwoDevices(ByAll):
    """Two at a time with the keys of one wallet, and each picks up what it can."""

    def __init__(self, name: str, wallet: Wallet, recipients: Sequence[Recipient]) -> None:
        super().__init__(name, wallet, recipients, shared=True)

    async def work(self, load: WalletLoad) -> None:
        other = ByPickup2(self.name, self.wallet, self.recipients, shared=True)
        await asyncio.gather(super().work(load), other.work(load))


GENERATIONS: Final[tuple[type[Picker], ...]] = (
    ByPickup2,
    ByNewerPickup,
    ByLiveMode,
    ByPickup1,
    ByQueue1,
    ByReturnRoute,
)


def delivery_request(limit: int, pickup: PickupVersion = PICKUP_2) -> Json:
    """A delivery-request whose answer comes among everything else."""
    kind = f"{NEW_PREFIX}{pickup.protocol}/delivery-request"
    return prepared({"@type": kind, pickup.limit: limit}, "all")


def _is_same(sent: bytes, got: bytes, form: Form) -> bool:
    if form == "rewritten":
        return bool(orjson.loads(sent) == orjson.loads(got))
    return sent == (got.rstrip(b" ") if form == "padded" else got)
