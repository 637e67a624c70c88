"""Read and write the WebSocket frames of DCTRL-0004 section 10."""

from __future__ import annotations

import re
from enum import Enum
from typing import Final, assert_never

import msgspec
import orjson

from actors.core.replies import (
    ContractsUpdated,
    EnvelopeDelivered,
    EnvelopesWaiting,
    IdentityGone,
    MessageArrived,
    Notice,
)
from http_edge.crypto import strict_json

_UUID: Final = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE
)
_PONG_MAX: Final = 256
"""Characters of a PONG; one with a timestamp has 50."""
_ESCAPED_MAX: Final = 6
"""Characters that one byte of a text may take in JSON."""
_BESIDE_DID_MAX: Final = 4_096
"""Characters allowed for the other members of an AUTHENTICATE, which take 250."""


class AuthFailure(Enum):
    """Why a socket was not authenticated, with its close code (10.3)."""

    AUTH_TIMEOUT = 4001
    INVALID_MESSAGE = 4002
    TIMESTAMP_OUT_OF_RANGE = 4003
    DID_NOT_FOUND = 4004
    SIGNING_KEY_NOT_FOUND = 4005
    INVALID_SIGNATURE = 4006
    NOT_REGISTERED = 4007
    RATE_LIMITED = 1008
    """Not in the protocol: too many pings and pongs before the first message."""
    TEMPORARILY_UNAVAILABLE = 1013
    """Not in the protocol: the host did not answer, the identity has too many sockets, or there was
    no slot to fetch the document of its DID."""


DETAILS: Final[dict[AuthFailure, str]] = {
    AuthFailure.AUTH_TIMEOUT: "message: does not arrive in time",
    AuthFailure.TIMESTAMP_OUT_OF_RANGE: (
        "message.timestamp: is too far from the mediator's clock, in Unix milliseconds"
    ),
    AuthFailure.SIGNING_KEY_NOT_FOUND: (
        "message.signing_key_id: is not a signing key in the DID's document"
    ),
    AuthFailure.INVALID_SIGNATURE: (
        "message.signature: does not verify over did, signing_key_id, timestamp and nonce"
    ),
    AuthFailure.NOT_REGISTERED: "message.did: is not registered here",
}
"""The detail of each failure when no check gives a more exact one (as in ``answers``)."""


class AuthRejected(msgspec.Struct, frozen=True):
    """Why a socket is not authenticated; an empty ``detail`` stands for that of ``DETAILS``."""

    failure: AuthFailure
    detail: str = ""


class Authenticate(msgspec.Struct, frozen=True):
    """A well-formed AUTHENTICATE message (10.2), unverified; the timestamp is in milliseconds."""

    type: str
    did: str
    signing_key_id: str
    timestamp: int | float
    nonce: str
    signature: str

    def signed(self) -> dict[str, object]:
        """The object under the signature: four members, neither type nor signature."""
        return {
            "did": self.did,
            "signing_key_id": self.signing_key_id,
            "timestamp": self.timestamp,
            "nonce": self.nonce,
        }


def read_authenticate(text: str, *, did_bytes_max: int) -> Authenticate | AuthRejected:
    """The AUTHENTICATE message in a text frame, or which rule the text breaks (INVALID_MESSAGE).

    A text too long for a DID of this length is not parsed.
    """
    length_max = _ESCAPED_MAX * did_bytes_max + _BESIDE_DID_MAX
    if len(text) > length_max:
        return _invalid(f"message: has more than {length_max} characters")
    try:
        message = msgspec.convert(strict_json.parse(text.encode()), Authenticate)
    except strict_json.JsonRefused as error:
        return _invalid(f"message: {error.rule}")
    except msgspec.ValidationError as error:
        return _invalid(strict_json.rule_of(error, "message"))
    if message.type != "AUTHENTICATE":
        return _invalid("message.type: is not AUTHENTICATE")
    if len(message.did.encode()) > did_bytes_max:
        return _invalid(f"message.did: has more than {did_bytes_max} bytes")
    if not _UUID.fullmatch(message.nonce):
        return _invalid("message.nonce: is not a UUID")
    return message


def _invalid(detail: str) -> AuthRejected:
    return AuthRejected(AuthFailure.INVALID_MESSAGE, detail)


def is_pong(text: str) -> bool:
    """Is the text a PONG? Its timestamp does not matter (10.4); too long a text is not parsed."""
    if len(text) > _PONG_MAX:
        return False
    try:
        message = strict_json.parse(text.encode())
    except strict_json.JsonRefused:
        return False
    return isinstance(message, dict) and message.get("type") == "PONG"


AUTH_SUCCESS: Final = b'{"type":"AUTH_SUCCESS"}'
_CONTRACTS_UPDATED: Final = b'{"type":"CONTRACTS_UPDATED"}'


def auth_failed(rejected: AuthRejected) -> bytes:
    """The AUTH_FAILED message (10.2); ``detail`` is an extension, as in ``answers``."""
    failed = {"type": "AUTH_FAILED", "code": rejected.failure.name}
    detail = rejected.detail or DETAILS.get(rejected.failure)
    return orjson.dumps({**failed, "detail": detail} if detail else failed)


def ping(now_ms: int) -> bytes:
    """The PING message (10.4)."""
    return orjson.dumps({"type": "PING", "timestamp": now_ms})


def notice(what: Notice) -> bytes | None:
    """The push for a notice (10.5); None if this protocol has no frame for it."""
    match what:
        case MessageArrived(message):
            event = {
                "id": message.message_id,
                "sender_did": message.sender_did,
                "payload": message.payload.decode(),
            }
            return orjson.dumps({"type": "PENDING_EVENTS", "events": [event]})
        case ContractsUpdated():
            return _CONTRACTS_UPDATED
        case EnvelopesWaiting() | EnvelopeDelivered() | IdentityGone():
            return None
        case _:
            assert_never(what)
