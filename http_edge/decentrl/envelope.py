"""The universal command envelope (DCTRL-0004 section 4): read strictly, verified as received."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from http_edge.crypto import strict_json
from http_edge.crypto.canonical_json import canonical
from http_edge.decentrl.answers import Rejected, invalid

_MEMBERS: Final = ("header", "payload", "signature")
CHANNELS: Final = frozenset({"DIRECT_AUTHENTICATED", "TWO_WAY_PRIVATE", "ONE_WAY_PUBLIC"})
_UUID_V4: Final = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.IGNORECASE
)


class _Header(msgspec.Struct, frozen=True):
    channel: str
    sender_did: str
    sender_signing_key_id: str
    recipient_did: str
    timestamp_ms: int | float = msgspec.field(name="timestamp")
    nonce: str


class CommandEnvelope(_Header, frozen=True):
    """A well-formed command: the six header fields, the payload and the signature, unverified.

    ``header`` is the header as received and signed, unknown members included. ``has_floats`` says
    whether any number in the command has a fraction or an exponent.
    """

    header: dict[str, Any]
    payload: Any
    signature: str
    has_floats: bool

    def signed_bytes(self) -> bytes:
        """The canonical JSON of ``{header, payload}`` (4.4), which all JSON that was read has."""
        signed = {"header": self.header, "payload": self.payload}
        return canonical(signed, has_floats=self.has_floats)


def read(body: bytes, *, did_bytes_max: int) -> CommandEnvelope | Rejected:
    """Parse the envelope in a request body, or say which rule it breaks (INVALID_COMMAND).

    Members outside of the schema have no meaning, but those inside the header are signed.
    """
    try:
        value, has_floats = strict_json.parse_and_look(body)
    except strict_json.JsonRefused as error:
        return invalid(f"body: {error.rule}")
    if not isinstance(value, dict):
        return invalid("body: is not an object")
    # By hand, because msgspec would copy the header and check the whole payload.
    missing = next((member for member in _MEMBERS if member not in value), None)
    if missing is not None:
        return invalid(f"{missing}: is missing")
    signature = value["signature"]
    if not isinstance(signature, str):
        return invalid("signature: is not a string")
    try:
        header = msgspec.convert(value["header"], _Header)
    except msgspec.ValidationError as error:
        return invalid(strict_json.rule_of(error, "header"))
    if header.channel not in CHANNELS:
        return invalid(f"header.channel: is not one of {', '.join(sorted(CHANNELS))}")
    if not _UUID_V4.fullmatch(header.nonce):
        return invalid("header.nonce: is not a UUID of version 4")
    if len(header.sender_did.encode()) > did_bytes_max:
        return invalid(f"header.sender_did: has more than {did_bytes_max} bytes")
    if len(header.recipient_did.encode()) > did_bytes_max:
        return invalid(f"header.recipient_did: has more than {did_bytes_max} bytes")
    return CommandEnvelope(
        **msgspec.structs.asdict(header),
        header=value["header"],
        payload=value["payload"],
        signature=signature,
        has_floats=has_floats,
    )
