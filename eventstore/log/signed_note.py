"""Signed notes (C2SP signed-note): a text with signatures, for people and tools. Pure.

A note is a text that ends with a newline, an empty line, and a line for each signature::

    — NAME BASE64(KEY ID || SIGNATURE)

Only Ed25519 is written and verified. Signatures by other keys, such as those of witnesses, are
ignored.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Final, NamedTuple

from eventstore.log.public_key import KEY_ID_BYTES, PublicKey

NOTE_BYTES_MAX: Final = 65_536
"""Longer ones are refused: a head has some hundred bytes, and a signature may have 5,000."""
_SIGNED_BY: Final = "\u2014 "
_CONTROL_BELOW: Final = "\x20"


class NoteRefused(ValueError):
    """Not a signed note, or not one that the key has signed."""


class NoteSignature(NamedTuple):
    """A signature line: the name of the key, its id (4 bytes), the signature."""

    name: str
    key_id: bytes
    signature: bytes


class SignedNote(NamedTuple):
    """A note as it was read, with its signatures unverified."""

    text: str
    signatures: tuple[NoteSignature, ...]


def is_key_name(name: str) -> bool:
    """Whether a key may have this name: not empty, without spaces, plus and control characters."""
    # Of all spaces, only that of ASCII is printable.
    return name.isprintable() and bool(name) and {" ", "+"}.isdisjoint(name)


def sign_note(text: str, name: str, key: PublicKey, sign: Callable[[bytes], bytes]) -> bytes:
    """Sign a text as a note, under this name of the key.

    Raises:
        ValueError: the text does not end with a newline or has control characters, or the name
            cannot be one.
    """
    if not text.endswith("\n") or _has_control(text) or not is_key_name(name):
        raise ValueError("not the text of a note, or not the name of a key")
    signed = base64.b64encode(key.note_id(name) + sign(text.encode())).decode("ascii")
    return f"{text}\n{_SIGNED_BY}{name} {signed}\n".encode()


def read_note(content: bytes) -> SignedNote:
    """Split a note into its text and signatures.

    Raises:
        NoteRefused: it is no note.
    """
    if len(content) > NOTE_BYTES_MAX:
        raise NoteRefused(f"longer than {NOTE_BYTES_MAX} bytes")
    try:
        whole = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NoteRefused("not UTF-8") from error
    text, gap, signatures = whole.rpartition("\n\n")
    if not gap or not text or not signatures.endswith("\n") or _has_control(whole):
        raise NoteRefused("not a text, an empty line and signatures")
    lines = signatures.removesuffix("\n").split("\n")
    return SignedNote(f"{text}\n", tuple(map(_signature, lines)))


def verified_text(content: bytes, name: str, key: PublicKey) -> str:
    """The text of a note that the key of this name has signed.

    Raises:
        NoteRefused: it is no note, or the key has not signed it.
    """
    note = read_note(content)
    found = [one for one in note.signatures if (one.name, one.key_id) == (name, key.note_id(name))]
    if not found:
        raise NoteRefused(f"not signed by {key.verifier_key(name)}")
    if not all(key.verify(note.text.encode(), one.signature) for one in found):
        raise NoteRefused(f"the signature by {name} does not match this text")
    return note.text


def _signature(line: str) -> NoteSignature:
    name, _, encoded = line.removeprefix(_SIGNED_BY).partition(" ")
    try:
        signed = base64.b64decode(encoded, validate=True)
    except ValueError as error:
        raise NoteRefused("a signature is not base64") from error
    if (
        not line.startswith(_SIGNED_BY)
        or not is_key_name(name)
        or len(signed) <= KEY_ID_BYTES
        or base64.b64encode(signed).decode("ascii") != encoded
    ):
        raise NoteRefused("a signature line is malformed")
    return NoteSignature(name, signed[:KEY_ID_BYTES], signed[KEY_ID_BYTES:])


def _has_control(text: str) -> bool:
    return any(char < _CONTROL_BELOW and char != "\n" for char in text)
