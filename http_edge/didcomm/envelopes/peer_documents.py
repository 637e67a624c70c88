"""DID documents of DIDComm v1: recipient keys and endpoints, as agents write them and as we do.

Agents of ten years write documents in many ways: ``publicKey`` or ``verificationMethod``; keys in
base58, as did:key or by reference; services of type ``IndyAgent`` (RFC 0160) or
``did-communication`` (RFC 0067); endpoints as text, object or list, and for an agent without one
nothing, "", null or ``didcomm:transport/queue``. All are read into one ``PeerDocument``.

A document contains a stranger's claims. The handshake checks them, by a signature or by the key
that packed the message; no module checks the hash in a did:peer:1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Final, TypeAlias
from urllib.parse import urlsplit

import msgspec

from http_edge.crypto.encoding import (
    ED25519_PREFIX,
    KEY_BYTES,
    b64decode_exactly,
    multibase_decode,
)
from http_edge.didcomm.envelopes.keys import DID_KEY, base58, curve_public, read_key
from http_edge.didcomm.envelopes.messages import AgentAccount, Json
from http_edge.didcomm.envelopes.peer_dids import (
    DID_CHARS_MAX,
    PEER_0,
    peer2_document,
    peer4_document,
    peer4_short,
)

SERVICES_MAX: Final = 16
"""Services, and endpoints of one service, that are read; wallets list one or two."""
KEYS_MAX: Final = 8
"""Recipient keys of one service; each costs the sender an encryption. A service with more is not
used."""
ROUTING_KEYS_MAX: Final = 3
"""Routing keys of one service of DIDComm v1 or v2. Each is an envelope around every message, which
makes it a third larger. Agents have a mediator, or a mediator behind another. A service with more
is not used."""
METHODS_MAX: Final = 64
"""Keys of one document that are looked at. Wallets list one to three; those of a did:peer:2 count
threefold, once for each spelling of their id."""
DECODED_MAX: Final = 12
"""Different keys of one document, usable or not, that are decoded, wherever they are; the rest
count as unreadable. Each costs 120 us, and a stranger's document may list hundreds."""
ENDPOINT_CHARS_MAX: Final = 2048
"""A longer endpoint counts as none; servers refuse request lines of such length."""
KEY_ID: Final = "#key-1"
"""The relative id of the only key of a document that we write; did:peer:2 prescribes this form."""
LEGACY_CONTEXT: Final = "https://w3id.org/did/v1"
"""Credo refuses a connections 1.0 document with any other context."""

_LEGACY_DID_BYTES: Final = 16
"""An unqualified did:sov is the first half of its key."""
_V1_TYPES: Final = ("did-communication", "IndyAgent")
_KEY_LISTS: Final = ("publicKey", "verificationMethod", "authentication", "keyAgreement")
_SOV: Final = "did:sov:"
_DID: Final = re.compile(r"[!-~]+\Z")
_URL: Final = re.compile(r"(?:https?|wss?)://[!-~]+\Z", re.IGNORECASE)
Decoder: TypeAlias = Callable[[str], bytes | None]
"""Returns the 32 bytes of the key in a text, or None."""


class PeerDocument(msgspec.Struct, frozen=True):
    """The needed parts of an agent's document: Ed25519 keys of 32 bytes, and one endpoint.

    ``recipient_keys`` has at least one key. ``routing_keys`` are in the order of the document, the
    last one outermost. ``endpoint`` is an http(s) or ws(s) URL; empty for an agent that has none
    and fetches its messages.
    """

    did: str
    recipient_keys: tuple[bytes, ...]
    routing_keys: tuple[bytes, ...]
    endpoint: str

    def is_of(self, account: AgentAccount) -> bool:
        """Say whether a key of the document packed this account's message."""
        return account.address in self.recipient_keys


def legacy_did(key: bytes) -> str:
    """Return the unqualified DID of connections 1.0; it must be sent with its document."""
    return base58(key[:_LEGACY_DID_BYTES])


