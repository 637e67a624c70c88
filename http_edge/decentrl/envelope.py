"""The universal command envelope (DCTRL-0004 section 4): read strictly, verified as received."""

from __future__ import annotations

import math
import re
from typing import Any, Final, TypeGuard

import msgspec

from http_edge import strict_json
from http_edge.canonical_json import NotCanonical, canonical

CHANNELS: Final = frozenset({"DIRECT_AUTHENTICATED", "TWO_WAY_PRIVATE", "ONE_WAY_PUBLIC"})
_UUID_V4: Final = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.IGNORECASE
)


class Envelope(msgspec.Struct, frozen=True):
    """A well-formed command: the six header fields, the payload and the signature, unverified.

    ``header`` is the header as received, unknown members included: that is what was signed.
    """

    channel: str
    sender_did: str
    sender_signing_key_id: str
    recipient_did: str
    timestamp_ms: int | float
    nonce: str
    header: dict[str, Any]
    payload: Any
    signature: str

    def signed_bytes(self) -> bytes | None:
        """The canonical JSON of ``{header, payload}`` (4.4); None if it has no such form."""
        try:
            return canonical({"header": self.header, "payload": self.payload})
        except NotCanonical:
            return None


def is_number(value: object) -> TypeGuard[int | float]:
    """A finite JSON number; ``true`` is none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def read(body: bytes, *, did_bytes_max: int) -> Envelope | None:
    """The envelope in a request body, or None if it fails the schema (INVALID_COMMAND).

    Members beyond those of the schema are ignored for meaning; inside the header they count for
    the signature.
    """
    try:
        command = strict_json.parse(body)
    except strict_json.JsonRefused:
        return None
    if not isinstance(command, dict):
        return None
    header, signature = command.get("header"), command.get("signature")
    if not isinstance(header, dict) or not isinstance(signature, str) or "payload" not in command:
        return None
    channel, nonce = header.get("channel"), header.get("nonce")
    sender, recipient = header.get("sender_did"), header.get("recipient_did")
    key_id, timestamp = header.get("sender_signing_key_id"), header.get("timestamp")
    if not (
        isinstance(channel, str)
        and channel in CHANNELS
        and isinstance(sender, str)
        and isinstance(recipient, str)
        and isinstance(key_id, str)
        and isinstance(nonce, str)
        and _UUID_V4.fullmatch(nonce)
        and is_number(timestamp)
        and len(sender) <= did_bytes_max
        and len(recipient) <= did_bytes_max
    ):
        return None
    return Envelope(
        channel, sender, key_id, recipient, timestamp, nonce, header, command["payload"], signature
    )
