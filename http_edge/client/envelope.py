"""The signed envelope of every command (DCTRL-0004 section 4). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from http_edge.canonical_json import canonical
from http_edge.client.identity import Identity
from http_edge.encoding import b64encode
from http_edge.signatures import sign


class Channel(Enum):
    """The three channels of a command header (DCTRL-0004 4.1)."""

    DIRECT_AUTHENTICATED = "DIRECT_AUTHENTICATED"
    TWO_WAY_PRIVATE = "TWO_WAY_PRIVATE"
    ONE_WAY_PUBLIC = "ONE_WAY_PUBLIC"


def signed_command(
    identity: Identity,
    channel: Channel,
    recipient_did: str,
    payload: Mapping[str, object] | str,
    *,
    now_ms: int,
    nonce: str,
) -> bytes:
    """The body of ``POST /``: header, payload and the identity's signature over both.

    Raises:
        NotCanonical: the payload holds a value that JSON cannot carry.
    """
    signable = canonical(
        {
            "header": {
                "channel": channel.value,
                "sender_did": identity.did,
                "sender_signing_key_id": identity.signing_key_id,
                "recipient_did": recipient_did,
                "timestamp": now_ms,
                "nonce": nonce,
            },
            "payload": payload,
        }
    )
    signature = b64encode(sign(identity.signing_seed, signable))
    # "signature" sorts after "header" and "payload": appended, the whole stays canonical, and
    # what is sent is byte for byte what was signed.
    return b'%b,"signature":"%b"}' % (signable[:-1], signature.encode())
