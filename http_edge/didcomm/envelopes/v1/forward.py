"""Reading of DIDComm v1 forwards (routing 1.0, RFC 0094) in all their forms, and writing.

A forward may come from any sender, sealed to our routing key. We write forwards around an envelope
for an agent behind mediators of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import orjson

from http_edge.didcomm.envelopes import keys
from http_edge.didcomm.envelopes.messages import NEW_PREFIX, Forward, InvalidMember, Message
from http_edge.didcomm.envelopes.packed import read_packed
from http_edge.didcomm.envelopes.recipient_names import canonical_name
from http_edge.didcomm.envelopes.v1.envelope import pack

FORWARD: Final = NEW_PREFIX + "routing/1.0/forward"
_SOV: Final = "did:sov:"


def read_forward(message: Message, *, recipients_max: int) -> Forward | None:
    """Read a forward; None if it cannot be followed.

    It cannot be followed if ``to`` is neither a text nor a list of texts, or names more than
    ``recipients_max`` recipients (some would be lost unseen), or if ``msg`` is no encrypted
    envelope: nothing else may enter a queue (RFC 0685).
    """
    to = message.text("to")
    names = message.texts("to", recipients_max) if to is None else [to]
    if isinstance(names, InvalidMember) or not names:
        return None
    payload = read_packed(message.body.get("msg"))
    if payload is None:
        return None
    found = [(name, each) for each in names if (name := _recipient_name(each))]
    dids: dict[str, list[str]] = {}
    for name, each in found:
        did = _did_beside(each, name)
        if did is not None and did not in dids.setdefault(name, []):
            dids[name].append(did)
    recipients = list(dict.fromkeys(name for name, _ in found))
    return Forward(recipients, [payload], message.expires_at_s, dids=dids)


def wrap(
    envelope: bytes, to: bytes, routing_keys: Sequence[bytes], new_id: Callable[[], str]
) -> bytes | None:
    """Wrap an envelope for the agent with the raw key ``to`` for its outermost mediator.

    ``routing_keys``, raw too, are in the order from the agent outwards (RFC 0067); each forward
    names the next hop inwards. The innermost forward names the agent's key in the connection, by
    which its own mediator knows it. ``envelope`` is JSON. None if nothing can be packed to one of
    the keys.
    """
    try:
        for key in routing_keys:
            head = {"@type": FORWARD, "@id": new_id(), "to": keys.base58(to)}
            forward = orjson.dumps({**head, "msg": orjson.Fragment(envelope)})
            envelope, to = pack(forward, [key], None), key
    except ValueError:
        return None
    return envelope


def _recipient_name(name: str) -> str | None:
    """Return the name of the key that is written, or else of the DID (``recipient_names``).

    A bare did:sov is none: agents register its key, which only its ledger knows.
    """
    key = _recipient_key(name)
    if key is not None:
        return keys.base58(key)
    return None if name.startswith(_SOV) else canonical_name(name)


def _did_beside(name: str, found: str) -> str | None:
    """Return the name of the DID in a DID URL if that is another than the one ``found`` for it."""
    did = canonical_name(name) if "#" in name and not name.startswith(_SOV) else None
    return None if did == found else did


def _recipient_key(name: str) -> bytes | None:
    """Return the key written in base58, in a did:key, or in the fragment of any other DID."""
    key = keys.read_key(name)
    did, _, fragment = name.partition("#")
    if key is not None or not did.startswith("did:"):
        return key
    # The fragment is the key in base58, or in multibase as in did:peer:2, with or without its "z".
    for text in (f"did:key:{fragment}", f"did:key:z{fragment}"):
        key = keys.read_key(text)
        if key is not None:
            return key
    return None
