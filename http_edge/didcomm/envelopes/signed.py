"""Signatures inside DIDComm v1 messages: of attachments, and of single members.

An attachment carries a detached JWS over its content (RFC 0017, RFC 7515); DID exchange uses it for
documents and rotations. ``connection~sig`` carries its value and the signature of the same bytes
(RFC 0234). Both are Ed25519; neither says who the signer is, only which key signed.

Agents differ in the base64 that they can read. So JSON is written with trailing blanks, to a length
that needs no padding in any dialect; JSON parsers ignore the blanks.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import msgspec
import orjson

from http_edge.crypto.encoding import b64decode, b64encode
from http_edge.crypto.signatures import sign, verify
from http_edge.crypto.strict_json import parse
from http_edge.didcomm.envelopes.keys import DID_KEY, KeyPair, base58, did_key, read_key
from http_edge.didcomm.envelopes.messages import NEW_PREFIX, Attachment, Json, read_type

JSON_TYPE: Final = "application/json"
TEXT_TYPE: Final = "text/string"
"""The media type of an attached DID (RFC 0023, ``did_rotate~attach``)."""

_SIGNATURES_MAX: Final = 16
"""One or a few of its keys sign a document; each signature costs a verification."""
_MEMBER_TYPE: Final = ("signature", 1, "ed25519Sha512_single")
_TIME_BYTES: Final = 8
_BASE64_BLOCK_BYTES: Final = 3


class SignedContent(NamedTuple):
    """The content of an attachment, and the raw keys that have validly signed it."""

    content: bytes
    signers: tuple[bytes, ...]


class _Jwk(msgspec.Struct, frozen=True):
    kty: Literal["OKP"]
    crv: Literal["Ed25519"]
    x: str
    kid: str | None = None


class _Protected(msgspec.Struct, frozen=True):
    alg: Literal["EdDSA"]
    jwk: _Jwk | None = None
    kid: str | None = None
    crit: object = None


class _Header(msgspec.Struct, frozen=True):
    kid: str | None = None


class Signature(msgspec.Struct, frozen=True):
    """One signature of a JWS (RFC 7515 section 7.2), its parts in base64."""

    protected: str
    signature: str
    header: _Header | None = None


class _Member(msgspec.Struct, frozen=True):
    type: str = msgspec.field(name="@type")
    sig_data: str
    signature: str
    signer: str


def sign_attachment(content: bytes, key: KeyPair, *, media_type: str = JSON_TYPE) -> Attachment:
    """Sign ``content`` with ``key`` as an attachment, as ACA-Py and Credo write and check it.

    The JWS has the key twice, as ``jwk`` and as did:key, because some agents read only one of them.
    The protected header must not also have it as ``kid``: Credo refuses that.
    """
    did = did_key(key.public)
    jwk = {"kty": "OKP", "crv": "Ed25519", "x": b64encode(key.public), "kid": did}
    protected = b64encode(orjson.dumps({"alg": "EdDSA", "jwk": jwk}))
    content = _without_padding(content) if media_type == JSON_TYPE else content
    signature = sign(key.seed, _signing_input(protected, content))
    jws: Json = {
        "header": {"kid": did},
        "protected": protected,
        "signature": b64encode(signature),
    }
    # The id only has to be unique in its message.
    return Attachment("signed", content, media_type, jws)


def read_attachment(attachment: object) -> SignedContent | None:
    """Return the content of an attachment and the keys that signed it.

    None if the value is not an attachment with embedded content, or if any signature is wrong,
    because then the content is not what its signer signed.
    """
    data = attachment.get("data") if isinstance(attachment, dict) else None
    if not isinstance(data, dict):
        return None
    text, jws = data.get("base64"), data.get("jws")
    if not isinstance(text, str):
        is_json = jws is None and isinstance(data.get("json"), dict)
        return SignedContent(orjson.dumps(data["json"]), ()) if is_json else None
    try:
        content = b64decode(text)
        listed = [] if jws is None else signatures_in(jws, _SIGNATURES_MAX)
        signers = [_signer(signature, content) for signature in listed]
    except ValueError:  # includes JsonRefused and msgspec.ValidationError
        return None
    right = tuple(signer for signer in signers if signer is not None)
    return SignedContent(content, right) if len(right) == len(signers) else None


def sign_member(value: Json, key: KeyPair, now_s: int) -> Json:
    """Return the signed form of ``value``, for the member ``<member>~sig`` of a message."""
    signed = _without_padding(now_s.to_bytes(_TIME_BYTES, "big") + orjson.dumps(value))
    return {
        "@type": f"{NEW_PREFIX}signature/1.0/ed25519Sha512_single",
        "sig_data": b64encode(signed),
        "signature": b64encode(sign(key.seed, signed)),
        "signer": base58(key.public),
    }


def verify_member(signed: object) -> tuple[Json, bytes] | None:
    """Return the value of a signed member and the raw key that signed it; None if invalid.

    The time in the member is not checked: clocks differ, and some agents write zero.
    """
    try:
        member = msgspec.convert(signed, _Member)
        content, signature = b64decode(member.sig_data), b64decode(member.signature)
        key, kind = read_key(member.signer), read_type(member.type)
        if kind is None or (kind.family, kind.major, kind.name) != _MEMBER_TYPE:
            return None
        if key is None or not verify(key, content, signature):
            return None
        value = parse(content[_TIME_BYTES:])
    except ValueError:
        return None
    return (value, key) if isinstance(value, dict) else None


def signatures_in(jws: object, signatures_max: int) -> list[Signature]:
    """Return the signatures in a JWS, in either of its JSON forms (RFC 7515 section 7.2).

    Raises:
        ValueError: there are none, or more than ``signatures_max``.
    """
    if not isinstance(jws, dict) or "signatures" not in jws:
        return [msgspec.convert(jws, Signature)]
    several = msgspec.convert(jws["signatures"], list[Signature])
    if not 0 < len(several) <= signatures_max:
        raise ValueError("no signatures, or too many")
    return several


def _signer(signature: Signature, content: bytes) -> bytes | None:
    """Return the key that made this signature; None if it is wrong or names no or several keys.

    Raises:
        ValueError: a part cannot be read.
    """
    protected = msgspec.convert(parse(b64decode(signature.protected)), _Protected)
    if protected.crit is not None:  # RFC 7515 section 4.1.11: not understood, so not valid
        return None
    jwk, header = protected.jwk, signature.header
    kids = [protected.kid, jwk.kid if jwk else None, header.kid if header else None]
    keys = {read_key(kid) for kid in kids if kid is not None and kid.startswith(DID_KEY)}
    if jwk is not None:
        keys.add(b64decode(jwk.x))
    key = keys.pop() if len(keys) == 1 else None
    if key is None:
        return None
    signed = _signing_input(signature.protected, content)
    return key if verify(key, signed, b64decode(signature.signature)) else None


def _signing_input(protected: str, content: bytes) -> bytes:
    return f"{protected}.{b64encode(content)}".encode()


def _without_padding(json: bytes) -> bytes:
    return json + b" " * (-len(json) % _BASE64_BLOCK_BYTES)
