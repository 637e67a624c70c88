"""did:web of others: fetched over HTTPS from whatever host a stranger names (W3C did:web).

A stranger can thereby make this server open connections, so it is off by default, and when on it
goes through every gate here: a strict name, one look-up of it, public addresses only, a
connection to those very addresses, no redirect, a small answer in a short time, one fetch at a
time for one DID, and a bounded memory of successes and failures alike.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import aiohttp
from cachetools import TLRUCache
from yarl import URL

from http_edge.crypto.strict_json import JsonRefused, parse
from http_edge.crypto.tls import trusted_by_this_machine
from http_edge.dids.addresses import CheckedNames, Lookup, is_public, lookup_in_threads
from http_edge.dids.document import DID_CHARS_MAX, DidDocument, Fetch, read_document

PREFIX: Final = "did:web:"

# Names with a dot and a last label that begins with a letter: no address in any spelling
# ("127.1" and "0x7f.1" are addresses to some libraries), and no name of the local network.
_HOST: Final = re.compile(
    r"(?=.{1,253}\Z)(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+"
    r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?(?:%3A(?P<port>[0-9]{1,5}))?\Z",
    re.IGNORECASE | re.ASCII,
)
_SEGMENT: Final = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._~-]+\Z", re.ASCII)
_PORTS: Final = range(1, 65_536)
_HTTPS_PORT: Final = 443
_LOOKUPS_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class WebLimits:
    """What fetching documents may cost."""

    timeout_s: float = 5.0
    body_bytes_max: int = 65_536
    fetches_max: int = 32
    """Fetches under way at once; beyond, a DID does not resolve until one has ended."""
    entries_max: int = 1_000
    found_ttl_s: float = 300.0
    missing_ttl_s: float = 30.0
    allowed_hosts: frozenset[str] = frozenset()
    """Hosts to fetch from, with ``:port`` where it is not 443; empty is any host."""

    def allow(self, url: URL) -> bool:
        """May this document be fetched at all?"""
        host = url.host or ""
        named = host if url.port == _HTTPS_PORT else f"{host}:{url.port}"
        return not self.allowed_hosts or named in self.allowed_hosts


class WebDids:
    """Resolves did:web over the network; one for each event loop.

    ``lookup``, ``permitted`` and ``tls`` are there so that the same gates can be driven against a
    server on this machine; ``clock`` returns seconds and never goes backwards.
    """

    def __init__(
        self,
        limits: WebLimits | None = None,
        *,
        lookup: Lookup | None = None,
        permitted: Callable[[str], bool] = is_public,
        tls: ssl.SSLContext | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits or WebLimits()
        self._lookup = lookup or lookup_in_threads("did-web-names", _LOOKUPS_MAX)
        self._permitted = permitted
        self._tls = tls or trusted_by_this_machine()
        self._remembered: TLRUCache[str, DidDocument | None] = TLRUCache(
            maxsize=self._limits.entries_max, ttu=self._forget_at, timer=clock
        )
        self._under_way: dict[str, asyncio.Task[DidDocument | None]] = {}

    def known(self, did: str) -> DidDocument | Fetch | None:
        """What is remembered of ``did``; ``Fetch.NEEDED`` if only the network knows."""
        found = self._remembered.get(did, Fetch.NEEDED)
        if found is not Fetch.NEEDED:
            return found
        url = document_url(did)
        return None if url is None or not self._limits.allow(url) else Fetch.NEEDED

    async def resolve(self, did: str) -> DidDocument | None:
        """The document of ``did``, or None for whatever reason it cannot be had."""
        known = self.known(did)
        if not isinstance(known, Fetch):
            return known
        fetch = self._under_way.get(did)
        if fetch is None:
            if len(self._under_way) >= self._limits.fetches_max:
                return None
            fetch = asyncio.create_task(self._fetch_and_remember(did))
            fetch.add_done_callback(lambda _: self._under_way.pop(did))
            self._under_way[did] = fetch
        # Others wait for the same fetch: one who stops waiting must not end it for them.
        return await asyncio.shield(fetch)

    async def close(self) -> None:
        """End the fetches under way."""
        fetches = list(self._under_way.values())
        for fetch in fetches:
            fetch.cancel()
        await asyncio.gather(*fetches, return_exceptions=True)

    async def _fetch_and_remember(self, did: str) -> DidDocument | None:
        document = await self._fetch(did)
        self._remembered[did] = document
        return document

    async def _fetch(self, did: str) -> DidDocument | None:
        url = document_url(did)
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                body = None if url is None else await self._get(url)
            return None if body is None else read_document(did, parse(body))
        except (aiohttp.ClientError, OSError, TimeoutError, JsonRefused):
            return None

    async def _get(self, url: URL) -> bytes | None:
        """The body of a plain 200 answer of at most ``body_bytes_max``."""
        connector = aiohttp.TCPConnector(
            resolver=CheckedNames(self._lookup, self._permitted),
            use_dns_cache=False,
            ssl=self._tls,
            force_close=True,
        )
        async with (
            aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                # A compressed answer could unfold without bound: it stays folded, and no JSON.
                auto_decompress=False,
                headers={"Accept": "application/json", "Accept-Encoding": "identity"},
            ) as session,
            session.get(url, allow_redirects=False) as response,
        ):
            if response.status != 200:  # noqa: PLR2004 - "200 OK", and no other success
                return None
            body = bytearray()
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > self._limits.body_bytes_max:
                    return None
            return bytes(body)

    def _forget_at(self, _did: str, document: DidDocument | None, now: float) -> float:
        missing = document is None
        return now + (self._limits.missing_ttl_s if missing else self._limits.found_ttl_s)


def document_url(did: str) -> URL | None:
    """Where the document of a did:web is (W3C did:web, "Read"), or None if it is malformed."""
    if len(did) > DID_CHARS_MAX or not did.startswith(PREFIX):
        return None
    host, *path = did[len(PREFIX) :].split(":")
    match = _HOST.match(host)
    if match is None or not all(_SEGMENT.match(segment) for segment in path):
        return None
    port = int(match["port"] or _HTTPS_PORT)
    if port not in _PORTS:
        return None
    return URL.build(
        scheme="https",
        host=host.partition("%")[0],
        port=port,
        path="/" + "/".join([*(path or [".well-known"]), "did.json"]),
    )
