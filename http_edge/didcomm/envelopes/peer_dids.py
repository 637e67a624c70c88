"""Reading and writing of did:peer 2 and 4, which contain their document (did:peer method, v1 spec).

Both readers return a plain DID document, for ``peer_documents`` or ``agent_documents`` to read. A
did:peer:4 in the long form is ``did:peer:4`` + hash + ``:`` + encoded document; without the last
part it is the short form of the same DID. A did:peer:2 is a sequence of keys and services.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Final

import orjson
from base58 import BITCOIN_ALPHABET

from http_edge.crypto.encoding import (
    ED25519_PREFIX,
    X25519_PREFIX,
    b64decode,
    b64encode,
    multibase_encode,
)
from http_edge.crypto.strict_json import JsonRefused, parse
from http_edge.didcomm.envelopes.messages import Json

PEER_0: Final = "did:peer:0"
"""A key and nothing else, like did:key."""
PEER_2: Final = "did:peer:2"
PEER_4: Final = "did:peer:4"
DID_CHARS_MAX: Final = 4096
"""A longer DID is not read. Wallets' DIDs have some 1,000 characters; base58 takes half a
millisecond for this many, and more than twice that for twice as many."""

PEER_2_ELEMENTS_MAX: Final = 64
"""Keys and services of a did:peer:2; agents have three to six."""
_DIGITS: Final = "[1-9A-HJ-NP-Za-km-z]"
_PEER_4_LONG: Final = re.compile(rf"did:peer:4(z{_DIGITS}{{40,60}}):(z{_DIGITS}+)\Z")
_PEER_2_WHOLE: Final = re.compile(
    rf"did:peer:2(?:\.[ADEIV]z{_DIGITS}+|\.S[A-Za-z0-9_-]+={{0,2}})+\Z"
)
_ALPHABET: Final[str] = BITCOIN_ALPHABET.decode("ascii")
_VALUES: Final = bytes.maketrans(_ALPHABET.encode(), bytes(range(len(_ALPHABET))))
_MASKS_MAX: Final = 128
"""One mask for each number of lanes (a power of two) and each step: 4 KiB each at most, 100 KiB in
all."""
_JSON_CODEC: Final = b"\x80\x04"
"""Multicodec 0x0200, JSON, as a varint."""
_SHA2_256: Final = b"\x12\x20"
"""Multihash: SHA2-256, of 32 bytes."""
_HASHES_MAX: Final = 8192
"""Hashes remembered as text, some 200 bytes each: base58 costs more than the hash."""
_RELATIONSHIPS: Final[Mapping[str, str]] = {
    "A": "assertionMethod",
    "D": "capabilityDelegation",
    "E": "keyAgreement",
    "I": "capabilityInvocation",
    "V": "authentication",
}
_LONG_NAMES: Final[Mapping[str, str]] = {
    "t": "type",
    "s": "serviceEndpoint",
    "r": "routingKeys",
    "a": "accept",
}
_SHORT_NAMES: Final[Mapping[str, str]] = {long: short for short, long in _LONG_NAMES.items()}
_LONG_TYPES: Final = {"dm": "DIDCommMessaging"}
_SHORT_TYPES: Final = {"DIDCommMessaging": "dm"}


def peer4_short(did: str) -> str:
    """Return the short form of a did:peer:4, for comparison; any other DID unchanged."""
    return ":".join(did.split(":", 3)[:3]) if did.startswith(PEER_4) else did


def multihash(text: str) -> str:
    """Return the hash that a did:peer:1, 3 or 4 has for its content: ``z`` and base58."""
    return _multihash(sha256(text.encode()).digest())


def peer4_document(did: str) -> Json | None:
    """Return the document in a long did:peer:4; None if malformed or the hash differs."""
    found = _PEER_4_LONG.match(did) if len(did) <= DID_CHARS_MAX else None
    if found is None or multihash(found[2]) != found[1]:
        return None
    content = _from_base58(found[2][1:])
    document = _parsed(content[len(_JSON_CODEC) :]) if content.startswith(_JSON_CODEC) else None
    return {**document, "id": did} if isinstance(document, dict) else None


def encode_peer4(document: Json) -> str:
    """Return the long form of the did:peer:4 of a document with relative ids."""
    encoded = multibase_encode(_JSON_CODEC, orjson.dumps(document))
    return f"{PEER_4}{multihash(encoded)}:{encoded}"


def peer2_document(did: str) -> Json | None:
    """Return the document of a did:peer:2, or None if it is malformed.

    The document lists each key under all ids in use: ``#key-N`` in the order of appearance (the
    specification), and the key's own digits with and without ``z`` (older libraries).
    """
    if len(did) > DID_CHARS_MAX or did.count(".") > PEER_2_ELEMENTS_MAX:
        return None
    if not _PEER_2_WHOLE.match(did):
        return None
    methods: list[Json] = []
    services: list[object] = []
    document: dict[str, list[str]] = {name: [] for name in _RELATIONSHIPS.values()}
    number = 0
    for element in did.split(".")[1:]:
        purpose, value = element[0], element[1:]
        if purpose in _RELATIONSHIPS:
            number += 1
            ids = (f"#key-{number}", f"#{value[1:]}", f"#{value}")
            methods += [_method(key_id, value) for key_id in ids]
            document[_RELATIONSHIPS[purpose]].append(ids[0])
            continue
        try:
            encoded = _parsed(b64decode(value))
        except ValueError:
            return None
        expanded = _renamed(encoded, _LONG_NAMES, _LONG_TYPES)
        services += expanded if isinstance(expanded, list) else [expanded]
    return {"id": did, "verificationMethod": methods, "service": services, **document}


def encode_peer2(
    authentication_keys: Sequence[bytes],
    services: Sequence[Json],
    *,
    agreement_keys: Sequence[bytes] = (),
) -> str:
    """Return the did:peer:2 of Ed25519 keys, X25519 keys (``#key-1`` and on), and services."""
    keys = [".V" + multibase_encode(ED25519_PREFIX, key) for key in authentication_keys]
    keys += [".E" + multibase_encode(X25519_PREFIX, key) for key in agreement_keys]
    short = [_renamed(service, _SHORT_NAMES, _SHORT_TYPES) for service in services]
    rest = [".S" + b64encode(orjson.dumps(service)) for service in short]
    return "".join([PEER_2, *keys, *rest])


@lru_cache(_HASHES_MAX)
def _multihash(digest: bytes) -> str:
    return multibase_encode(_SHA2_256, digest)


def _from_base58(digits: str) -> bytes:
    """Decode base58btc digits, which must all be valid.

    One large number has a lane of 8 bits for each digit; all lanes are joined with their neighbours
    at once, until one is left: 25 us for a usual DID and 0.5 ms for the longest, against 10 ms for
    the library, which adds one digit after the other. Speed matters, as a stranger's envelope may
    name any DID.
    """
    lanes = 1 << (len(digits) - 1).bit_length() if digits else 1
    values = digits.encode().translate(_VALUES)
    number = int.from_bytes(values, "big")
    base, bits = len(_ALPHABET), 8
    while lanes > 1:
        low = _every_other(bits, lanes)
        number = (number >> bits & low) * base + (number & low)
        base, bits, lanes = base * base, 2 * bits, lanes // 2
    zeros = len(digits) - len(digits.lstrip("1"))
    return bytes(zeros) + number.to_bytes((number.bit_length() + 7) // 8, "big")


@lru_cache(_MASKS_MAX)
def _every_other(bits: int, lanes: int) -> int:
    """Return a mask of every other one of ``lanes`` lanes of ``bits`` bits, from the lowest."""
    lane = ((1 << bits) - 1).to_bytes(bits // 4, "big")
    return int.from_bytes(lane * (lanes // 2), "big")


def _parsed(text: bytes) -> object:
    try:
        return parse(text)
    except JsonRefused:
        return None


def _method(key_id: str, multibase: str) -> Json:
    return {"id": key_id, "type": "Multikey", "publicKeyMultibase": multibase}


def _renamed(value: object, names: Mapping[str, str], types: Mapping[str, str]) -> object:
    """Write out or abbreviate a service, at every level (the parser bounds the levels)."""
    if isinstance(value, list):
        return [_renamed(each, names, types) for each in value]
    if not isinstance(value, dict):
        return value
    renamed = {names.get(n, n): _renamed(part, names, types) for n, part in value.items()}
    name = names.get("type", "type")
    kind = renamed.get(name)
    if isinstance(kind, str):
        renamed[name] = types.get(kind, kind)
    return renamed
