"""The DID documents of other agents: which keys they receive with, and where (DIDComm v1).

Agents of ten years write them in many ways: ``publicKey`` or ``verificationMethod``; keys in
base58, as did:key or by reference; services of type ``IndyAgent`` (RFC 0160) or
``did-communication`` (RFC 0067); endpoints as text, object or list, and for an agent without one
nothing, "", null or ``didcomm:transport/queue``. All of it ends in one ``PeerDocument``.

A document is what a stranger says of itself. Whether it may say so (a signature, the key that
packed the message) is checked by the handshake, as is the hash in a did:peer:1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Final
from urllib.parse import urlsplit

import msgspec

from http_edge.crypto.encoding import ED25519_PREFIX, KEY_BYTES, b64decode, multibase_decode
from http_edge.didcomm.envelopes.keys import curve_public, read_key
from http_edge.didcomm.envelopes.messages import AgentAccount, Json
from http_edge.didcomm.envelopes.peer_dids import (
    DID_CHARS_MAX,
    PEER_0,
    PEER_2,
    PEER_4,
    peer2_document,
    peer4_document,
    peer4_short,
)

SERVICES_MAX: Final = 16
"""Services that are looked at; wallets list one or two."""
KEYS_MAX: Final = 8
"""Recipient keys, and routing keys, of one service. Each recipient key is a decryption for the
sender, each routing key one more envelope around every message. With more it is not used."""
METHODS_MAX: Final = 64
"""Keys of one document that are looked at, each a decoding and a map to another curve. Wallets
list one to three; those of a did:peer:2 count threefold, once for each spelling of their id."""
ENDPOINT_CHARS_MAX: Final = 2048
"""A longer endpoint counts as none; servers refuse request lines of such length."""

_V1_TYPES: Final = frozenset({"did-communication", "IndyAgent"})
_KEY_LISTS: Final = ("publicKey", "verificationMethod", "authentication", "keyAgreement")
_SOV: Final = "did:sov:"
_DID_KEY: Final = "did:key:"
_DID: Final = re.compile(r"[!-~]+\Z")
_URL: Final = re.compile(r"(?:https?|wss?)://[!-~]+\Z", re.IGNORECASE)


class PeerDocument(msgspec.Struct, frozen=True):
    """What is needed of an agent's document: Ed25519 keys of 32 bytes, and one endpoint.

    ``recipient_keys`` has one at least. ``routing_keys`` are in the order of the document, the
    last one outermost. ``endpoint`` is an http(s) or ws(s) URL; empty for an agent that has none
    and fetches its messages.
    """

    did: str
    recipient_keys: tuple[bytes, ...]
    routing_keys: tuple[bytes, ...]
    endpoint: str

    def is_of(self, account: AgentAccount) -> bool:
        """Was a message of this account packed by a key of the document?"""
        return account.address in self.recipient_keys


def read_document(did: str, document: object) -> PeerDocument | None:
    """What a document says of ``did``, an agent's DID of any method, qualified or not.

    None: it is no document, it is another DID's, or there is no usable key in it.
    """
    if not isinstance(document, dict) or len(did) > DID_CHARS_MAX or not _DID.match(did):
        return None
    named = document.get("id", did)
    if not isinstance(named, str) or not _is_same(named, did):
        return None
    return _Reading(did, document).result()


def resolve(did: str) -> PeerDocument | None:
    """What a DID says of itself: did:peer:0, 2, and 4 in its long form, did:key; else None."""
    if did.startswith((_DID_KEY, PEER_0)):
        key = _usable(read_key(_DID_KEY + did.removeprefix(_DID_KEY).removeprefix(PEER_0)))
        return None if key is None else PeerDocument(did, (key,), (), "")
    if did.startswith(PEER_2):
        return read_document(did, peer2_document(did))
    if did.startswith(PEER_4):
        return read_document(did, peer4_document(did))
    return None


class _Reading:
    """One document while it is read."""

    def __init__(self, did: str, document: Json) -> None:
        self._did = did
        self._document = document
        self._keys = self._methods()

    def result(self) -> PeerDocument | None:
        """The first service in the order of preference that has an endpoint, else the first.

        A document without any service of this kind belongs to an agent that has no endpoint. One
        whose services cannot be read is refused: messages would not reach it.
        """
        services = sorted(self._services(), key=_preference)
        if not services:
            keys = self._own_keys()
            return PeerDocument(self._did, keys, (), "") if keys else None
        readable = [found for service in services if (found := self._service(service))]
        return next((found for found in readable if found.endpoint), next(iter(readable), None))

    def _methods(self) -> Mapping[str, bytes]:
        """The document's Ed25519 keys by the last part of their ids."""
        listed = chain.from_iterable(_list(self._document.get(name)) for name in _KEY_LISTS)
        found: dict[str, bytes] = {}
        for method in islice(listed, METHODS_MAX):
            key = _material(method) if isinstance(method, dict) else None
            key_id = method.get("id") if isinstance(method, dict) else None
            if isinstance(key_id, str) and key is not None:
                found.setdefault(key_id.partition("#")[2] or key_id, key)
        return found

    def _own_keys(self) -> tuple[bytes, ...]:
        """The keys that authenticate the agent; without any its first key.

        Not all keys of the document: old agents list the keys of their mediators too.
        """
        found = []
        for entry in islice(_list(self._document.get("authentication")), KEYS_MAX):
            reference = (
                entry.get("publicKey", entry.get("id")) if isinstance(entry, dict) else entry
            )
            key = self._key(reference)
            if key is not None and key not in found:
                found.append(key)
        return tuple(found) or tuple(islice(self._keys.values(), 1))

    def _key(self, reference: object) -> bytes | None:
        """The key that a service names: itself, or the id of one in this document."""
        if not isinstance(reference, str) or len(reference) > DID_CHARS_MAX:
            return None
        key = read_key(reference)
        if key is not None:
            return _usable(key)
        subject, _, fragment = reference.partition("#")
        if fragment and subject and not _is_same(subject, self._did):
            return None
        return self._keys.get(fragment or reference)

    def _services(self) -> Iterator[Json]:
        for service in islice(_list(self._document.get("service")), SERVICES_MAX):
            if isinstance(service, dict) and (_is_v1(service) or "recipientKeys" in service):
                yield service

    def _service(self, service: Json) -> PeerDocument | None:
        """What a service says, or None where a key of it cannot be read."""
        listed = _list(service.get("recipientKeys"))
        recipients = self._all_keys(listed) if listed else self._own_keys()
        endpoint, inner_routing = _endpoint(service.get("serviceEndpoint"))
        routing = self._all_keys(_list(service.get("routingKeys")) or inner_routing)
        if not recipients or routing is None:
            return None
        return PeerDocument(self._did, recipients, routing, endpoint)

    def _all_keys(self, references: list[object]) -> tuple[bytes, ...] | None:
        keys = [self._key(reference) for reference in references[: KEYS_MAX + 1]]
        readable = tuple(key for key in keys if key is not None)
        return readable if len(readable) == len(references) <= KEYS_MAX else None


