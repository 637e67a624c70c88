"""The encryption envelope of DIDComm v1: reading, opening and making it (RFC 0019).

A fresh content key encrypts the message with ChaCha20-Poly1305 (the IETF form, whatever the name
in ``enc`` suggests); each recipient gets the content key in a box. Authcrypt boxes it with the
sender's key and so proves the sender; Anoncrypt seals it and reveals nothing of the sender.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Final, Literal

import msgspec
import orjson
from nacl.bindings import (
    crypto_aead_chacha20poly1305_ietf_decrypt,
    crypto_aead_chacha20poly1305_ietf_encrypt,
    crypto_box_beforenm,
    crypto_box_easy_afternm,
    crypto_box_open_easy_afternm,
    crypto_box_seal,
    crypto_box_seal_open,
)
from nacl.exceptions import CryptoError

from http_edge.crypto.encoding import b64decode, b64encode, b64encode_ascii
from http_edge.crypto.strict_json import parse
from http_edge.didcomm.envelopes.key_agreement import StaticSecrets
from http_edge.didcomm.envelopes.keys import KeyPair, base58, curve_public, read_key
from http_edge.didcomm.envelopes.messages import Json

RECIPIENTS_MAX: Final = 64
"""Recipients in one envelope."""

_ENC: Final = "xchacha20poly1305_ietf"
_AUTHCRYPT: Final = "Authcrypt"
_CONTENT_KEY_BYTES: Final = 32
_IV_BYTES: Final = 12
_TAG_BYTES: Final = 16
_BOX_IV_BYTES: Final = 24
_SHARED: Final = StaticSecrets()
"""The keys of all boxes between two Curve25519 keys: the costly half of making a box."""


class OpenedEnvelope(msgspec.Struct, frozen=True):
    """An opened message, and the sender's key if proven."""

    plaintext: bytes
    sender_key: bytes | None


class _Box(msgspec.Struct, frozen=True):
    """The header of a boxed content key; some agents write null for members Anoncrypt lacks."""

    kid: str
    sender: str | None = None
    iv: str | None = None


class _Recipient(msgspec.Struct, frozen=True):
    encrypted_key: str
    header: _Box


class _Header(msgspec.Struct, frozen=True):
    alg: Literal["Authcrypt", "Anoncrypt"]
    enc: Literal["xchacha20poly1305_ietf", "xchachapoly1305_ietf"]  # the RFC's examples, its prose
    recipients: list[_Recipient]


class _Envelope(msgspec.Struct, frozen=True):
    protected: str
    iv: str
    ciphertext: str
    tag: str


class Sealed(msgspec.Struct, frozen=True):
    """An envelope that is parsed but not opened; ``kids`` are the raw keys of its recipients."""

    kids: Sequence[bytes]
    header: _Header
    envelope: _Envelope


def parsed(value: Json) -> Sealed | None:
    """Parse an envelope and its recipients; None if ``value`` is no DIDComm v1 envelope."""
    if "@type" in value:
        return None
    try:
        envelope = msgspec.convert(value, _Envelope)
        header = msgspec.convert(parse(b64decode(envelope.protected)), _Header)
    except ValueError:  # includes JsonRefused and msgspec.ValidationError
        return None
    if not 0 < len(header.recipients) <= RECIPIENTS_MAX:
        return None
    kids = [key for one in header.recipients if (key := read_key(one.header.kid)) is not None]
    return Sealed(kids, header, envelope) if len(kids) == len(header.recipients) else None


def unpack(sealed: Sealed, own: KeyPair) -> OpenedEnvelope | None:
    """Open the message with ``own``, the key of one of its recipients; None if it does not open."""
    recipient = sealed.header.recipients[sealed.kids.index(own.public)]
    try:
        return _open(sealed, recipient, own)
    except (CryptoError, ValueError):
        return None


