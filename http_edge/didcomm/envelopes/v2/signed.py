"""Signed messages of DIDComm v2, and ``from_prior``; both are JWS (RFC 7515).

libsodium verifies EdDSA with Ed25519, as everywhere here; OpenSSL verifies ES256 and ES256K, which
few agents use. The signing key must authenticate the DID in its id, and the DID's document must be
known: nothing is fetched here. DIDComm Messaging 2.1, "Message Signing" and "DID Rotation".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import Final

import msgspec
import orjson
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from http_edge.crypto.encoding import b64decode, b64encode
from http_edge.crypto.signatures import sign, verify
from http_edge.crypto.strict_json import parse
from http_edge.didcomm.envelopes.agent_documents import FETCHED, SeenDids, account_did
from http_edge.didcomm.envelopes.keys import KeyPair, curve_public, did_key
from http_edge.didcomm.envelopes.messages import DidRotation, Json
from http_edge.didcomm.envelopes.public_keys import Curve, PublicKey, elliptic
from http_edge.didcomm.envelopes.signed import Signature, signatures_in
from http_edge.didcomm.envelopes.v2.plaintext import TIME_S_MAX

MEDIA_TYPE: Final = "application/didcomm-signed+json"
FROM_PRIOR_CHARS_MAX: Final = 16_384
"""Room for two DIDs of at most 4,096 characters, one of them twice, in base64."""
SIGNATURES_MAX: Final = 4
"""Each signature costs a verification; agents write one."""
_CURVES: Final[Mapping[str, Curve]] = {
    "EdDSA": Curve.ED25519,
    "ES256": Curve.P256,
    "ES256K": Curve.SECP256K1,
}
_COORDINATE_BYTES: Final = 32
_PARTS: Final = 3
_AHEAD_S_MAX: Final = 300
"""How far the signer's clock may be ahead of ours. An account refuses rotations issued before its
last one, so a date in the future would refuse all rotations until then."""


class SignedMessage(msgspec.Struct, frozen=True):
    """A signed payload, the DID that signed it, its signing key, and the number of signatures."""

    payload: bytes
    did: str
    key: PublicKey
    signatures: int = 1


class _Protected(msgspec.Struct, frozen=True):
    alg: str
    kid: str | None = None
    crit: object = None


class _Prior(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The claims of a DID rotation; a JWT with other claims was signed for another purpose."""

    iss: str
    iat: float
    sub: str | None = None
    aud: str | list[str] | None = None
    exp: float | None = None
    nbf: float | None = None
    jti: object = None

    def is_meant(self, is_own: Callable[[str], bool], now_s: int | None) -> bool:
        """Say whether the claims are for us and valid now; any time is valid if now is unknown."""
        from_s = max(self.nbf or 0, self.iat - _AHEAD_S_MAX)
        named = [self.aud] if isinstance(self.aud, str) else self.aud
        is_for_us = named is None or any(map(is_own, named))
        until_s = inf if self.exp is None else self.exp
        return is_for_us and (now_s is None or from_s <= now_s < until_s)


def is_signed(value: Json) -> bool:
    """Say whether a JSON object has the members that only signed messages have."""
    return "payload" in value and ("signatures" in value or "signature" in value)


def read_signed(value: Json, seen: SeenDids) -> SignedMessage | None:
    """Read and verify a signed message, in the general or the flattened JSON form.

    None if a signature is wrong, or if different DIDs have signed: a message has one sender.
    """
    try:
        listed = signatures_in(value, SIGNATURES_MAX)
        text = msgspec.convert(value["payload"], str)
        payload = b64decode(text)
    except ValueError:  # includes msgspec.ValidationError
        return None
    first: SignedMessage | None = None
    for each in listed:  # stops at the first wrong signature
        found = _verified(text, payload, each, seen)
        if found is None or (first is not None and found.did != first.did):
            return None
        first = first or found
    return first and msgspec.structs.replace(first, signatures=len(listed))


def read_from_prior(
    text: object, seen: SeenDids, is_own: Callable[[str], bool], now_s: int | None
) -> DidRotation | None:
    """Return the DID rotation that a ``from_prior`` proves (a JWT, RFC 7519), or None.

    Keys sign other JWTs, too: a JWT is rejected if it has other claims, is for an audience that
    ``is_own`` does not accept, or is not valid at ``now_s``, which is checked unless None. The
    caller checks that ``new_did`` is the sender of the message.
    """
    if not isinstance(text, str) or len(text) > FROM_PRIOR_CHARS_MAX:
        return None
    parts = text.split(".")
    if len(parts) != _PARTS:
        return None
    protected, payload, signature = parts
    try:
        signed = _verified(payload, b64decode(payload), Signature(protected, signature), seen)
        prior = None if signed is None else msgspec.convert(parse(signed.payload), _Prior)
    except ValueError:  # includes JsonRefused and msgspec.ValidationError
        return None
    if signed is None or prior is None or prior.sub == prior.iss:
        return None
    if account_did(prior.iss) != account_did(signed.did):
        return None
    if not 0 <= prior.iat <= TIME_S_MAX or not prior.is_meant(is_own, now_s):
        return None
    return DidRotation(prior.iss, prior.sub, int(prior.iat), _accounts(signed, seen))


