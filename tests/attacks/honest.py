"""The honest pair: 20 messages of 1 KiB in a second, and how long each takes beside an attack.

The schedule is open: a message is due at its time whether or not those before it were answered, and
its latencies count from then. Each comes over a connection of its own, as from a phone that wakes
up, so that what newcomers feel counts too.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import aiohttp
import orjson
from aiohttp import web

from http_edge.clients.decentrl import (
    Account,
    ClientError,
    Identity,
    MediatorClient,
    MessagesArrived,
    Reconnected,
    Sources,
)
from http_edge.clients.didcomm import (
    ConnectionLost,
    Live,
    Recipient,
    Wallet,
    WalletError,
    fetch_invitation,
)
from http_edge.clients.load.agents import MESSAGE_BYTES
from http_edge.clients.load.decentrl_agents import REGISTERED_S, DecentrlAgents, contract_of
from http_edge.didcomm.envelopes.messages import NEW_PREFIX
from http_edge.didcomm.envelopes.v1.version import MEDIA_TYPE
from tests.attacks.target import JSON, Acquaintance
from tests.bench.load import connect

ADDRESS: Final = "127.0.0.1"
"""Where the pair is; attacks are elsewhere."""
MESSAGES_PER_S: Final = 20
"""So many that the p99 of a phase of 15 s is not its slowest message but the third of 300."""
_ANSWER_S_MAX: Final = 30.0
_NS_PER_S: Final = 1_000_000_000

MakeMessage: TypeAlias = Callable[[int], bytes]


@dataclass(slots=True)
class Felt:
    """What the pair felt in one phase.

    Attributes:
        accepted_ns: From when a message was due until it was accepted, of each.
        delivered_ns: From when it was due until its recipient had it, of each.
        refused: What was not accepted, or lost, by how.
        missing: Messages that were accepted and did not arrive within 30 s.
    """

    accepted_ns: array[int] = field(default_factory=lambda: array("Q"))
    delivered_ns: array[int] = field(default_factory=lambda: array("Q"))
    refused: Counter[str] = field(default_factory=Counter)
    missing: int = 0


class HonestPair:
    """A sender, a recipient that acknowledges, and the clock beside them."""

    def __init__(
        self, url: str, media_type: str, make: MakeMessage, known: Acquaintance | None = None
    ) -> None:
        """``make`` makes the message with a number, which ``arrived`` is called with.

        ``known`` is what an attack may know of the pair.
        """
        self.known: Final = known or Acquaintance()
        self._url = url
        self._media_type = media_type
        self._make = make
        self._number = 0
        self._due_ns: dict[int, int] = {}
        self._felt = Felt()
        self._settled = asyncio.Event()

    def arrived(self, number: int) -> None:
        """The recipient has this message, for the first time or again."""
        due_ns = self._due_ns.pop(number, None)
        if due_ns is not None:
            self._felt.delivered_ns.append(time.perf_counter_ns() - due_ns)
        self._settle()

    def hurt(self, how: str) -> None:
        """Something else than a message was refused or lost."""
        self._felt.refused[how] += 1

    async def run(self, seconds: float) -> Felt:
        """One phase of so many seconds; it ends when its last message arrived or was lost."""
        self._felt = felt = Felt()
        started_ns = time.perf_counter_ns()
        async with asyncio.TaskGroup() as sending:
            for number in range(max(1, int(seconds * MESSAGES_PER_S))):
                due_ns = started_ns + number * _NS_PER_S // MESSAGES_PER_S
                await asyncio.sleep(max(0.0, (due_ns - time.perf_counter_ns()) / _NS_PER_S))
                sending.create_task(self._one(due_ns))
        self._settled.clear()
        self._settle()
        try:
            async with asyncio.timeout(_ANSWER_S_MAX):
                await self._settled.wait()
        except TimeoutError:
            felt.missing = len(self._due_ns)
            self._due_ns.clear()
        return felt

    async def _one(self, due_ns: int) -> None:
        number = self._number = self._number + 1
        self._due_ns[number] = due_ns
        refusal: str | None = None
        try:
            async with asyncio.timeout(_ANSWER_S_MAX):
                connection = await connect(self._url, self._media_type, ADDRESS)
                try:
                    refusal = await connection.post(self._make(number))
                finally:
                    connection.close()
        except (OSError, TimeoutError) as error:
            refusal = f"no answer: {type(error).__name__}"
        if refusal is None:
            self._felt.accepted_ns.append(time.perf_counter_ns() - due_ns)
        else:
            self._felt.refused[refusal] += 1
            self._due_ns.pop(number, None)
        self._settle()

    def _settle(self) -> None:
        if not self._due_ns:
            self._settled.set()


@asynccontextmanager
async def message_pair(url: str) -> AsyncIterator[HonestPair]:
    """A sender of Decentrl messages, and their recipient at a socket. Raises: ClientError."""
    async with MediatorClient(url) as client:
        agents = await DecentrlAgents.registered(client, 1)
        (pair,) = agents.pairs

        def make(number: int) -> bytes:
            return agents.message(pair, str(number).ljust(MESSAGE_BYTES, "."))

        contact = Identity.create("contact", pair.sender.mediator_did)
        until_s = Sources().now_ms() // 1000 + REGISTERED_S
        contract = contract_of(contact, pair.recipient.identity, until_s)
        await pair.recipient.save_communication_contract(contract)
        known = Acquaintance(
            sender_did=pair.sender.did,
            recipient_did=pair.recipient.identity.did,
            contact_did=contact.did,
            contact_seed=contact.signing_seed,
        )
        honest = HonestPair(agents.endpoint, JSON, make, known)
        async with (
            pair.recipient.socket() as notices,
            _beside(_take(pair.recipient, aiter(notices), honest)),
        ):
            yield honest


async def _take(recipient: Account, notices: AsyncIterator[object], honest: HonestPair) -> None:
    """Take what arrives at the socket and acknowledge it, without waiting for that."""
    sender_did = honest.known.sender_did
    async with asyncio.TaskGroup() as acknowledging:
        async for notice in notices:
            if isinstance(notice, Reconnected):
                honest.hurt("socket lost")
            elif isinstance(notice, MessagesArrived):
                # What others send is left where it is: as if its owner had no time for it.
                ours = [event for event in notice.events if event.sender_did == sender_did]
                for event in ours:
                    honest.arrived(int(event.payload.rstrip(".")))
                ids = [event.id for event in ours]
                acknowledging.create_task(_acknowledged(recipient, ids, honest))


async def _acknowledged(recipient: Account, ids: list[str], honest: HonestPair) -> None:
    try:
        await recipient.acknowledge_pending_events(ids)
    except ClientError as error:
        honest.hurt(f"acknowledgement: {getattr(error, 'code', type(error).__name__)}")


@asynccontextmanager
async def endpoint_pair(url: str) -> AsyncIterator[HonestPair]:
    """A stranger that forwards, and a wallet with an endpoint. Raises: WalletError."""
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        got: asyncio.Queue[bytes] = asyncio.Queue()
        endpoint = await stack.enter_async_context(_endpoint(got))
        invitation = await fetch_invitation(session, f"{url}/invitation")
        wallet = await Wallet.connect(
            invitation, session=session, endpoint=endpoint, label="honest"
        )
        recipient = await wallet.new_recipient()
        honest = _forwarding(recipient)
        await stack.enter_async_context(_beside(_open(got, recipient, honest)))
        yield honest


@asynccontextmanager
async def live_pair(url: str) -> AsyncIterator[HonestPair]:
    """A stranger that forwards, and a wallet in live mode at a socket. Raises: WalletError."""
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        wallet = await Wallet.connect(
            await fetch_invitation(session, f"{url}/invitation"), session=session, label="honest"
        )
        recipient = await wallet.new_recipient()
        live = await stack.enter_async_context(wallet.live())
        honest = _forwarding(recipient)
        await stack.enter_async_context(_beside(_take_live(live, recipient, honest)))
        yield honest


def _forwarding(recipient: Recipient) -> HonestPair:
    """A pair whose messages are forwards for this recipient."""

    def make(number: int) -> bytes:
        text = str(number).ljust(MESSAGE_BYTES, ".")
        return recipient.address.seal({"@type": _BASIC_MESSAGE, "@id": "1", "content": text})

    return HonestPair(recipient.address.endpoint, MEDIA_TYPE, make)


def _read(recipient: Recipient, envelope: bytes, honest: HonestPair) -> None:
    """Open a message that arrived, and say so."""
    honest.arrived(int(str(recipient.unpack(envelope).message["content"]).rstrip(".")))


async def _take_live(live: Live, recipient: Recipient, honest: HonestPair) -> None:
    """Take what is delivered and acknowledge it, without waiting for that."""

    async def acknowledged(message_id: str) -> None:
        try:
            await live.received([message_id])
        except WalletError as error:
            honest.hurt(f"acknowledgement: {type(error).__name__}")

    async with asyncio.TaskGroup() as acknowledging:
        try:
            async for picked in live:
                _read(recipient, picked.envelope, honest)
                acknowledging.create_task(acknowledged(picked.id))
        except ConnectionLost:
            honest.hurt("socket lost")


_BASIC_MESSAGE: Final = NEW_PREFIX + "basicmessage/1.0/message"


@asynccontextmanager
async def _endpoint(got: asyncio.Queue[bytes]) -> AsyncIterator[str]:
    """An endpoint that takes whatever is posted; yields its URL."""

    async def take(request: web.Request) -> web.Response:
        got.put_nowait(await request.read())
        return web.Response(status=202)

    app = web.Application()
    app.router.add_post("/", take)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, ADDRESS, 0)
        await site.start()
        yield f"http://{ADDRESS}:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


async def _open(got: asyncio.Queue[bytes], recipient: Recipient, honest: HonestPair) -> None:
    while True:
        envelope = await got.get()
        if orjson.loads(envelope).get("@type") is None:
            _read(recipient, envelope, honest)


@asynccontextmanager
async def _beside(work: Awaitable[None]) -> AsyncIterator[None]:
    """Do the work while the block runs; its failure is raised at the end."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        if not task.done():
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