def legacy_document(did: str, key: bytes, endpoints: Sequence[str]) -> Json:
    """Return the DIDDoc of a legacy DID (RFC 0160), in the form of agents of that time."""
    key_id = f"{did}#1"
    return {
        "@context": LEGACY_CONTEXT,
        "id": did,
        "publicKey": [
            {
                "id": key_id,
                "type": "Ed25519VerificationKey2018",
                "controller": did,
                "publicKeyBase58": base58(key),
            }
        ],
        "authentication": [{"type": "Ed25519SignatureAuthentication2018", "publicKey": key_id}],
        "service": [
            {
                **service,
                "id": f"{did};indy{priority or ''}",
                "type": "IndyAgent",
                "recipientKeys": [base58(key)],
            }
            for priority, service in enumerate(write_services(endpoints))
        ],
    }


def write_services(endpoints: Sequence[str]) -> list[Json]:
    """Return services at these endpoints, the first preferred, with ``KEY_ID`` as their key."""
    return [
        {
            "id": f"#didcomm-{priority}",
            "type": "did-communication",
            "priority": priority,
            "recipientKeys": [KEY_ID],
            "routingKeys": [],
            "serviceEndpoint": endpoint,
        }
        for priority, endpoint in enumerate(endpoints)
    ]


def read_document(did: str, document: object) -> PeerDocument | None:
    """Read a document of ``did``, an agent's DID of any method, qualified or not.

    None if the value is no document, belongs to another DID, or has no usable key.
    """
    if not isinstance(document, dict) or len(did) > DID_CHARS_MAX or not _DID.match(did):
        return None
    named = document.get("id", did)
    if not isinstance(named, str) or not _is_same(named, did):
        return None
    return _Reading(did, document).result()


def resolve(did: str) -> PeerDocument | None:
    """Read the document in a did:peer:0, did:peer:2, long did:peer:4 or did:key; else None."""
    if did.startswith((DID_KEY, PEER_0)):
        key = _usable(read_key(DID_KEY + did.removeprefix(DID_KEY).removeprefix(PEER_0)))
        return None if key is None else PeerDocument(did, (key,), (), "")
    return read_document(did, peer2_document(did) or peer4_document(did))


class _Reading:
    """The reader of one document."""

    def __init__(self, did: str, document: Json) -> None:
        self._did = did
        self._document = document
        self._decoded: dict[tuple[Decoder, str], bytes | None] = {}
        self._keys = self._methods()

    def result(self) -> PeerDocument | None:
        """Return the preferred service that has an endpoint, else the preferred service.

        A document without DIDComm v1 services belongs to an agent that has no endpoint. A document
        with unreadable services is refused: messages would not reach the agent.
        """
        services = sorted(self._services(), key=_preference)
        if not services:
            keys = self._own_keys()
            return PeerDocument(self._did, keys, (), "") if keys else None
        readable = [found for service in services if (found := self._service(service))]
        return next((found for found in readable if found.endpoint), next(iter(readable), None))

    def _methods(self) -> Mapping[str, bytes]:
        """Return the document's Ed25519 keys by the last part of their ids."""
        listed = chain.from_iterable(as_list(self._document.get(name)) for name in _KEY_LISTS)
        found: dict[str, bytes] = {}
        for method in islice(listed, METHODS_MAX):
            key = self._material(method) if isinstance(method, dict) else None
            key_id = method.get("id") if isinstance(method, dict) else None
            if isinstance(key_id, str) and key is not None:
                found.setdefault(key_id.partition("#")[2] or key_id, key)
        return found

    def _own_keys(self) -> tuple[bytes, ...]:
        """Return the keys that authenticate the agent; if there are none, its first key.

        Not all keys of the document, because old agents list the keys of their mediators, too.
        """
        found = []
        for entry in islice(as_list(self._document.get("authentication")), KEYS_MAX):
            reference = (
                entry.get("publicKey", entry.get("id")) if isinstance(entry, dict) else entry
            )
            key = self._key(reference)
            if key is not None and key not in found:
                found.append(key)
        return tuple(found) or tuple(islice(self._keys.values(), 1))

    def _key(self, reference: object) -> bytes | None:
        """Return the key that a service names, directly or by its id in this document."""
        if not isinstance(reference, str) or len(reference) > DID_CHARS_MAX:
            return None
        subject, _, fragment = reference.partition("#")
        if not (fragment and subject) or _is_same(subject, self._did):
            key = self._keys.get(fragment or reference)
            if key is not None:
                return key
        return self._decode(read_key, reference)

    def _material(self, method: Json) -> bytes | None:
        """Return the Ed25519 key of a verification method, in any of its forms."""
        match method:
            case {"type": str(kind)} if kind.startswith("X25519"):
                return None
            case {"publicKeyBase58": str(text)}:
                return self._decode(read_key, text)
            case {"publicKeyMultibase": str(text)}:
                return self._decode(_multibase, text)
            case {"publicKeyJwk": {"kty": "OKP", "crv": "Ed25519", "x": str(text)}}:
                return self._decode(_coordinate, text)
            case _:
                return None

    def _decode(self, decoder: Decoder, text: str) -> bytes | None:
        """Return the key in a text if a message can be packed to it, else None."""
        if (decoder, text) not in self._decoded and len(self._decoded) < DECODED_MAX:
            self._decoded[decoder, text] = _usable(decoder(text))
        return self._decoded.get((decoder, text))

    def _services(self) -> Iterator[Json]:
        for service in islice(as_list(self._document.get("service")), SERVICES_MAX):
            if isinstance(service, dict) and (_is_v1(service) or "recipientKeys" in service):
                yield service

    def _service(self, service: Json) -> PeerDocument | None:
        """Read a service; None if it has no recipient key, or a key that cannot be read."""
        listed = as_list(service.get("recipientKeys"))
        recipients = self._all_keys(listed, KEYS_MAX) if listed else self._own_keys()
        endpoint, inner_routing = _endpoint(service.get("serviceEndpoint"))
        listed = as_list(service.get("routingKeys")) or inner_routing
        routing = self._all_keys(listed, ROUTING_KEYS_MAX)
        if not recipients or routing is None:
            return None
        return PeerDocument(self._did, recipients, routing, endpoint)

    def _all_keys(self, references: list[object], keys_max: int) -> tuple[bytes, ...] | None:
        keys = [self._key(reference) for reference in references[: keys_max + 1]]
        readable = tuple(key for key in keys if key is not None)
        return readable if len(readable) == len(references) <= keys_max else None


