"""Forward messages around an envelope for an agent that sits behind mediators of its own.

RFC 0094: ``routing_keys`` are in the order from the agent outwards (RFC 0067), and each envelope
on the way names the next hop inwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import orjson

from actors.clock import NewId
from http_edge.didcomm.envelope import pack
from http_edge.didcomm.keys import base58, read_key
from http_edge.didcomm.messages import NEW_PREFIX
from http_edge.strict_json import JsonRefused, parse

FORWARD: Final = NEW_PREFIX + "routing/1.0/forward"


def wrap(envelope: bytes, did: str, routing_keys: Sequence[str], new_id: NewId) -> bytes | None:
    """An envelope for the agent ``did`` as its outermost mediator takes it.

    The innermost forward names the agent's key in the connection: that is what its own mediator
    knows it by. None when a key is none that a message can be packed to, or the envelope is no
    JSON and so nothing that a forward can carry.
    """
    if not routing_keys:
        return envelope
    try:
        parse(envelope)
        to = read_key(did)
        for text in routing_keys:
            key = read_key(text)
            if key is None or to is None:
                return None
            head = {"@type": FORWARD, "@id": new_id(), "to": base58(to)}
            forward = orjson.dumps({**head, "msg": orjson.Fragment(envelope)})
            envelope, to = pack(forward, [key], None), key
    except (JsonRefused, ValueError):
        return None
    return envelope
