"""The mediator's public key as auditors hold it, read from text, to verify signatures. Pure.

Ed25519 by libsodium, as everywhere here (``http_edge.crypto.signatures`` says why).
"""

from __future__ import annotations

import base64
import hashlib
from typing import Final, NamedTuple

import base58
from nacl.bindings import crypto_sign_open
from nacl.exceptions import BadSignatureError

KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
_MULTICODEC: Final = b"\xed\x01"
"""The prefix of an Ed25519 key in a ``did:key`` and in a DID document."""
_DID_KEY: Final = "did:key:"
_NOTE_ED25519: Final = b"\x01"
"""The type of an Ed25519 key and signature in C2SP signed-note."""
KEY_ID_BYTES: Final = 4
_CHARS_MAX: Final = 512


class PublicKey(NamedTuple):
    """An Ed25519 public key, 32 bytes."""

    raw: bytes

    def verify(self, message: bytes, signature: bytes) -> bool:
        """Whether the holder of this key made ``signature`` over ``message``."""
        # The binding hands both to C without looking at their length.
        if len(self.raw) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:
            return False
        try:
            crypto_sign_open(signature + message, self.raw)
        except BadSignatureError:
            return False
        return True

    @property
    def text(self) -> str:
        """The key in base58, as exports name their signer."""
        digits: bytes = base58.b58encode(self.raw)
        return digits.decode("ascii")

    def note_id(self, name: str) -> bytes:
        """The 4 bytes by which signed notes know this key under a name (C2SP signed-note)."""
        return hashlib.sha256(f"{name}\n".encode() + _NOTE_ED25519 + self.raw).digest()[
            :KEY_ID_BYTES
        ]

    def verifier_key(self, name: str) -> str:
        """The key as tools for signed notes take it: name, id and key (``vkey``)."""
        encoded = base64.b64encode(_NOTE_ED25519 + self.raw).decode("ascii")
        return f"{name}+{self.note_id(name).hex()}+{encoded}"


class PublicKeyRefused(ValueError):
    """A text is no public key; the message says what one looks like."""

    def __init__(self) -> None:
        super().__init__(
            "not an Ed25519 public key: base58 as in export.json, multibase (z6Mk…), did:key:z6Mk…,"
            " 64 hexadecimal digits, or a verifier key NAME+ID+KEY"
        )


def read_public_key(text: str) -> PublicKey:
    """Read a key in any of its text forms.

    These are base58, multibase with or without ``did:key:``, hexadecimal digits, and the verifier
    key of a signed note, whose name may be any.

    Raises:
        PublicKeyRefused: the text has none of these forms.
    """
    text = text.strip()
    if not text or len(text) > _CHARS_MAX:
        raise PublicKeyRefused
    try:
        if "+" in text:
            return _from_verifier_key(text)
        if len(text) == 2 * KEY_BYTES:
            return PublicKey(bytes.fromhex(text))
        digits = text.removeprefix(_DID_KEY)
        if digits.startswith("z") and len(digits) > 1:
            raw = base58.b58decode(digits[1:])
            if raw[:2] == _MULTICODEC and len(raw) == KEY_BYTES + 2:
                return PublicKey(raw[2:])
        raw = base58.b58decode(text)
    except ValueError as error:
        raise PublicKeyRefused from error
    if len(raw) != KEY_BYTES:
        raise PublicKeyRefused
    return PublicKey(raw)


def _from_verifier_key(text: str) -> PublicKey:
    name, _, rest = text.partition("+")
    identifier, _, encoded = rest.partition("+")
    raw = base64.b64decode(encoded, validate=True)
    key = PublicKey(raw[1:])
    if raw[:1] != _NOTE_ED25519 or len(key.raw) != KEY_BYTES or not name:
        raise PublicKeyRefused
    if key.note_id(name).hex() != identifier:
        raise PublicKeyRefused
    return key
