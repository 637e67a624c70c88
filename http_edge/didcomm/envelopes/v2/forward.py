"""Reading of DIDComm v2 forwards (routing 2.0) in all their forms, and writing.

A forward names one recipient, by a DID or the id of a key, and carries one or several envelopes.
DIDComm Messaging 2.1, "Routing Protocol 2.0".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import orjson

from http_edge.didcomm.envelopes.agent_documents import Fetched, SeenDids
from http_edge.didcomm.envelopes.keys import did_key, read_key
from http_edge.didcomm.envelopes.messages import NEW_PREFIX, Forward, Json, Message
from http_edge.didcomm.envelopes.packed import read_packed
from http_edge.didcomm.envelopes.recipient_names import canonical_name
from http_edge.didcomm.envelopes.v2.envelope import Recipient, seal

FORWARD: Final = NEW_PREFIX + "routing/2.0/forward"
ATTACHMENTS_MAX: Final = 32
"""Envelopes in one forward; each is a row of the log. Agents send one."""


def read_forward(message: Message) -> Forward | None:
    """Read a forward; None if it cannot be followed.

    It cannot be followed if ``next`` is no text, if there is no attachment or too many, or if one
    does not contain an encrypted envelope: links are not fetched, and nothing else may be queued.
    """
    named = message.text("next")
    attached = message.attachments.get("")
    if named is None or not isinstance(attached, list):
        return None
    if not 0 < len(attached) <= ATTACHMENTS_MAX:
        return None
    found = [_payload(attachment) for attachment in attached]
    payloads = [payload for payload in found if payload is not None]
    if len(payloads) < len(found):
        return None
    name = canonical_name(named)
    recipients = [] if name is None else [name]
    return Forward(recipients, payloads, message.expires_at_s, message.delay_ms or 0)


def wrap(
    envelope: bytes,
    did: str,
    routing_keys: Sequence[str],
    new_id: Callable[[], str],
    fetched: Fetched | None = None,
) -> bytes | None:
    """Wrap an envelope for the agent ``did`` for its outermost mediator.

    ``routing_keys`` are DIDs or ids of DIDs' keys, in the order from the agent outwards; each
    forward names the next hop inwards. ``envelope`` is JSON. None if one of the keys cannot be
    resolved without asking others (``fetched`` returns documents fetched before).
    """
    following, known = did, SeenDids(1, fetched)
    for text in routing_keys:
        hop = _hop(text, known)
        if hop is None:
            return None
        forward: Json = {
            "id": new_id(),
            "type": FORWARD,
            "to": [hop.kid.partition("#")[0]],
            "body": {"next": following},
            "attachments": [{"data": {"json": orjson.Fragment(envelope)}}],
        }
        try:
            envelope = seal(orjson.dumps(forward), [hop], None)
        except ValueError:
            return None
        following = text
    return envelope


def _hop(text: str, known: SeenDids) -> Recipient | None:
    """Return the key to which forwards for a mediator are encrypted."""
    bare = read_key(text)
    did, _, fragment = (text if bare is None else did_key(bare)).partition("#")
    keys = known.resolve(did)
    if keys is None:
        return None
    chosen = fragment if fragment in keys.agreement else keys.preferred_agreement()
    return None if chosen is None else Recipient(f"{did}#{chosen}", keys.agreement[chosen])


def _payload(attachment: object) -> bytes | None:
    """Return the envelope that an attachment holds as JSON or in base64 of any dialect."""
    data = attachment.get("data") if isinstance(attachment, dict) else None
    if not isinstance(data, dict):
        return None
    # Some libraries write null for the form that is not used.
    message = data.get("json")
    if message is None:
        return read_packed(data.get("base64"))
    return None if isinstance(message, str) else read_packed(message)
