"""Forwards of DIDComm v1 (routing 1.0, RFC 0094): read in all their shapes, and written.

A forward may come from any sender, sealed to our routing key. Those that are written go around an
envelope for an agent that sits behind mediators of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeGuard

import orjson

from http_edge.crypto.strict_json import JsonRefused, parse
from http_edge.didcomm.envelopes import keys
from http_edge.didcomm.envelopes.messages import NEW_PREFIX, Forward, Message
from http_edge.didcomm.envelopes.packed import read_packed
from http_edge.didcomm.envelopes.v1.envelope import pack

FORWARD: Final = NEW_PREFIX + "routing/1.0/forward"
_FRAGMENT_CHARS_MAX: Final = 64


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
    payload = read_packed(message.body.get("msg"))
    if payload is None:
        return None
    found = [keys.base58(key) for key in map(_recipient_key, names) if key is not None]
    return Forward(list(dict.fromkeys(found)), [payload])


def wrap(
    envelope: bytes, did: str, routing_keys: Sequence[str], new_id: Callable[[], str]
) -> bytes | None:
    """An envelope for the agent ``did`` as its outermost mediator takes it.

    ``routing_keys`` are in the order from the agent outwards (RFC 0067), and each envelope on the
    way names the next hop inwards. The innermost forward names the agent's key in the connection:
    that is what its own mediator knows it by. None when a key is none that a message can be packed
    to, or the envelope is no JSON and so nothing that a forward can carry.
    """
    if not routing_keys:
        return envelope
    try:
        parse(envelope)
        to = keys.read_key(did)
        for text in routing_keys:
            key = keys.read_key(text)
            if key is None or to is None:
                return None
            head = {"@type": FORWARD, "@id": new_id(), "to": keys.base58(to)}
            forward = orjson.dumps({**head, "msg": orjson.Fragment(envelope)})
            envelope, to = pack(forward, [key], None), key
    except (JsonRefused, ValueError):
        return None
    return envelope


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
