"""A load on a running mediator: agents of either protocol, prepared messages, a closed loop.

The agents are ordinary clients: they register, write to each other and fetch what waits, as any
client may. Messages should be made before the clock runs. A message that is refused is
counted by its code and not sent again; whatever else meets a rate limit is repeated after a pause.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Final, NamedTuple, Protocol, Self, TypeAlias, TypeVar

import aiohttp
import msgspec
import orjson

from http_edge.clients.decentrl import (
    Account,
    Channel,
    CommandRefused,
    Identity,
    MediatorClient,
    Sources,
    signed_command,
)
from http_edge.clients.didcomm import MediatorRefused, Recipient, Wallet, fetch_invitation
from http_edge.clients.didcomm.connection import MEDIA_TYPE
from http_edge.crypto.key_agreement import new_key_pair
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.envelopes.messages import NEW_PREFIX, Json
from http_edge.dids.contract_profile import ContractRequest, accept_request, new_request

MESSAGE_BYTES: Final = 1024
PAGE_SIZE: Final = 100
SETUP_CONNECTIONS: Final = 16
REGISTERED_S: Final = 86_400
"""Agents of a load are registered for a day."""
ANSWER_S_MAX: Final = 30.0
_REPORTED_EVERY: Final = 64
_RATE_LIMITED: Final = 429
_PAUSES_MAX: Final = 20
_PAUSE_S: Final = 1.0
_PAUSE_S_MAX: Final = 10.0
_SUCCESS: Final = range(200, 300)
_CODE_BYTES_MAX: Final = 4_096
_NS_PER_S: Final = 1_000_000_000
_BASIC_MESSAGE: Final = NEW_PREFIX + "basicmessage/1.0/message"
_SOURCES: Final = Sources()

Progress: TypeAlias = Callable[[int], None]
"""Is called with how many are done so far."""
Post: TypeAlias = Callable[[bytes], Awaitable[str | None]]
"""Posts one message over a connection of its own: None if it was accepted, else why not."""
Member = TypeVar("Member")
Result = TypeVar("Result")


def no_progress(_done: int) -> None:
    """Progress that goes nowhere."""


class LoadResult(msgspec.Struct, frozen=True):
    """What a closed loop measured.

    Attributes:
        latencies_ns: Nanoseconds of each accepted message, packed unsigned 64-bit numbers.
        refused: How many messages were not accepted, by status and code.
        elapsed_s: Seconds from the first request to the last answer.
        cpu_s: CPU seconds that the process of the load spent meanwhile.
    """

    latencies_ns: bytes
    refused: dict[str, int]
    elapsed_s: float
    cpu_s: float

    @property
    def latencies(self) -> array[int]:
        """Nanoseconds of each accepted message."""
        return array("Q", self.latencies_ns)

    @property
    def accepted(self) -> int:
        """How many messages were accepted."""
        return len(self.latencies_ns) // 8


async def closed_loop(
    posts: Sequence[Post],
    bodies: Iterable[bytes],
    *,
    seconds_max: float,
    progress: Progress = no_progress,
) -> LoadResult:
    """Post all bodies, one at a time on each connection, until done or out of time.

    Raises: whatever a ``Post`` raises; those of this module count every failure as a refusal.
    """
    latencies, refused = array("Q"), Counter[str]()
    shared, clock, answered = iter(bodies), time.perf_counter_ns, 0
    started, cpu_started_s = clock(), time.process_time()
    deadline = started + int(seconds_max * _NS_PER_S)

    async def work(post: Post) -> None:
        nonlocal answered
        for body in shared:
            sent = clock()
            if sent > deadline:
                return
            refusal = await post(body)
            if refusal is None:
                latencies.append(clock() - sent)
            else:
                refused[refusal] += 1
            answered += 1
            if not answered % _REPORTED_EVERY:
                progress(answered)

    await asyncio.gather(*map(work, posts))
    return LoadResult(
        latencies.tobytes(),
        dict(refused),
        (clock() - started) / _NS_PER_S,
        time.process_time() - cpu_started_s,
    )


@asynccontextmanager
async def http_posts(
    endpoint: str, media_type: str, connections: int
) -> AsyncIterator[Sequence[Post]]:
    """So many keep-alive connections to an endpoint; a failed request counts as a refusal."""
    headers = {"Content-Type": media_type}
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=connections),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=ANSWER_S_MAX),
    ) as session:

        async def post(body: bytes) -> str | None:
            try:
                async with session.post(
                    endpoint, data=body, headers=headers, allow_redirects=False
                ) as response:
                    return refusal_of(response.status, await response.read())
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                return f"no answer: {type(error).__name__}"

        yield [post] * connections


def refusal_of(status: int, answer: bytes) -> str | None:
    """None for a success, else the status with the code that the answer names, if it does."""
    if status in _SUCCESS:
        return None
    try:
        said = orjson.loads(answer[:_CODE_BYTES_MAX])
    except orjson.JSONDecodeError:
        said = None
    code = (said.get("code") or said.get("error")) if isinstance(said, dict) else None
    return f"{status} {code}" if isinstance(code, str) else f"{status}"


@dataclass(slots=True)
class Drained:
    """What was taken out of queues: messages, and the time of each page with its removal."""

    messages: int = 0
    latencies_ns: array[int] = field(default_factory=lambda: array("Q"))
    elapsed_s: float = 0.0


class Agents(Protocol):
    """Registered agents of one protocol at one mediator, and what they do."""

    @property
    def endpoint(self) -> str:
        """The URL that messages are posted to."""

    @property
    def media_type(self) -> str:
        """The media type of messages."""

    def messages(self, count: int, size_bytes: int = MESSAGE_BYTES) -> Iterator[bytes]:
        """So many different messages of so many bytes, the recipients taking turns."""

    async def drain(
        self,
        *,
        connections: int,
        page_size: int = PAGE_SIZE,
        progress: Progress = no_progress,
    ) -> Drained:
        """Fetch and acknowledge everything that waits for the agents.

        Raises: ClientError, WalletError.
        """

    async def leave(self) -> None:
        """Withdraw what can be withdrawn. Raises: ClientError, WalletError."""


class Pair(NamedTuple):
    """A sender, and a recipient who keeps a contract with it."""

    sender: Identity
    recipient: Account


@dataclass(frozen=True, slots=True)
class DecentrlAgents:
    """Recipients of Decentrl messages, each with a sender of its own; see ``Agents``."""

    client: MediatorClient
    pairs: Sequence[Pair]
    media_type: str = "application/json"

    @classmethod
    async def registered(
        cls, client: MediatorClient, count: int, progress: Progress = no_progress
    ) -> Self:
        """Register so many recipients, each with a contract of its sender.

        Raises: ClientError.
        """
        mediator = await client.document()

        async def pair(number: int) -> Pair:
            sender = Identity.create(f"sender-{number}", mediator.did)
            recipient = client.as_(Identity.create(f"recipient-{number}", mediator.did))
            until_s = _SOURCES.now_ms() // 1000 + REGISTERED_S
            await _patiently(lambda: recipient.register(expires_at_s=until_s))
            signed = _contract(sender, recipient.identity, until_s)
            await _patiently(lambda: recipient.save_communication_contract(signed))
            return Pair(sender, recipient)

        return cls(client, await _each(range(count), pair, SETUP_CONNECTIONS, progress))

    @property
    def endpoint(self) -> str:
        """See ``Agents``."""
        return str(self.client.transport.at("/"))

    def message(self, pair: Pair, payload: str) -> bytes:
        """A signed TWO_WAY_PRIVATE command."""
        return signed_command(
            pair.sender,
            Channel.TWO_WAY_PRIVATE,
            pair.recipient.identity.did,
            payload,
            now_ms=_SOURCES.now_ms(),
            nonce=_SOURCES.new_nonce(),
        )

    def messages(self, count: int, size_bytes: int = MESSAGE_BYTES) -> Iterator[bytes]:
        """See ``Agents``."""
        payload = "x" * size_bytes
        return (self.message(pair, payload) for pair in islice(cycle(self.pairs), count))

    async def drain(
        self,
        *,
        connections: int,
        page_size: int = PAGE_SIZE,
        progress: Progress = no_progress,
    ) -> Drained:
        """See ``Agents``."""

        async def page(pair: Pair) -> int:
            waiting = await _patiently(
                lambda: pair.recipient.query_pending_events(page_size=page_size)
            )
            ids = [event.id for event in waiting.items]
            if ids:
                await _patiently(lambda: pair.recipient.acknowledge_pending_events(ids))
            return len(ids)

        return await _drained(self.pairs, page, connections, progress)

    async def leave(self) -> None:
        """See ``Agents``: registrations end by themselves."""


class Mailbox(NamedTuple):
    """A wallet and the one key that it has registered at the mediator."""

    wallet: Wallet
    recipient: Recipient


@dataclass(frozen=True, slots=True)
class DidCommAgents:
    """Wallets with one key each, written to by a sender without a mediator; see ``Agents``."""

    mailboxes: Sequence[Mailbox]
    sender: KeyPair = field(default_factory=KeyPair.new, repr=False)
    media_type: str = MEDIA_TYPE

    @classmethod
    async def registered(
        cls,
        session: aiohttp.ClientSession,
        url: str,
        count: int,
        progress: Progress = no_progress,
    ) -> Self:
        """Connect so many wallets by the invitation of the mediator, each with a key of its own.

        Raises: WalletError.
        """
        invitation = await fetch_invitation(session, f"{url.rstrip('/')}/invitation")

        async def mailbox(number: int) -> Mailbox:
            wallet = await _patiently(
                lambda: Wallet.connect(invitation, session=session, label=f"load-{number}")
            )
            return Mailbox(wallet, await _patiently(wallet.new_recipient))

        return cls(await _each(range(count), mailbox, SETUP_CONNECTIONS, progress))

    @property
    def endpoint(self) -> str:
        """See ``Agents``."""
        return self.mailboxes[0].recipient.address.endpoint

    def messages(self, count: int, size_bytes: int = MESSAGE_BYTES) -> Iterator[bytes]:
        """See ``Agents``: forwards, about three times as long as the messages sealed in them."""
        for number, mailbox in enumerate(islice(cycle(self.mailboxes), count)):
            message: Json = {"@type": _BASIC_MESSAGE, "@id": f"message-{number}", "content": ""}
            message["content"] = "x" * max(0, size_bytes - len(orjson.dumps(message)))
            yield mailbox.recipient.address.seal(message, self.sender)

    async def drain(
        self,
        *,
        connections: int,
        page_size: int = PAGE_SIZE,
        progress: Progress = no_progress,
    ) -> Drained:
        """See ``Agents``."""

        async def page(mailbox: Mailbox) -> int:
            picked = await _patiently(lambda: mailbox.wallet.fetch(page_size))
            ids = [one.id for one in picked]
            if ids:
                await _patiently(lambda: mailbox.wallet.received(ids))
            return len(ids)

        return await _drained(self.mailboxes, page, connections, progress)

    async def leave(self) -> None:
        """See ``Agents``: the keys leave the keylists."""
        for wallet, recipient in self.mailboxes:
            remove = [recipient.key.public]
            await _patiently(lambda w=wallet, r=remove: w.update_keylist(remove=r))  # type: ignore[misc]


def _contract(sender: Identity, recipient: Identity, until_s: int) -> dict[str, object]:
    """A contract of both, signed by both (DCTRL-0003), without the flow that leads to one."""
    signed_request = new_request(
        sender.did, recipient.did, until_s, sender.signing_seed, new_key_pair().public
    )
    request = ContractRequest(sender.did, recipient.did, until_s, signed_request)
    return accept_request(request, recipient.signing_seed, new_key_pair().public)


async def _each(
    members: Iterable[Member],
    work: Callable[[Member], Awaitable[Result]],
    connections: int,
    progress: Progress,
) -> list[Result]:
    """The results for all members in their order, a few at a time."""
    results: dict[int, Result] = {}
    shared = iter(enumerate(members))

    async def worker() -> None:
        for number, member in shared:
            results[number] = await work(member)
            progress(len(results))

    await asyncio.gather(*[worker() for _ in range(connections)])
    return [results[number] for number in sorted(results)]


async def _drained(
    members: Iterable[Member],
    page: Callable[[Member], Awaitable[int]],
    connections: int,
    progress: Progress,
) -> Drained:
    """Empty all queues; ``page`` takes one page of one of them: how many messages it had."""
    drained, clock = Drained(), time.perf_counter_ns
    started = clock()

    async def empty(member: Member) -> None:
        while True:
            began = clock()
            count = await page(member)
            if not count:
                return
            drained.latencies_ns.append(clock() - began)
            drained.messages += count
            progress(drained.messages)

    await _each(members, empty, connections, no_progress)
    drained.elapsed_s = (clock() - started) / _NS_PER_S
    return drained


async def _patiently(once: Callable[[], Awaitable[Result]]) -> Result:
    """What ``once`` returns, repeated after a pause while a rate limit refuses it."""
    for _ in range(_PAUSES_MAX):
        try:
            return await once()
        except CommandRefused as error:
            if error.http_status != _RATE_LIMITED:
                raise
            pause_s = _PAUSE_S if error.retry_after_s is None else error.retry_after_s
        except MediatorRefused as error:
            if error.status != _RATE_LIMITED:
                raise
            pause_s = _PAUSE_S
        await _SOURCES.sleep(min(pause_s, _PAUSE_S_MAX))
    return await once()
