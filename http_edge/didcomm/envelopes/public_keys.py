"""Public keys on the curves that agents use, and their spellings: multibase, JWK, DID documents.

did:key and did:peer write a key in multibase with a multicodec prefix (W3C did:key 1.0); a JWE
carries an ephemeral key as JWK (RFC 7517, RFC 8037). A key of a NIST curve or of secp256k1 is kept
as its compressed point (SEC 1, section 2.3.3). Whether one that was written so is on its curve is
found out where the key is used (``elliptic``): a stranger's DID may list dozens, and each takes as
long as two key agreements. Keys of Curve25519 are any 32 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from typing import Final

import msgspec
from base58 import b58decode
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from http_edge.crypto.encoding import (
    ED25519_PREFIX,
    KEY_BYTES,
    X25519_PREFIX,
    b64decode_exactly,
    b64encode,
    multibase_encode,
)
from http_edge.didcomm.envelopes.keys import read_base58
from http_edge.didcomm.envelopes.messages import Json

MULTIBASE_CHARS_MAX: Final = 100
"""P-521 has 95. Checked first: base58 takes quadratic time."""


class Curve(Enum):
    """A curve; the value is its name in JWK."""

    ED25519 = "Ed25519"
    X25519 = "X25519"
    P256 = "P-256"
    P384 = "P-384"
    P521 = "P-521"
    SECP256K1 = "secp256k1"


class PublicKey(msgspec.Struct, frozen=True):
    """A public key: 32 bytes, or a compressed point of a Weierstrass curve."""

    curve: Curve
    raw: bytes


_REMEMBERED_MAX: Final = 8192
"""Keys with remembered text, some 300 bytes each: base58 costs more than a look-up."""
_PREFIXES: Final[Mapping[Curve, bytes]] = {
    Curve.ED25519: ED25519_PREFIX,
    Curve.X25519: X25519_PREFIX,
    Curve.P256: b"\x80\x24",
    Curve.P384: b"\x81\x24",
    Curve.P521: b"\x82\x24",
    Curve.SECP256K1: b"\xe7\x01",
}
"""Multicodec prefixes, as unsigned varints of two bytes."""
_CURVES: Final = {prefix: curve for curve, prefix in _PREFIXES.items()}
_PREFIX_BYTES: Final = 2
_COMPRESSED: Final = (b"\2", b"\3")
WEIERSTRASS: Final[Mapping[Curve, ec.EllipticCurve]] = {
    Curve.P256: ec.SECP256R1(),
    Curve.P384: ec.SECP384R1(),
    Curve.P521: ec.SECP521R1(),
    Curve.SECP256K1: ec.SECP256K1(),
}
"""The Weierstrass curves as the library has them."""
_BY_NAME: Final = {curve.value: curve for curve in Curve}


def read_multibase(text: str) -> PublicKey | None:
    """Read a key from ``z`` and the base58 of its multicodec prefix and its bytes, or None."""
    if not text.startswith("z") or len(text) > MULTIBASE_CHARS_MAX or not text.isalnum():
        return None
    return _from_multibase(text)


@lru_cache(_REMEMBERED_MAX)
def _from_multibase(text: str) -> PublicKey | None:
    try:
        decoded: bytes = b58decode(text[1:])
    except ValueError:
        return None
    curve, raw = _CURVES.get(decoded[:_PREFIX_BYTES]), decoded[_PREFIX_BYTES:]
    if curve is None:
        return None
    size = coordinate_bytes(curve)
    if curve in WEIERSTRASS:
        if raw[:1] not in _COMPRESSED:
            return _from_coordinates(curve, raw)
        size += 1
    return PublicKey(curve, raw) if len(raw) == size else None


def _from_coordinates(curve: Curve, point: bytes) -> PublicKey | None:
    """Read an uncompressed point; None if it is not on the curve, which is quick to see of one."""
    try:
        public = ec.EllipticCurvePublicKey.from_encoded_point(WEIERSTRASS[curve], point)
    except ValueError:
        return None
    return compressed(curve, public)


@lru_cache(_REMEMBERED_MAX)
def write_multibase(key: PublicKey) -> str:
    """Write a key as multibase text."""
    return multibase_encode(_PREFIXES[key.curve], key.raw)


def read_jwk(jwk: object) -> PublicKey | None:
    """Read the public key of a JWK, ignoring other members; None if its curve is not supported."""
    if not isinstance(jwk, dict):
        return None
    kty, crv, x, y = jwk.get("kty"), jwk.get("crv"), jwk.get("x"), jwk.get("y")
    curve = _BY_NAME.get(crv) if isinstance(crv, str) else None
    if curve is None or not isinstance(x, str):
        return None
    size = coordinate_bytes(curve)
    across = b64decode_exactly(x, size)
    if across is None:
        return None
    if curve not in WEIERSTRASS:
        return PublicKey(curve, across) if kty == "OKP" else None
    up = b64decode_exactly(y, size) if kty == "EC" and isinstance(y, str) else None
    return None if up is None else _from_coordinates(curve, b"\4" + across + up)


def write_jwk(key: PublicKey) -> Json:
    """Write a key as a JWK with only the necessary members."""
    if key.curve not in WEIERSTRASS:
        return {"kty": "OKP", "crv": key.curve.value, "x": b64encode(key.raw)}
    size = coordinate_bytes(key.curve)
    point = elliptic(key).public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    across, up = b64encode(point[1 : 1 + size]), b64encode(point[1 + size :])
    return {"kty": "EC", "crv": key.curve.value, "x": across, "y": up}


def read_method(method: Mapping[str, object]) -> PublicKey | None:
    """Read the key of a verification method of a DID document, in any of its forms."""
    match method:
        case {"publicKeyMultibase": str(text)}:
            return read_multibase(text)
        case {"publicKeyJwk": dict(jwk)}:
            return read_jwk(jwk)
        case {"type": "X25519KeyAgreementKey2019", "publicKeyBase58": str(text)}:
            return _bare(Curve.X25519, text)
        case {"type": "Ed25519VerificationKey2018", "publicKeyBase58": str(text)}:
            return _bare(Curve.ED25519, text)
        case _:
            return None


def coordinate_bytes(curve: Curve) -> int:
    """Return the number of bytes of a coordinate, and of an ECDH secret, on a curve."""
    point = WEIERSTRASS.get(curve)
    return KEY_BYTES if point is None else (point.key_size + 7) // 8


def elliptic(key: PublicKey) -> ec.EllipticCurvePublicKey:
    """Return a key of a Weierstrass curve as the library's object.

    Raises:
        KeyError: the key is of another curve.
        ValueError: the key is no point of its curve.
    """
    return ec.EllipticCurvePublicKey.from_encoded_point(WEIERSTRASS[key.curve], key.raw)


def compressed(curve: Curve, public: ec.EllipticCurvePublicKey) -> PublicKey:
    """Return a key of the library as a ``PublicKey``, with its compressed point."""
    return PublicKey(curve, public.public_bytes(Encoding.X962, PublicFormat.CompressedPoint))


def _bare(curve: Curve, text: str) -> PublicKey | None:
    key = read_base58(text)
    return None if key is None else PublicKey(curve, key)
