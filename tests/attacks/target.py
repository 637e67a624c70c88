"""The mediator as an attack sees it: connections from addresses of its own, a pace, an end."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from itertools import count
from typing import Final, Self
from urllib.parse import urlsplit

import aiohttp
import msgspec

from http_edge.clients.decentrl import Account, ClientError, Identity, MediatorClient, Sources
from http_edge.clients.didcomm import WalletError
from http_edge.clients.load.decentrl_agents import REGISTERED_S
from tests.bench.load import Connection, connect

JSON: Final = "application/json"
SOURCES: Final = Sources()
ACCEPTED: Final = "accepted"
_LAG_S_MAX: Final = 0.5
"""An attack that could not keep its pace for longer than this does not make up for it."""
_ANSWER_S_MAX: Final = 15.0
_REFUSAL_S_MAX: Final = 1.2
"""Longer than a mediator takes to refuse what comes too often, or a body that still comes."""
_FAILURES: Final = (OSError, TimeoutError, aiohttp.ClientError, ClientError, WalletError)


class Acquaintance(msgspec.Struct, frozen=True, kw_only=True):
    """What an attack knows of the honest pair; empty where the pair is of wallets.

    Attributes:
        sender_did: The sender.
        recipient_did: The recipient.
        contact_did: An identity that the recipient has a contract with, and that turned on it.
        contact_seed: Its signing seed.
    """

    sender_did: str = ""
    recipient_did: str = ""
    contact_did: str = ""
    contact_seed: bytes = b""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What may be chosen of an attack.

    Attributes:
        seconds: How long it attacks.
        events: Saved events of the attacks that query them.
        gives_way: Whether it takes of the cores only what is left; nothing may be left.
        known: What it knows of the honest pair.
    """

    seconds: float
    events: int = 20_000
    gives_way: bool = True
    known: Acquaintance = Acquaintance()


class AttackResult(msgspec.Struct, frozen=True):
    """What an attack did: how often, how many bytes, and how it was answered."""

    sent: int
    sent_bytes: int
    seconds: float
    answers: dict[str, int]


class Target:
    """One mediator, from the addresses of one attack; an async context manager."""

    def __init__(self, url: str, sources: list[str], options: Options) -> None:
        self.url: Final = url
        self.sources: Final = sources
        self.options: Final = options
        self.answers: Counter[str] = Counter()
        self.sent = 0
        self.sent_bytes = 0
        self.read_bytes = 0
        self._began_s = 0.0
        self._stack = AsyncExitStack()
        self._sources = (sources[number % len(sources)] for number in count())
        parts = urlsplit(url)
        self.host: Final = parts.hostname or ""
        self.port: Final = parts.port or 80
        self.authority: Final = parts.netloc

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def begin(self) -> None:
        """The attack begins now."""
        self._began_s = time.monotonic()

    @property
    def left_s(self) -> float:
        """Seconds until the attack has to end."""
        return self._began_s + self.options.seconds - time.monotonic()

    @property
    def is_over(self) -> bool:
        """Has the attack to end?"""
        return self.left_s <= 0

    def result(self) -> AttackResult:
        """What it did so far."""
        seconds = time.monotonic() - self._began_s
        return AttackResult(self.sent, self.sent_bytes, seconds, dict(self.answers))

    # ---- ways to the mediator

    def next_source(self) -> str:
        """An address of the attack; they take turns."""
        return next(self._sources)

    async def session(self) -> aiohttp.ClientSession:
        """A client of HTTP from the next address; it is closed with the target."""
        connector = aiohttp.TCPConnector(limit=0, local_addr=(self.next_source(), 0))
        timeout = aiohttp.ClientTimeout(total=_ANSWER_S_MAX)
        session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        return await self._stack.enter_async_context(session)

    async def client(self) -> MediatorClient:
        """A client of Decentrl from the next address."""
        client = MediatorClient(self.url, session=await self.session())
        return await self._stack.enter_async_context(client)

    async def registered(self, alias: str = "attacker") -> Account:
        """A new identity that is registered for a day."""
        client = await self.client()
        account = client.as_(Identity.create(alias, (await client.document()).did))
        await account.register(expires_at_s=SOURCES.now_ms() // 1000 + REGISTERED_S)
        return account

    async def stranger(self) -> Identity:
        """A new identity that the mediator does not know."""
        return Identity.create("stranger", (await (await self.client()).document()).did)

    async def stream(
        self, *, limit: int = 65_536
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection that speaks whatever the attack writes."""
        return await asyncio.open_connection(
            self.host, self.port, local_addr=(self.next_source(), 0), limit=limit
        )

    async def deaf(self, request: bytes) -> socket.socket:
        """A connection that has sent this and reads nothing; little fits between."""
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._stack.callback(connection.close)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.setblocking(False)
        connection.bind((self.next_source(), 0))
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(_ANSWER_S_MAX):
            await loop.sock_connect(connection, (self.host, self.port))
            await loop.sock_sendall(connection, request)
        return connection

    # ---- how often

    async def repeat(
        self, per_s: float, once: Callable[[], Awaitable[None]], *, at_once: int | None = None
    ) -> None:
        """Do it so often in a second until the end; failures count.

        At most ``at_once`` are under way: without it so many that the pace is kept though the
        mediator takes its time to refuse each.
        """
        due = self._schedule(per_s)

        async def worker() -> None:
            for due_s in due:
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
                if self.is_over:
                    return
                self.sent += 1
                await self.counted(once())

        workers = at_once or 16 + round(per_s * _REFUSAL_S_MAX)
        await asyncio.gather(*[worker() for _ in range(workers)])

    async def flood(
        self,
        per_s: float,
        bodies: Iterator[bytes],
        *,
        path: str = "/",
        media_type: str = JSON,
        at_once: int | None = None,
    ) -> None:
        """Post the bodies so often in a second over connections that are kept; see ``repeat``."""
        free: list[Connection] = []

        async def once() -> None:
            body = next(bodies)
            self.sent_bytes += len(body)
            while free and not free[-1].is_open:
                free.pop()
            endpoint = self.url + path
            connection = (
                free.pop() if free else await connect(endpoint, media_type, self.next_source())
            )
            try:
                async with asyncio.timeout(_ANSWER_S_MAX):
                    refusal = await connection.post(body)
            except BaseException:
                connection.close()
                raise
            self.answers[refusal or ACCEPTED] += 1
            free.append(connection)

        await self.repeat(per_s, once, at_once=at_once)

    async def read_pages(self, per_s: float, bodies: Iterator[bytes]) -> None:
        """Post so often in a second, and read whatever comes without keeping it."""
        session = await self.session()

        async def once() -> None:
            async with session.post(self.url, data=next(bodies)) as answer:
                async for chunk in answer.content.iter_any():
                    self.read_bytes += len(chunk)
            self.answers[ACCEPTED if answer.ok else str(answer.status)] += 1

        await self.repeat(per_s, once)

    async def counted(self, work: Awaitable[None]) -> None:
        """Wait for it; a failure of the connection or a refusal is an answer that counts."""
        try:
            await work
        except _FAILURES as error:
            status = getattr(error, "http_status", getattr(error, "status", ""))
            code = getattr(error, "code", "") or type(error).__name__
            self.answers[f"{status} {code}".strip()] += 1

    async def hold(self) -> None:
        """Keep what is open until the end."""
        await asyncio.sleep(max(0.0, self.left_s))

    def _schedule(self, per_s: float) -> Iterator[float]:
        due_s = time.monotonic()
        while True:
            yield due_s
            due_s = max(due_s + 1 / per_s, time.monotonic() - _LAG_S_MAX)
