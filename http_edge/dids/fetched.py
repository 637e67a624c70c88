"""Fetch DID documents over HTTPS from the host that a DID names.

Fetching lets a stranger make this server open connections. So it is off by default, and every fetch
passes these checks: a strict name, looked up once; public addresses of other machines only, and a
connection to exactly these; no redirect; a small answer in a short time; one fetch at a time for
one DID, few for one host, and a share for each client address that leaves room for others; and a
bounded cache of successes and failures alike.

A fetch is a task of its own: a request that stops waiting does not end the fetch. Its client
address pays for reading the document, which may be made to be costly.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any, Final, Generic, NamedTuple, TypeVar

import aiohttp
from cachetools import TLRUCache
from yarl import URL

from http_edge.crypto.tls import trusted_by_this_machine
from http_edge.dids.address_slots import AddressSlots
from http_edge.dids.addresses import (
    CheckedNames,
    Lookup,
    Permitted,
    is_public,
    lookup_in_threads,
    may_reach,
)
from http_edge.dids.bounded_answers import BoundedConnector, plain_session
from http_edge.dids.document import Fetch

_HTTPS_PORT: Final = 443
_PASSING_STATUS: Final = frozenset({429, *range(500, 600)})
"""Statuses of a host that may answer otherwise later."""
_BESIDE_BODY_BYTES: Final = 65_536
"""Bytes of an answer that are read beyond the largest body: its head, and marks of chunks."""
_Document = TypeVar("_Document")


class FetchedMethod(NamedTuple, Generic[_Document]):
    """A DID method whose documents are on the network.

    ``url`` returns the URL of a DID's document, None for a text that is no DID of the method.
    ``read`` parses the body from there, and returns None if it is not the DID's document.
    ``beside`` returns the URL of a second file that the body requires, or None; ``read`` gets that
    file as well, empty if there is none.
    """

    url: Callable[[str], URL | None]
    read: Callable[[str, bytes, bytes], _Document | None]
    beside: Callable[[str, bytes], URL | None] = lambda _did, _body: None


@dataclass(frozen=True, slots=True)
class WebLimits:
    """Limits of fetching documents."""

    timeout_s: float = 5.0
    body_bytes_max: int = 131_072
    fetches_max: int = 32
    """Fetches at once; beyond, a new DID does not resolve until a fetch has ended."""
    fetches_per_host_max: int = 16
    """Fetches from one host at once, so that no stranger can make this server flood a host, and no
    host takes up all fetches."""
    entries_max: int = 1_000
    found_ttl_s: float = 300.0
    missing_ttl_s: float = 30.0
    allowed_hosts: frozenset[str] = frozenset()
    """Hosts to fetch from, in lower case, with ``:port`` (443 need not be written); empty allows
    any host."""

    def allow(self, url: URL) -> bool:
        """Is the host of this URL allowed?"""
        host = url.raw_host or ""  # as settings have it; decoded, it may be none of IDNA
        names = {f"{host}:{url.port}"} | ({host} if url.port == _HTTPS_PORT else set())
        return not self.allowed_hosts or not self.allowed_hosts.isdisjoint(names)


async def _at_once(work: Callable[[], Any]) -> Any:
    return work()


class Caller(NamedTuple):
    """The requests that documents are fetched for; by default none is known of them.

    ``address`` returns the client address of the current request, or None if addresses have no
    shares. ``charge`` lets it pay for reading so many bytes. ``read`` runs the reading of a
    document, off the event loop.
    """

    address: Callable[[], str | None] = lambda: None
    charge: Callable[[int], None] = lambda _: None
    read: Callable[[Callable[[], Any]], Awaitable[Any]] = _at_once


NO_CALLER: Final = Caller()


@dataclass(eq=False, slots=True)
class _Slot:
    """The slot of a fetch among those at once.

    A thread that looks a name up cannot be stopped, so ``lookup`` holds the slot beyond the time
    limit of the fetch: there are as many threads as slots, and no look-up waits for a thread.
    """

    host: str | None
    address: str | None
    lookup: asyncio.Future[Sequence[str]] | None = None


class FetchedDids(Generic[_Document]):
    """Resolves DIDs of some methods over the network; one instance for each event loop.

    With ``lookup``, ``permitted`` and ``tls`` tests can run the same checks against a server on
    this machine. ``clock`` returns seconds and is monotonic.
    """

    def __init__(  # noqa: PLR0913 - the last four are for tests
        self,
        methods: Mapping[str, FetchedMethod[_Document]],
        limits: WebLimits | None = None,
        *,
        caller: Caller = NO_CALLER,
        lookup: Lookup | None = None,
        permitted: Permitted | None = None,
        tls: ssl.SSLContext | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """A resolver for ``methods``, each by the prefix of its DIDs."""
        self._methods = methods
        self._limits = limits or WebLimits()
        self._caller = caller
        self._lookup = lookup or lookup_in_threads("did-web-names", self._limits.fetches_max)
        self._permitted = permitted or self._is_permitted
        self._tls = tls or trusted_by_this_machine()
        self._remembered: TLRUCache[str, _Document | Fetch | None] = TLRUCache(
            maxsize=self._limits.entries_max, ttu=self._forget_at, timer=clock
        )
        self._lock = Lock()
        self._under_way: dict[str, asyncio.Task[_Document | None]] = {}
        self._slots = set[_Slot]()
        self._shares = AddressSlots(self._limits.fetches_max)
        self._line = asyncio.Lock()
        self._freed = asyncio.Event()

    def known(self, did: str) -> _Document | Fetch | None:
        """The cached result for ``did``, ``Fetch.FAILED`` if its host did not answer.

        If nothing is cached, ``Fetch.NEEDED``, or None if fetching is not allowed. Thread-safe.
        """
        with self._lock:
            found = self._remembered.get(did, Fetch.NEEDED)
        if found is not Fetch.NEEDED:
            return found
        return None if self._place(did) is None else Fetch.NEEDED

    async def resolve(self, did: str) -> _Document | None:
        """The document of ``did``, fetched if necessary; None if that fails for any reason."""
        known = self.known(did)
        if known is not Fetch.NEEDED:
            return None if isinstance(known, Fetch) else known
        fetch = self._begun(did)
        # Others may wait for the same fetch: a cancelled waiter must not end it for them.
        return None if fetch is None else await asyncio.shield(fetch)

    async def resolve_in_turn(self, did: str) -> _Document | None:
        """Like ``resolve``, but wait in line until the caller's address may take a slot.

        For the mediator's own work, which has one share for all agents that it is done for: any of
        them could take it again and again.
        """
        if self.known(did) is Fetch.NEEDED:
            async with self._line:
                address = self._caller.address()
                while address is not None and not self._shares.has_one_for(address):
                    self._freed.clear()
                    await self._freed.wait()
                if self.known(did) is Fetch.NEEDED:
                    self._begun(did)
        return await self.resolve(did)

    async def close(self) -> None:
        """End the fetches under way."""
        lookups = [slot.lookup for slot in self._slots if slot.lookup is not None]
        ending: list[asyncio.Future[Any]] = [*self._under_way.values(), *lookups]
        for each in ending:
            each.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    def _begun(self, did: str) -> asyncio.Task[_Document | None] | None:
        """The fetch of ``did``, begun if there is a slot; None if there is none."""
        fetch, place = self._under_way.get(did), self._place(did)
        if fetch is None and place is not None:
            method, url = place
            slot = _Slot(url.raw_host, self._caller.address())
            if not self._has_room(slot):
                return None
            self._slots.add(slot)
            self._shares.take(slot.address)
            fetch = asyncio.create_task(self._fetch_and_remember(did, method, url, slot))
            fetch.add_done_callback(lambda _: self._ended(did, slot))
            self._under_way[did] = fetch
        return fetch

    def _has_room(self, new: _Slot) -> bool:
        of_host = sum(slot.host == new.host for slot in self._slots)
        is_left = of_host < self._limits.fetches_per_host_max
        return is_left and self._shares.has_one_for(new.address)

    def _ended(self, did: str, slot: _Slot) -> None:
        del self._under_way[did]
        if slot.lookup is None:
            self._give_back(slot)
        else:
            slot.lookup.add_done_callback(lambda lookup: self._answered(lookup, slot))

    def _give_back(self, slot: _Slot) -> None:
        self._slots.remove(slot)
        self._shares.give_back(slot.address)
        self._freed.set()

    def _answered(self, lookup: asyncio.Future[Sequence[str]], slot: _Slot) -> None:
        self._give_back(slot)
        if not lookup.cancelled():
            lookup.exception()  # seen here, or a failure after the time limit would be logged

    def _place(self, did: str) -> tuple[FetchedMethod[_Document], URL] | None:
        """The method of ``did`` and the URL of its document; None if it may not be fetched."""
        method = self._methods.get(":".join(did.split(":", 2)[:2]) + ":")
        if method is None or (url := method.url(did)) is None or not self._limits.allow(url):
            return None
        return method, url

    def _is_permitted(self, address: str, port: int) -> bool:
        # A host and port that the operator has named may be a service of this machine.
        return is_public(address) if self._limits.allowed_hosts else may_reach(address, port)

    async def _look_up(self, slot: _Slot, host: str, port: int) -> Sequence[str]:
        slot.lookup = asyncio.ensure_future(self._lookup(host, port))
        return await asyncio.shield(slot.lookup)

    async def _fetch_and_remember(
        self, did: str, method: FetchedMethod[_Document], url: URL, slot: _Slot
    ) -> _Document | None:
        document = await self._fetch(did, method, url, slot)
        with self._lock:
            self._remembered[did] = document
        return None if isinstance(document, Fetch) else document

    async def _fetch(
        self, did: str, method: FetchedMethod[_Document], url: URL, slot: _Slot
    ) -> _Document | Fetch | None:
        read, lookup = self._caller.read, partial(self._look_up, slot)
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                body = await self._get(url, lookup)
                further = None if body is None else await read(partial(method.beside, did, body))
                beside = b"" if further is None else await self._get(further, lookup)
        except aiohttp.ClientConnectorCertificateError:
            return None
        except aiohttp.ClientConnectorDNSError as error:
            return Fetch.FAILED if error.errno == socket.EAI_AGAIN else None
        except (aiohttp.ClientError, OSError):  # includes TimeoutError
            return Fetch.FAILED
        if body is None or beside is None:
            return None
        document: _Document | None = await read(partial(method.read, did, body, beside))
        return document

    async def _get(self, url: URL, lookup: Lookup) -> bytes | None:
        """The body of a plain 200 answer of at most ``body_bytes_max``; None for another answer.

        Raises:
            aiohttp.ClientError, OSError: there was no answer, or one that may change soon.
        """
        connector = BoundedConnector(
            self._limits.body_bytes_max + _BESIDE_BODY_BYTES,
            resolver=CheckedNames(lookup, self._permitted),
            use_dns_cache=False,
            ssl=self._tls,
            force_close=True,
        )
        async with (
            plain_session(connector, {"Accept": "application/json"}) as session,
            session.get(url, allow_redirects=False) as response,
        ):
            if response.status in _PASSING_STATUS:
                raise OSError(f"{url.raw_host} answers {response.status}")
            if response.status != 200:  # noqa: PLR2004 - "200 OK", and no other success
                return None
            body = bytearray()
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > self._limits.body_bytes_max:
                    return None
            self._caller.charge(len(body))
            return bytes(body)

    def _forget_at(self, _did: str, document: _Document | Fetch | None, now: float) -> float:
        missing = document is None or document is Fetch.FAILED
        return now + (self._limits.missing_ttl_s if missing else self._limits.found_ttl_s)
