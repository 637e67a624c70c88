"""Resolve DIDs to documents, depending on the method.

| DID | how |
|---|---|
| the mediator's own | static, never fetched |
| did:decentrl, did:key | parsed, and cached: every command of a sender needs it again |
| did:web of others | not at all, or over the network if that is switched on |
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from http_edge.crypto.mediator_keys import MediatorKeys
from http_edge.dids import decentrl, key, web
from http_edge.dids.document import DID_CHARS_MAX, DidDocument, Fetch, signing_key_id
from http_edge.dids.web import WebDids

ENTRIES_MAX: Final = 100_000
"""Parsed documents to cache, at about 1 KiB each."""
_CACHED_CHARS_MAX: Final = 512
"""Longer DIDs are parsed each time, in 70 us: a stranger can make up any number of them."""


class Resolver:
    """Resolves DIDs; ``web`` resolves foreign did:web, None switches that off."""

    def __init__(
        self,
        mediator_did: str,
        keys: MediatorKeys,
        *,
        web: WebDids | None = None,
        entries_max: int = ENTRIES_MAX,
    ) -> None:
        self._own = DidDocument(
            did=mediator_did,
            signing_keys={signing_key_id(mediator_did): keys.signing_public},
            pre_key=keys.pre_public,
        )
        self._web = web
        self._parsed = lru_cache(entries_max)(_parse)

    @property
    def fetches(self) -> bool:
        """Are some DIDs resolved over the network?"""
        return self._web is not None

    def resolve_now(self, did: str) -> DidDocument | Fetch | None:
        """The document; None if there is none; a ``Fetch`` if only the network knows it."""
        if did == self._own.did:
            return self._own
        # Handle these before the cache, or a flood of junk would evict useful entries.
        if len(did) > DID_CHARS_MAX or not did.isascii():
            return None
        if did.startswith(web.PREFIX):
            return None if self._web is None else self._web.known(did)
        return self._parsed(did) if len(did) <= _CACHED_CHARS_MAX else _parse(did)

    def known(self, did: str) -> DidDocument | None:
        """The document if it is known without the network."""
        found = self.resolve_now(did)
        return None if isinstance(found, Fetch) else found

    def why_unknown(self, did: str) -> str:
        """Which rule a DID breaks that is not known; for a reader, never with a part of it."""
        if did.startswith(decentrl.PREFIX):
            found = decentrl.read(did)
            return found if isinstance(found, str) else "does not resolve"
        if did.startswith(web.PREFIX) and self._web is None:
            return "is a did:web, which this mediator does not resolve"
        methods = (decentrl.PREFIX, key.PREFIX, web.PREFIX)
        return "does not resolve" if did.startswith(methods) else "is not of a known DID method"

    async def resolve(self, did: str) -> DidDocument | Fetch | None:
        """The document, fetched over the network if necessary; None if there is none.

        ``Fetch.NEEDED``: there was no slot for the fetch, but there may be one soon.
        """
        found = self.resolve_now(did)
        if found is not Fetch.NEEDED or self._web is None:
            return found
        return await self._web.resolve(did) or self.resolve_now(did)


def _parse(did: str) -> DidDocument | None:
    return decentrl.resolve(did) if did.startswith(decentrl.PREFIX) else key.resolve(did)