def _is_same(one: str, other: str) -> bool:
    """Do two spellings name one DID: with did:sov: or without, did:peer:4 long or short?"""
    return peer4_short(one.removeprefix(_SOV)) == peer4_short(other.removeprefix(_SOV))


def _is_v1(service: Json) -> bool:
    return service.get("type") in _V1_TYPES if isinstance(service.get("type"), str) else False


def _preference(service: Json) -> tuple[bool, float]:
    """Sorts the types of DIDComm v1 first, then by priority: the lowest number is used first."""
    priority = service.get("priority")
    return not _is_v1(service), priority if isinstance(priority, int | float) else 0


def _endpoint(value: object) -> tuple[str, list[object]]:
    """The URL of an endpoint in any of its forms, and the routing keys that stand beside it."""
    for each in value[:SERVICES_MAX] if isinstance(value, list) else [value]:
        uri = each.get("uri") if isinstance(each, dict) else each
        if is_url(uri):
            return str(uri), _list(each.get("routingKeys")) if isinstance(each, dict) else []
    return "", []


def is_url(text: object) -> bool:
    """Is a text a URL that messages can be sent to, as far as that is seen by it?"""
    if not isinstance(text, str) or len(text) > ENDPOINT_CHARS_MAX or not _URL.match(text):
        return False
    try:
        parts = urlsplit(text)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets that do not match, a port that is none
        return False


def _material(method: Json) -> bytes | None:
    """The Ed25519 key of a verification method, in whichever form it stands there."""
    match method:
        case {"type": str(kind)} if kind.startswith("X25519"):
            return None
        case {"publicKeyBase58": str(text)}:
            return _usable(read_key(text))
        case {"publicKeyMultibase": str(text)}:
            return _usable(_multibase(text))
        case {"publicKeyJwk": {"kty": "OKP", "crv": "Ed25519", "x": str(text)}}:
            return _usable(_jwk(text))
        case _:
            return None


def _multibase(text: str) -> bytes | None:
    try:
        return multibase_decode(text, ED25519_PREFIX)
    except ValueError:
        # Early Ed25519VerificationKey2020: the bare key behind the z, without its codec.
        return read_key(text[1:]) if text.startswith("z") else None


def _jwk(text: str) -> bytes | None:
    try:
        key = b64decode(text) if len(text) <= 2 * KEY_BYTES else b""
    except ValueError:
        return None
    return key if len(key) == KEY_BYTES else None


def _usable(key: bytes | None) -> bytes | None:
    """A key that a message can be packed to, or None."""
    return None if key is None or curve_public(key) is None else key


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