def _is_same(one: str, other: str) -> bool:
    """Say whether two spellings name one DID: did:sov: or bare, did:peer:4 long or short."""
    return peer4_short(one.removeprefix(_SOV)) == peer4_short(other.removeprefix(_SOV))


def has_type(service: Json, *types: str) -> bool:
    """Say whether a service is of one of these types; it may have a set of them (DID Core 5.4)."""
    kind = service.get("type")
    listed = kind[:SERVICES_MAX] if isinstance(kind, list) else [kind]
    return any(each in types for each in listed)


def _is_v1(service: Json) -> bool:
    return has_type(service, *_V1_TYPES)


def _preference(service: Json) -> tuple[bool, float]:
    """Return a sort key: DIDComm v1 types first, then by priority, the lowest number first."""
    priority = service.get("priority")
    return not _is_v1(service), priority if isinstance(priority, int | float) else 0


def _endpoint(value: object) -> tuple[str, list[object]]:
    """Return the URL of an endpoint in any of its forms, and the routing keys beside it."""
    for each in value[:SERVICES_MAX] if isinstance(value, list) else [value]:
        uri = each.get("uri") if isinstance(each, dict) else each
        if is_url(uri):
            return str(uri), as_list(each.get("routingKeys")) if isinstance(each, dict) else []
    return "", []


def is_url(text: object) -> bool:
    """Say whether a value looks like a URL that messages can be sent to."""
    if not isinstance(text, str) or len(text) > ENDPOINT_CHARS_MAX or not _URL.match(text):
        return False
    try:
        parts = urlsplit(text)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:  # unbalanced brackets or an invalid port
        return False


def _multibase(text: str) -> bytes | None:
    try:
        return multibase_decode(text, ED25519_PREFIX)
    except ValueError:
        # Early Ed25519VerificationKey2020: the bare key after the z, without its codec.
        return read_key(text[1:]) if text.startswith("z") else None


def _coordinate(text: str) -> bytes | None:
    return b64decode_exactly(text, KEY_BYTES)


def _usable(key: bytes | None) -> bytes | None:
    """Return the key if a message can be packed to it, else None."""
    return None if key is None or curve_public(key) is None else key


def as_list(value: object) -> list[object]:
    """Return a value that is a list, else an empty one."""
    return value if isinstance(value, list) else []