def _accounts(signed: SignedMessage, seen: SeenDids) -> list[str]:
    """Return the accounts that the signer's DID may have, by its document.

    The account is that of the signing key if the DID packs with this key. If it packs with another,
    the signing key may have an account that is none of this DID's. An agent of DIDComm v1 packs
    with the signing key and need not list a key for agreement.
    """
    keys, own = seen.resolve(signed.did), account_did(signed.did)
    if keys is None or signed.key.curve is not Curve.ED25519 or signed.did.startswith(FETCHED):
        return [own]
    image, agreement = curve_public(signed.key.raw), keys.agreement.values()
    packs = not agreement or any(key.raw == image for key in agreement)
    return list(dict.fromkeys([did_key(signed.key.raw), own])) if packs else [own]


def signer_of(from_prior: object) -> str:
    """Return the DID that a ``from_prior`` names as signer, unverified; empty for none."""
    if not isinstance(from_prior, str) or len(from_prior) > FROM_PRIOR_CHARS_MAX:
        return ""
    try:
        header = msgspec.convert(parse(b64decode(from_prior.partition(".")[0])), _Protected)
    except ValueError:  # includes JsonRefused and msgspec.ValidationError
        return ""
    return (header.kid or "").partition("#")[0]


def write_signed(payload: bytes, kid: str, key: KeyPair) -> Json:
    """Sign a message with Ed25519: general form, one signature, ``kid`` unprotected."""
    protected = b64encode(orjson.dumps({"typ": MEDIA_TYPE, "alg": "EdDSA"}))
    text = b64encode(payload)
    signature = b64encode(sign(key.seed, f"{protected}.{text}".encode()))
    return {
        "payload": text,
        "signatures": [{"protected": protected, "signature": signature, "header": {"kid": kid}}],
    }


def write_from_prior(rotation: DidRotation, kid: str, key: KeyPair) -> str:
    """Return the ``from_prior`` of a rotation, signed with a key ``kid`` of the prior DID."""
    header = {"typ": "JWT", "alg": "EdDSA", "crv": "Ed25519", "kid": kid}
    claims: Json = {"iss": rotation.prior_did, "iat": rotation.issued_at_s}
    if rotation.new_did is not None:
        claims["sub"] = rotation.new_did
    signed = f"{b64encode(orjson.dumps(header))}.{b64encode(orjson.dumps(claims))}"
    return f"{signed}.{b64encode(sign(key.seed, signed.encode()))}"


def _verified(
    text: str, payload: bytes, signature: Signature, seen: SeenDids
) -> SignedMessage | None:
    """Return the message if a key that authenticates the signer's DID made this signature."""
    try:
        protected = msgspec.convert(parse(b64decode(signature.protected)), _Protected)
        value = b64decode(signature.signature)
    except ValueError:  # includes JsonRefused and msgspec.ValidationError
        return None
    # RFC 7515 section 4.1.11: a header that is not understood makes the signature invalid.
    if protected.crit is not None:
        return None
    beside = None if signature.header is None else signature.header.kid
    kid = beside if protected.kid is None else protected.kid
    if kid is None or beside not in {None, kid}:
        return None
    did, _, fragment = kid.partition("#")
    keys = seen.resolve(did)
    key = None if keys is None else keys.authentication.get(fragment)
    if key is None or _CURVES.get(protected.alg) is not key.curve:
        return None
    signed = f"{signature.protected}.{text}".encode()
    return SignedMessage(payload, did, key) if _is_right(key, signed, value) else None


def _is_right(key: PublicKey, message: bytes, signature: bytes) -> bool:
    if key.curve is Curve.ED25519:
        return verify(key.raw, message, signature)
    if len(signature) != 2 * _COORDINATE_BYTES:
        return False
    halves = signature[:_COORDINATE_BYTES], signature[_COORDINATE_BYTES:]
    one, two = (int.from_bytes(half, "big") for half in halves)
    try:
        elliptic(key).verify(encode_dss_signature(one, two), message, ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, ValueError):  # ValueError: the key is no point of its curve
        return False
    return True
