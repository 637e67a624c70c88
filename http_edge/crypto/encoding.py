"""Encode bytes as text: base64 as in Decentrl, and base58btc multibase for public keys.

DCTRL-0004 says only "base64". This module reads all four forms of RFC 4648 and writes one:
URL-safe without padding, the only one that a DID may contain.
"""

from __future__ import annotations

from typing import Final

import base58
import pybase64

ED25519_PREFIX: Final = b"\xed\x01"
"""Multicodec prefix of an Ed25519 public key (as an unsigned varint)."""
X25519_PREFIX: Final = b"\xec\x01"
"""Multicodec prefix of an X25519 public key (as an unsigned varint)."""
KEY_BYTES: Final = 32
MULTIBASE_KEY_CHARS: Final = 48
"""``z`` and the 47 base58 digits that every 32-byte key behind either prefix has."""


_ALTCHARS: Final = b"-_"
_FILLS: Final = ("", "===", "==", "=")
"""The missing padding, by the number of digits modulo 4; a single digit is always an error."""


def b64encode(data: bytes) -> str:
    """``data`` in the form that is written."""
    return pybase64.b64encode_as_string(data, _ALTCHARS).rstrip("=")


def b64encode_ascii(data: bytes) -> bytes:
    """``b64encode``, as the bytes of the text."""
    return pybase64.urlsafe_b64encode(data).rstrip(b"=")


def b64decode(text: str) -> bytes:
    """The bytes of ``text``: either alphabet, padded or not (RFC 4648 sections 4 and 5).

    Raises:
        ValueError: a character of neither alphabet, wrong padding or an impossible length.
    """
    if not ("=" in text or "+" in text or "/" in text):  # nearly every text
        # Positional, because keyword arguments cost half as much as decoding a short text.
        return pybase64.b64decode(text + _FILLS[len(text) % 4], _ALTCHARS, True)  # noqa: FBT003
    digits = text.rstrip("=")
    padding = len(text) - len(digits)
    if padding and (padding > 2 or len(text) % 4):  # noqa: PLR2004 - RFC 4648: "=" or "=="
        raise ValueError("wrong base64 padding")
    filled = digits + "=" * (-len(digits) % 4)
    if "+" in digits or "/" in digits:
        standard = filled.replace("-", "+").replace("_", "/")
        return pybase64.b64decode(standard, validate=True)
    return pybase64.b64decode(filled, _ALTCHARS, validate=True)


def b64decode_exactly(text: str, size_bytes: int) -> bytes | None:
    """The ``size_bytes`` bytes of ``text``, as ``b64decode``; None for any other text."""
    if len(text) > -(-size_bytes // 3) * 4:
        return None
    try:
        decoded = b64decode(text)
    except ValueError:
        return None
    return decoded if len(decoded) == size_bytes else None


def base64_of_json(text: bytes) -> str:
    """Encode a JSON text in base64 that every dialect reads alike, if that is possible.

    DIDComm agents decode ``data.base64`` as padded standard base64 (strictly), or as base64url
    without padding (RFC 0017), or drop unknown characters. JSON may end in blanks: they make its
    length a multiple of three, so that it needs no padding. In ASCII text only ``>``, ``~``, ``?``
    and DEL, in every third place, encode to a character that the alphabets do not share. No agent
    packs an envelope that contains one of these; the result for such a text is standard base64.
    """
    return pybase64.b64encode_as_string(text + b" " * (-len(text) % 3))


def base58_encode(content: bytes) -> str:
    """The base58btc digits of a content."""
    digits: bytes = base58.b58encode(content)
    return digits.decode("ascii")


def multibase_encode(prefix: bytes, content: bytes) -> str:
    """A content, such as a key, behind its multicodec ``prefix``, as base58btc multibase."""
    return "z" + base58_encode(prefix + content)


def multibase_decode(text: str, prefix: bytes) -> bytes:
    """The 32-byte key in a base58btc multibase string.

    Raises:
        ValueError: not ``z`` and base58, another multicodec than ``prefix``, or not 32 bytes.
    """
    # The length comes first: base58 takes quadratic time, and the library drops white space.
    if len(text) != MULTIBASE_KEY_CHARS or text[0] != "z":
        raise ValueError("not a multibase key")
    decoded: bytes = base58.b58decode(text[1:])
    if len(decoded) != len(prefix) + KEY_BYTES or not decoded.startswith(prefix):
        raise ValueError("not a key of this kind")
    return decoded[len(prefix) :]
