"""Canonical names of recipients: one name for each key or DID, whatever its spelling.

Keylists, the streams of name owners, and forwards use the same name, so a forward finds a recipient
that was registered in another spelling:

=====================================================  =======================================
spelling                                               name
=====================================================  =======================================
Ed25519 key in base58, as did:key or did:peer:0        the key in base58
X25519 key as did:key or did:peer:0                    did:key:z6LS…
did:peer:4, long (its hash is checked) or short        did:peer:4 and the hash
did:peer:2, did:peer:3                                 did:peer:3 and the hash
did:web, did:webvh                                     the DID with its host in lower case
any other DID                                          the DID
=====================================================  =======================================

A DID URL with a fragment has the name of its DID. Nothing is fetched, and every name is short. An
Ed25519 key and the X25519 key that it maps to have two names, because a wallet may have either
alone; ``twins`` says which names belong together. Sources: did:key, did:peer specifications;
RFC 0360.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from http_edge.crypto.encoding import (
    KEY_BYTES,
    X25519_PREFIX,
    multibase_decode,
    multibase_encode,
)
from http_edge.didcomm.envelopes.keys import DID_KEY, base58, curve_public, read_key
from http_edge.didcomm.envelopes.peer_dids import DID_CHARS_MAX, PEER_0, PEER_2, PEER_4, multihash

NAME_CHARS_MAX: Final = 255
"""A longer text is no name; DIDs that contain a document have a short form."""
ED25519: Final = "ed25519"
"""The form of a name that is a DIDComm v1 key."""
NO_NAME: Final = "none"
"""The form of a text that is no name."""
_FRAGMENT_CHARS_MAX: Final = 256
_REMEMBERED_MAX: Final = 8_192
"""Spellings of at most ``NAME_CHARS_MAX`` characters with a remembered name."""
_PEER_3: Final = "did:peer:3"
_ED25519: Final = "did:key:z6Mk"
_X25519: Final = "did:key:z6LS"
_MULTIHASH: Final = r"z[1-9A-HJ-NP-Za-km-z]{44,48}"
_HASHED: Final = re.compile(rf"did:peer:[34]{_MULTIHASH}\Z")
_PEER_4_LONG: Final = re.compile(rf"(did:peer:4({_MULTIHASH})):(z[1-9A-HJ-NP-Za-km-z]+)\Z")
_PEER_2_LONG: Final = re.compile(r"did:peer:2((?:\.[A-Z][A-Za-z0-9_-]+={0,2})+)\Z")
_DID: Final = re.compile(r"did:[a-z0-9]{1,32}:(?:[A-Za-z0-9._:-]|%[0-9A-Fa-f]{2})+\Z")
_HOST: Final = re.compile(r"(did:(?:web|webvh:[^:]*):)([^:]+)")
_METHODS: Final = frozenset({"key", "peer", "sov", "web", "webvh"})
_P: Final = 2**255 - 19
_SIGN: Final = 1 << 255


def canonical_name(text: object) -> str | None:
    """Return the name of a key or DID in any of its spellings; None for any other value."""
    if not isinstance(text, str) or len(text) > DID_CHARS_MAX + _FRAGMENT_CHARS_MAX:
        return None
    # A long spelling is hashed each time, rather than remembered at the cost of kilobytes.
    return _remembered(text) if len(text) <= NAME_CHARS_MAX else _name(text)


def x25519_name(key: bytes) -> str:
    """Return the name of an X25519 key of 32 bytes."""
    return DID_KEY + multibase_encode(X25519_PREFIX, key)


def twins(name: str) -> Sequence[str]:
    """Return the names of the same key on the other curve, whose envelopes the owner can open.

    An Ed25519 key has one twin, an X25519 key two or none (points that differ by their sign); a
    name that is no key has none.
    """
    if name.startswith(_X25519):
        key = multibase_decode(name.removeprefix(DID_KEY), X25519_PREFIX)
        return [base58(point) for point in _edwards(key) if curve_public(point) == key]
    if name.startswith("did:"):
        return []
    point = read_key(name)
    image = None if point is None else curve_public(point)
    return [] if image is None else [x25519_name(image)]


def opposite(name: str) -> str | None:
    """Return the name of the Ed25519 point with the other sign; None for any other name.

    Both points map to one X25519 key. Only the holder of the one knows the private key of the
    other, so another account that registers it is after the messages for the X25519 key.
    """
    point = None if name.startswith("did:") else read_key(name)
    return None if point is None else base58(point[:-1] + bytes([point[-1] ^ _SIGN >> 248]))


def name_form(name: str) -> str:
    """Return the form of a name, one of a few words: ``ed25519``, ``did:peer:4`` and the like."""
    if not name.startswith("did:"):
        return ED25519
    if name.startswith(_X25519):
        return "x25519"
    if name.startswith("did:peer:"):
        return name[: len(_PEER_3)] if _HASHED.match(name) else "did:peer"
    method = name.split(":", 2)[1]
    return f"did:{method}" if method in _METHODS else "did"


def _name(text: str) -> str | None:
    """Return the name, by the form of the DID before the fragment."""
    did = text.partition("#")[0]
    if did.startswith(PEER_0):
        did = DID_KEY + did.removeprefix(PEER_0)
    key = read_key(did)
    if key is not None:
        return base58(key)
    if did.startswith((_ED25519, _X25519)):
        return _x25519(did)
    if did.startswith((PEER_4, _PEER_3)):
        return did if _HASHED.match(did) else _short_peer_4(did)
    if did.startswith(PEER_2):
        found = _PEER_2_LONG.match(did) if len(did) <= DID_CHARS_MAX else None
        return None if found is None else _PEER_3 + multihash(found[1])
    return _with_host(did) if len(did) <= NAME_CHARS_MAX and _DID.match(did) else None


_remembered: Final = lru_cache(_REMEMBERED_MAX)(_name)


def _with_host(did: str) -> str:
    """Return a DID with its host, if it has one, in the one spelling that its name has."""
    found = _HOST.match(did)
    if found is None:
        return did
    return found[1] + found[2].lower().replace("%3a", "%3A") + did[found.end() :]


def _short_peer_4(did: str) -> str | None:
    found = _PEER_4_LONG.match(did) if len(did) <= DID_CHARS_MAX else None
    return found[1] if found is not None and multihash(found[3]) == found[2] else None


def _x25519(did: str) -> str | None:
    try:
        return x25519_name(multibase_decode(did.removeprefix(DID_KEY), X25519_PREFIX))
    except ValueError:
        return None


def _edwards(key: bytes) -> Sequence[bytes]:
    """Return the two points that map to an X25519 key: y = (u - 1) / (u + 1) (RFC 7748, 4.1)."""
    u = int.from_bytes(key, "little") % _SIGN % _P
    if u == _P - 1:
        return []
    y = (u - 1) * pow(u + 1, -1, _P) % _P
    return [(y | sign).to_bytes(KEY_BYTES, "little") for sign in (0, _SIGN)]
