"""The connection of a wallet with its mediator: keys, endpoints, and checks of authenticity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeAlias

import orjson

from http_edge.clients.didcomm.errors import NotAuthentic, UnexpectedAnswer
from http_edge.crypto.strict_json import JsonRefused, parse, parse_answer
from http_edge.didcomm.envelopes.keys import KeyPair, did_key
from http_edge.didcomm.envelopes.messages import Json, UnpackRefusal
from http_edge.didcomm.envelopes.v1.envelope import OpenedEnvelope, pack, recipients, unpack

Received: TypeAlias = Json | bytes
"""A message of the mediator itself, or an unopened envelope for another key."""

Key: TypeAlias = bytes | str
"""A public key: 32 bytes, sent as did:key, or a text, sent as it is."""


MEDIA_TYPE: Final = "application/didcomm-envelope-enc"
"""The media type of envelopes of DIDComm v1 (RFC 0044)."""


class MediatorConnection(Protocol):
    """A connection of either generation, as transports use it.

    Messages are flat objects as in DIDComm v1, whatever form they have on the wire.
    """

    @property
    def http_url(self) -> str:
        """The mediator's URL for messages over HTTP."""

    @property
    def ws_url(self) -> str:
        """The mediator's URL for WebSockets; empty if it named none."""

    @property
    def media_type(self) -> str:
        """The media type of envelopes over HTTP."""

    def pack(self, message: Json) -> bytes:
        """Pack a message for the mediator."""

    def open(self, body: bytes) -> Received:
        """Open the mediator's message; return ``body`` itself if it is for another key."""


class Opened(NamedTuple):
    """An opened message, and the key of its sender; None for an anonymous one."""

    message: Json
    sender_key: bytes | None


@dataclass(frozen=True, slots=True)
class Connection:
    """The result of a handshake.

    A caller that stores it can come back as the same wallet. ``ws_url`` is empty if the mediator
    named no WebSocket.
    """

    key: KeyPair = field(repr=False)
    did: str
    mediator_did: str
    mediator_key: bytes
    http_url: str
    ws_url: str

    @property
    def media_type(self) -> str:
        """The media type of envelopes over HTTP."""
        return MEDIA_TYPE

    def pack(self, message: Json) -> bytes:
        """Pack a message for the mediator, authenticated by the connection's key (RFC 0019)."""
        return pack(orjson.dumps(message), [self.mediator_key], self.key)

    def open(self, body: bytes) -> Received:
        """Open the mediator's message; return ``body`` itself if it is for another key.

        Raises:
            NotAuthentic: the message is for the connection's key, but not from the mediator.
            UnexpectedAnswer: ``body`` is no envelope, or its content is no JSON object.
        """
        opened = _unpacked_for(self.key, body)
        if opened is None:
            return body
        if opened.sender_key != self.mediator_key:
            raise NotAuthentic("a message for this connection that is not by the mediator")
        return _json_object(opened.plaintext, parse_answer)


def open_for(key: KeyPair, body: bytes) -> Opened | None:
    """Open an envelope; return None if it is not for ``key``, or not of DIDComm v1.

    Raises:
        NotAuthentic: the envelope is for ``key`` and does not open.
        UnexpectedAnswer: ``body`` is no envelope, or its content is no JSON object.
    """
    opened = _unpacked_for(key, body)
    return None if opened is None else Opened(_json_object(opened.plaintext), opened.sender_key)


def _unpacked_for(key: KeyPair, body: bytes) -> OpenedEnvelope | None:
    """Do the same as ``open_for``, but do not parse the content."""
    sealed = recipients(body)
    if sealed is None:
        # Anything that resembles an envelope may be for another key, whose holder can refuse it.
        if "ciphertext" in _json_object(body):
            return None
        raise UnexpectedAnswer("no envelope")
    if key.public not in sealed.kids:
        return None
    unpacked = unpack(sealed, {key.public: key})
    if isinstance(unpacked, UnpackRefusal):
        raise NotAuthentic(f"an envelope that does not open: {unpacked.name}")
    return unpacked


def spelled(key: Key) -> str:
    """A key as text for a message."""
    return did_key(key) if isinstance(key, bytes) else key


def _json_object(plaintext: bytes, read: Callable[[bytes], object] = parse) -> Json:
    try:
        message = read(plaintext)
    except JsonRefused as error:
        raise UnexpectedAnswer(f"no message: {error}") from error
    if not isinstance(message, dict):
        raise UnexpectedAnswer("no message: it is no JSON object")
    return message
