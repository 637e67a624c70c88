"""Envelopes of DIDComm v1 in bytes: parsed, and opened."""

from __future__ import annotations

from http_edge.crypto.strict_json import JsonRefused, parse
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.envelopes.messages import UnpackRejection
from http_edge.didcomm.envelopes.v1.envelope import OpenedEnvelope, Sealed, parsed, unpack


def sealed_in(body: bytes) -> Sealed | None:
    """The envelope in any bytes; None if they hold none."""
    try:
        value = parse(body)
    except JsonRefused:
        return None
    return parsed(value) if isinstance(value, dict) else None


def opened_with(body: bytes, key: KeyPair) -> OpenedEnvelope | UnpackRejection:
    """The message in any bytes, if ``key`` is one of its recipients."""
    sealed = sealed_in(body)
    if sealed is None or key.public not in sealed.kids:
        return UnpackRejection.NOT_AN_ENVELOPE
    return unpack(sealed, key) or UnpackRejection.UNDECRYPTABLE
