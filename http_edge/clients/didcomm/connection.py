"""The connection of a wallet with its mediator: whose keys, which endpoints, what is authentic."""

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
"""What came from the mediator: a message of its own, or an envelope for another key, unopened."""

Key: TypeAlias = bytes | str
"""A public key: 32 bytes, which are written as did:key, or a text, which is written as it is."""


MEDIA_TYPE: Final = "application/didcomm-envelope-enc"
"""The media type of envelopes of DIDComm v1 (RFC 0044)."""


class MediatorConnection(Protocol):
    """A connection of either generation, as transports use it.

    Messages are flat objects, as DIDComm v1 writes them, whatever they travel as.
    """

    @property
    def http_url(self) -> str:
        """Where the mediator takes messages over HTTP."""

    @property
    def ws_url(self) -> str:
        """Where it takes sockets; empty where it named none."""

    @property
    def media_type(self) -> str:
        """What its envelopes are named over HTTP."""

    def pack(self, message: Json) -> bytes:
        """A message for the mediator."""

    def open(self, body: bytes) -> Received:
        """What came: the mediator's message, or ``body`` itself when it is for another key."""


class Opened(NamedTuple):
    """An opened message, and the key of its sender; None for an anonymous one."""

    message: Json
    sender_key: bytes | None


@dataclass(frozen=True, slots=True)
class Connection:
    """What both sides agreed on in the handshake.

    Keep it, and the wallet comes back as the same one. ``ws_url`` is empty when the mediator
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
        """What its envelopes are named over HTTP."""
        return MEDIA_TYPE

    def pack(self, message: Json) -> bytes:
        """A message for the mediator, authenticated by the connection's key (RFC 0019)."""
        return pack(orjson.dumps(message), [self.mediator_key], self.key)

    def open(self, body: bytes) -> Received:
        """What came: the mediator's message, or ``body`` itself when it is for another key.

        Raises:
            NotAuthentic: it is for the connection's key and not by the mediator.
            UnexpectedAnswer: it is no envelope, or its content no JSON object.
        """
        opened = _unpacked_for(self.key, body)
        if opened is None:
            return body
        if opened.sender_key != self.mediator_key:
            raise NotAuthentic("a message for this connection that is not by the mediator")
        return _json_object(opened.plaintext, parse_answer)


def open_for(key: KeyPair, body: bytes) -> Opened | None:
    """What is in an envelope; None when it is not for ``key``, or none of DIDComm v1.

    Raises:
        NotAuthentic: it is for ``key`` and does not open.
        UnexpectedAnswer: it is no envelope, or its content no JSON object.
    """
    opened = _unpacked_for(key, body)
    return None if opened is None else Opened(_json_object(opened.plaintext), opened.sender_key)


def _unpacked_for(key: KeyPair, body: bytes) -> OpenedEnvelope | None:
    """The same, with what is in the envelope as it is."""
    sealed = recipients(body)
    if sealed is None:
        # Whatever resembles an envelope can be sent to another key. It is for that one to refuse.
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
    """A key as it goes into a message."""
    return did_key(key) if isinstance(key, bytes) else key


def _json_object(plaintext: bytes, read: Callable[[bytes], object] = parse) -> Json:
    try:
        message = read(plaintext)
    except JsonRefused as error:
        raise UnexpectedAnswer(f"no message: {error}") from error
    if not isinstance(message, dict):
        raise UnexpectedAnswer("no message: it is no JSON object")
    return message
