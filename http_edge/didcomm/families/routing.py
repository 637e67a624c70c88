"""Routing 1.0 (RFC 0094): what a forward says, in all the shapes in which agents write it.

A forward comes from anybody, sealed to our routing key; ``forwarding`` queues what is read here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeGuard

import msgspec
import orjson

from http_edge.didcomm import keys
from http_edge.didcomm.handling import Family
from http_edge.didcomm.messages import Json, Message
from http_edge.encoding import b64decode
from http_edge.strict_json import JsonRefused, parse

FORWARD: Final = "forward"
FAMILY: Final = Family("routing", 1, (0,), ("mediator",), {})
"""The protocol as it is disclosed. It has no handler: a forward has no authenticated sender."""
_ENVELOPE_MEMBERS: Final = ("protected", "iv", "ciphertext", "tag")
_FRAGMENT_CHARS_MAX: Final = 64


class Forward(msgspec.Struct, frozen=True):
    """A message to hand on.

    ``recipients`` are keys in base58, none twice; those that were not named by a key are missing,
    so there may be none: nobody here has such a name. ``payload`` is the envelope for them, JSON.
    """

    recipients: Sequence[str]
    payload: bytes


def read_forward(message: Message, *, recipients_max: int) -> Forward | None:
    """What a forward says, or None when it cannot be followed.

    None: ``to`` is neither a text nor a list of texts, or names more than ``recipients_max``
    (part of them would be lost unseen); or ``msg`` is no encrypted envelope: nothing else may
    enter a queue (RFC 0685).
    """
    names = message.body.get("to")
    if isinstance(names, str):
        names = [names]
    if not _is_texts(names) or not 0 < len(names) <= recipients_max:
        return None
    payload = _envelope(message.body.get("msg"))
    if payload is None:
        return None
    found = [keys.base58(key) for key in map(_recipient_key, names) if key is not None]
    return Forward(list(dict.fromkeys(found)), payload)


def _is_texts(names: object) -> TypeGuard[list[str]]:
    return isinstance(names, list) and all(isinstance(name, str) for name in names)


def _recipient_key(name: str) -> bytes | None:
    """The key in base58, in a did:key, or in the fragment of any other DID."""
    key = keys.read_key(name)
    did, _, fragment = name.partition("#")
    if key is not None or not did.startswith("did:") or len(fragment) > _FRAGMENT_CHARS_MAX:
        return key
    # A key id is the key in base58, or in multibase as of did:peer:2, once written without its "z".
    for text in (f"did:key:{fragment}", f"did:key:z{fragment}"):
        key = keys.read_key(text)
        if key is not None:
            return key
    return None


def _envelope(msg: object) -> bytes | None:
    """The packed message as JSON: an object, its text, or its text in base64 of any dialect."""
    if not isinstance(msg, str):
        return orjson.dumps(msg) if _is_envelope(msg) else None
    text = msg.encode("utf-8")
    if not msg.lstrip().startswith("{"):
        try:
            text = b64decode(msg)
        except ValueError:
            return None
    try:
        return text if _is_envelope(parse(text)) else None
    except JsonRefused:
        return None


def _is_envelope(value: object) -> TypeGuard[Json]:
    """Is it an encrypted envelope (RFC 0019; the members are those of any JWE)?"""
    return isinstance(value, dict) and all(
        isinstance(value.get(name), str) and value[name] for name in _ENVELOPE_MEMBERS
    )
