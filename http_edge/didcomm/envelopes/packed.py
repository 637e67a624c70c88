"""Reading of encrypted envelopes inside forwards of any version, in all their forms."""

from __future__ import annotations

from typing import Final, TypeGuard

import orjson

from http_edge.crypto.encoding import b64decode
from http_edge.crypto.strict_json import object_in
from http_edge.didcomm.envelopes.messages import Json

_MEMBERS: Final = ("protected", "iv", "ciphertext", "tag")


def read_packed(msg: object) -> bytes | None:
    """Return an envelope as JSON from an object, its text, or its text in base64 of any dialect.

    None if it is not an encrypted envelope: nothing else may enter a queue (RFC 0685).
    """
    if not isinstance(msg, str):
        return orjson.dumps(msg) if _is_envelope(msg) else None
    text = msg.encode("utf-8")
    if not msg.lstrip().startswith("{"):
        try:
            text = b64decode(msg)
        except ValueError:
            return None
    return text if _is_envelope(object_in(text)) else None


def _is_envelope(value: object) -> TypeGuard[Json]:
    """Say whether a value is an encrypted envelope (RFC 0019; the members are those of any JWE)."""
    return isinstance(value, dict) and all(
        isinstance(value.get(name), str) and value[name] for name in _MEMBERS
    )