def pack(plaintext: bytes, recipients: Sequence[bytes], sender: KeyPair | None) -> bytes:
    """Pack a message for raw public keys: Authcrypt from a sender, Anoncrypt without one.

    Raises:
        ValueError: no message can be packed to one of the keys (``keys.curve_public`` is None).
    """
    content_key = secrets.token_bytes(_CONTENT_KEY_BYTES)
    iv = secrets.token_bytes(_IV_BYTES)
    header = {
        "enc": _ENC,
        "typ": "JWM/1.0",
        "alg": _AUTHCRYPT if sender else "Anoncrypt",
        "recipients": [_boxed(content_key, key, sender) for key in recipients],
    }
    protected = b64encode_ascii(orjson.dumps(header))
    sealed = crypto_aead_chacha20poly1305_ietf_encrypt(plaintext, protected, iv, content_key)
    return b'{"protected":"%b","iv":"%b","ciphertext":"%b","tag":"%b"}' % (
        protected,
        b64encode_ascii(iv),
        b64encode_ascii(sealed[:-_TAG_BYTES]),
        b64encode_ascii(sealed[-_TAG_BYTES:]),
    )


def _open(sealed: Sealed, recipient: _Recipient, own: KeyPair) -> OpenedEnvelope:
    """Open the message.

    Raises:
        CryptoError: libsodium does not open it, or a part has an impossible size.
        ValueError: a part is no base64, or is invalid.
    """
    envelope, box = sealed.envelope, recipient.header
    encrypted_key, tag = b64decode(recipient.encrypted_key), b64decode(envelope.tag)
    if len(tag) != _TAG_BYTES:  # else bytes could be moved between tag and ciphertext
        raise ValueError("not a tag")
    if sealed.header.alg == _AUTHCRYPT:
        sender_key, theirs = _sender(b64decode(box.sender or ""), own)
        shared = _shared(theirs, own.curve_private)
        content_key = crypto_box_open_easy_afternm(encrypted_key, b64decode(box.iv or ""), shared)
        # The sender's key was needed to make this box.
        _SHARED.keep(own.curve_private, theirs, shared)
    else:
        sender_key = None
        content_key = crypto_box_seal_open(encrypted_key, own.curve_public, own.curve_private)
    plaintext = crypto_aead_chacha20poly1305_ietf_decrypt(
        b64decode(envelope.ciphertext) + tag,
        envelope.protected.encode(),
        b64decode(envelope.iv),
        content_key,
    )
    return OpenedEnvelope(plaintext, sender_key)


def _sender(sealed: bytes, own: KeyPair) -> tuple[bytes, bytes]:
    """Return the sender's key that a message claims, and its Curve25519 half."""
    text = crypto_box_seal_open(sealed, own.curve_public, own.curve_private).decode()
    key = read_key(text)
    theirs = curve_public(key) if key is not None and base58(key) == text else None
    if key is None or theirs is None:
        raise ValueError("not a key in base58")
    return key, theirs


def _boxed(content_key: bytes, recipient_key: bytes, sender: KeyPair | None) -> dict[str, object]:
    """Return the content key for one recipient, as written in the header."""
    theirs = curve_public(recipient_key)
    if theirs is None:
        raise ValueError("nothing can be packed to this key")
    header = {"kid": base58(recipient_key)}
    if sender is None:
        box = crypto_box_seal(content_key, theirs)
    else:
        iv = secrets.token_bytes(_BOX_IV_BYTES)
        shared = _shared(theirs, sender.curve_private)
        box = crypto_box_easy_afternm(content_key, iv, shared)
        _SHARED.keep(sender.curve_private, theirs, shared)
        header["sender"] = b64encode(crypto_box_seal(base58(sender.public).encode(), theirs))
        header["iv"] = b64encode(iv)
    return {"encrypted_key": b64encode(box), "header": header}


def _shared(theirs: bytes, own_private: bytes) -> bytes:
    return _SHARED.known(own_private, theirs) or crypto_box_beforenm(theirs, own_private)
