"""The encryption envelope of DIDComm v2: reading, opening and making it (RFC 7516, general JSON).

A fresh content key encrypts the message; each recipient gets that key wrapped under a key derived
from a key agreement with an ephemeral key (anoncrypt, ECDH-ES), and for authcrypt (ECDH-1PU) also
with the sender's key, which proves the sender. DIDComm Messaging 2.1, "Message Encryption".

Cheap checks come first: an envelope that is not for us costs no key agreement.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Final, Literal, NamedTuple

import msgspec
import orjson
from cryptography.hazmat.primitives.keywrap import (
    InvalidUnwrap,
    aes_key_unwrap,
    aes_key_wrap,
)

from http_edge.crypto.encoding import b64decode, b64encode, b64encode_ascii
from http_edge.crypto.strict_json import parse
from http_edge.didcomm.envelopes.key_agreement import (
    PrivateKey,
    StaticSecrets,
    agree,
    wrapping_key,
)
from http_edge.didcomm.envelopes.messages import Json
from http_edge.didcomm.envelopes.public_keys import PublicKey, read_jwk, write_jwk
from http_edge.didcomm.envelopes.v2.content_encryption import WRITTEN, decrypt, encrypt

MEDIA_TYPE: Final = "application/didcomm-encrypted+json"
RECIPIENTS_MAX: Final = 64
"""Recipients in one envelope; each costs a line of JSON and a hash of its name."""
KID_CHARS_MAX: Final = 4608
"""A key id is a DID of at most 4,096 characters and a fragment."""
_ANONCRYPT: Final = "ECDH-ES+A256KW"
_AUTHCRYPT: Final = "ECDH-1PU+A256KW"
_HASHES_MAX: Final = 4096
_HASHED_CHARS_MAX: Final = 512
"""Key ids up to this length, including those of our did:peer:2, have their hash remembered."""


class Recipient(NamedTuple):
    """The recipient of a message: the id of its key as the owner spells it, and the key."""

    kid: str
    key: PublicKey


class Sender(NamedTuple):
    """The sender of a message: the id of its key, the key, and its secrets with correspondents."""

    kid: str
    key: PrivateKey
    secrets: StaticSecrets


class _Protected(msgspec.Struct, frozen=True):
    alg: Literal["ECDH-ES+A256KW", "ECDH-1PU+A256KW"]
    enc: Literal["A256CBC-HS512", "A256GCM", "XC20P"]
    epk: Json | None = None
    apu: str | None = None
    apv: str = ""
    skid: str | None = None
    crit: object = None
    zip: object = None


class _RecipientHeader(msgspec.Struct, frozen=True):
    kid: str
    epk: Json | None = None


class _Recipient(msgspec.Struct, frozen=True):
    header: _RecipientHeader
    encrypted_key: str


class _Envelope(msgspec.Struct, frozen=True):
    protected: str
    recipients: list[_Recipient]
    iv: str
    ciphertext: str
    tag: str
    aad: object = None


class Sealed(msgspec.Struct, frozen=True):
    """An envelope that is parsed but not opened.

    ``kids`` are the key ids of its recipients as spelled. ``sender_kid`` is the id of the sender's
    key that the message claims; empty for an anonymous message.
    """

    kids: Sequence[str]
    sender_kid: str
    header: _Protected
    envelope: _Envelope
    apu: bytes
    apv: bytes


def is_envelope(value: Json) -> bool:
    """Say whether a JSON object has the members that only DIDComm v2 envelopes have."""
    return "ciphertext" in value and isinstance(value.get("recipients"), list)


def parsed(value: Json) -> Sealed | None:
    """Parse an envelope; None if it breaks a rule of its header (A.3 of DIDComm v2.1)."""
    try:
        envelope = msgspec.convert(value, _Envelope)
        header = msgspec.convert(parse(b64decode(envelope.protected)), _Protected)
        apu, apv = b64decode(header.apu) if header.apu else b"", b64decode(header.apv)
        sender_kid = "" if header.alg == _ANONCRYPT else _sender_kid(header, apu)
    except ValueError:  # includes JsonRefused and msgspec.ValidationError
        return None
    kids = [one.header.kid for one in envelope.recipients]
    # None of these is supported.
    if any(each is not None for each in (header.crit, header.zip, envelope.aad)):
        return None
    # An anonymous message needs no ``apu``, and the cached key derivation would be as long.
    if len(apu) > KID_CHARS_MAX:
        return None
    if not 0 < len(kids) <= RECIPIENTS_MAX or max(map(len, kids)) > KID_CHARS_MAX:
        return None
    # Veramo's anonymous messages have no ``apv``, and derive the key without it.
    if _hash_of(kids) != apv and (apv or header.alg == _AUTHCRYPT):
        return None
    if header.alg == _AUTHCRYPT and header.enc != WRITTEN:
        return None
    return Sealed(kids, sender_kid, header, envelope, apu, apv)


def open_sealed(
    sealed: Sealed,
    number: int,
    own: PrivateKey,
    sender: PublicKey | None,
    static_secrets: StaticSecrets,
) -> bytes | None:
    """Open the message for recipient ``number`` with its key ``own``; None if it does not open.

    ``sender`` is the key of ``sealed.sender_kid``, None for an anonymous message.
    """
    envelope, header = sealed.envelope, sealed.header
    recipient = envelope.recipients[number]
    epk = read_jwk(header.epk if header.epk is not None else recipient.header.epk)
    if epk is None or (sender is None) is not (header.alg == _ANONCRYPT):
        return None
    try:
        encrypted_key, tag = b64decode(recipient.encrypted_key), b64decode(envelope.tag)
        iv, ciphertext = b64decode(envelope.iv), b64decode(envelope.ciphertext)
    except ValueError:
        return None
    ephemeral = agree(own, epk)
    static = b"" if sender is None else static_secrets.agree(own, sender)
    if ephemeral is None or static is None:
        return None
    in_kdf = b"" if sender is None else tag
    kek = wrapping_key(ephemeral + static, header.alg.encode(), sealed.apu, sealed.apv, in_kdf)
    try:
        key = aes_key_unwrap(kek, encrypted_key)
    except (InvalidUnwrap, ValueError):
        return None
    if sender is not None:  # whose key was needed to wrap this one
        static_secrets.keep(own.secret, sender.raw, static)
    return decrypt(header.enc, key, iv, (ciphertext, tag), envelope.protected.encode())


def seal(plaintext: bytes, recipients: Sequence[Recipient], sender: Sender | None) -> bytes:
    """Pack a message in an envelope: authcrypt from a sender, anoncrypt without one.

    All keys must be of one curve. Recipients are listed in the order of their ids, because some
    agents hash the ids in the listed order.

    Raises:
        ValueError: no message can be packed to one of the keys.
    """
    listed = sorted(recipients, key=lambda one: one.kid.encode())
    ephemeral = PrivateKey.new(listed[0].key.curve)
    apv = _hash_of([one.kid for one in listed])
    header: Json = {
        "typ": MEDIA_TYPE,
        "alg": _ANONCRYPT if sender is None else _AUTHCRYPT,
        "enc": WRITTEN,
        "epk": write_jwk(ephemeral.public),
        "apv": b64encode(apv),
    }
    apu = b""
    if sender is not None:
        apu = sender.kid.encode()
        header["apu"], header["skid"] = b64encode(apu), sender.kid
    protected = b64encode_ascii(orjson.dumps(header))
    content = encrypt(plaintext, protected)
    wrapped = []
    for one in listed:
        shared = agree(ephemeral, one.key)
        static = b"" if sender is None else sender.secrets.agree(sender.key, one.key)
        if shared is None or static is None:
            raise ValueError("nothing can be packed to this key")
        if sender is None:
            kek = wrapping_key(shared, b"ECDH-ES+A256KW", b"", apv, b"")
        else:
            kek = wrapping_key(shared + static, b"ECDH-1PU+A256KW", apu, apv, content.tag)
            sender.secrets.keep(sender.key.secret, one.key.raw, static)
        key = aes_key_wrap(kek, content.key)
        wrapped.append({"header": {"kid": one.kid}, "encrypted_key": b64encode(key)})
    return b'{"protected":"%b","recipients":%b,"iv":"%b","ciphertext":"%b","tag":"%b"}' % (
        protected,
        orjson.dumps(wrapped),
        b64encode_ascii(content.iv),
        b64encode_ascii(content.ciphertext),
        b64encode_ascii(content.tag),
    )


def _sender_kid(header: _Protected, apu: bytes) -> str:
    """Return the id of the sender's key that a message claims; some agents set only ``apu``.

    Raises:
        ValueError: the message names no key, or two.
    """
    named = apu.decode("utf-8")
    if not named or header.skid not in {None, named}:
        raise ValueError("no sender's key, or two")
    return named


def _hash_of(kids: Sequence[str]) -> bytes:
    """Return the required ``apv``: the hash of the key ids, sorted bytewise."""
    if len(kids) == 1 and len(kids[0]) <= _HASHED_CHARS_MAX and kids[0].isascii():
        return _hash_of_one(kids[0])
    return sha256(b".".join(sorted(kid.encode() for kid in kids))).digest()


@lru_cache(_HASHES_MAX)
def _hash_of_one(kid: str) -> bytes:
    return sha256(kid.encode()).digest()
