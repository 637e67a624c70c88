"""did:web: a DID whose document is at a URL that the DID names (W3C did:web)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, TypeAlias

from yarl import URL

from http_edge.crypto.strict_json import object_in
from http_edge.dids.document import DID_CHARS_MAX, DidDocument, read_document
from http_edge.dids.fetched import FetchedDids, FetchedMethod

WebDids: TypeAlias = FetchedDids[DidDocument]
"""Resolves did:web to the documents of Decentrl identities: signing keys and a pre-key."""

PREFIX: Final = "did:web:"

# Names with a dot and a last label that begins with a letter: no address in any spelling
# ("127.1" and "0x7f.1" are addresses to some libraries), and no name of the local network.
_HOST: Final = re.compile(
    r"(?=.{1,253}\Z)(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+"
    r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?(?:%3A(?P<port>[0-9]{1,5}))?\Z",
    re.IGNORECASE | re.ASCII,
)
# The characters of a DID (DID Core 3.1), without escapes.
_SEGMENT: Final = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]+\Z", re.ASCII)
_PORTS: Final = range(1, 65_536)
_HTTPS_PORT: Final = 443


def document_url(did: str) -> URL | None:
    """The URL of a did:web's document (W3C did:web, "Read"), or None if the DID is malformed."""
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


def _read(did: str, body: bytes, _beside: bytes) -> DidDocument | None:
    return read_document(did, object_in(body))


METHODS: Final[Mapping[str, FetchedMethod[DidDocument]]] = {
    PREFIX: FetchedMethod(document_url, _read)
}
"""How the documents of ``WebDids`` are fetched and read, by DID prefix."""
