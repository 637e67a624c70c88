"""The seam: what a message version of DIDComm is, and the table of those that are spoken.

An envelope is unpacked by the version that it is of, and everything that follows (reading its
message, answering it in the form of the question, packing the answer) is done by the same one. The
rest of the mediator sees an account, a message and an answer in no version's spelling.

Another version is a package of its own and an entry in ``_spoken`` and ``MEDIA_TYPES`` here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import orjson

from http_edge.crypto.strict_json import JsonRefused, parse
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.envelopes.messages import (
    AgentAccount,
    Answer,
    ForOthers,
    Forward,
    Json,
    Message,
    NewMessage,
    Unpacked,
    UnpackRefusal,
)
from http_edge.didcomm.envelopes.v1 import forward as forward_v1
from http_edge.didcomm.envelopes.v1 import plaintext as plaintext_v1
from http_edge.didcomm.envelopes.v1 import version as v1


class MessageVersion(Protocol):
    """One form in which agents write and pack messages."""

    @property
    def name(self) -> str:
        """What accounts and messages of this version carry as ``version``."""

    @property
    def own_recipient(self) -> str:
        """What a forward names this mediator by."""

    def unpack(self, value: Json) -> Unpacked | ForOthers | UnpackRefusal | None:
        """What is in a parsed envelope; None where it is of another version."""

    def pack(self, message: bytes, to: AgentAccount) -> bytes:
        """A written message in an envelope for an agent of this version."""

    def read(self, message: bytes) -> Message | None:
        """An unpacked message, or None where it is none."""

    def read_forward(self, message: Message, *, recipients_max: int) -> Forward | None:
        """What a forward says, or None where it cannot be followed."""

    def write(self, message: NewMessage, message_id: str) -> Json:
        """A message that answers none."""

    def write_answer(self, answer: Answer, question: Message, message_id: str) -> Json:
        """An answer in the form of its question."""

    def media_type(self, used: str) -> str:
        """The media type for an answer to an envelope that came with the type ``used``."""


def _spoken(key: KeyPair) -> tuple[MessageVersion, ...]:
    """The table: every message version, the one of most messages first."""
    return (v1.V1(key),)


MEDIA_TYPES: Final = v1.MEDIA_TYPES | {
    "",
    "application/didcomm-encrypted+json",
    "application/didcomm-plain+json",
    "application/didcomm-signed+json",
    "application/json",
    "application/octet-stream",
    "text/plain",
}
"""What agents name an envelope of any version; the browser forms of ``fetch`` among them."""


class Envelopes:
    """Unpacks and packs the messages of one mediator, in every version."""

    def __init__(self, key: KeyPair) -> None:
        """Envelopes to and from the mediator's one key."""
        self._versions: Mapping[str, MessageVersion] = {
            version.name: version for version in _spoken(key)
        }

    def unpack(self, body: bytes) -> Unpacked | ForOthers | UnpackRefusal:
        """What is in an envelope that came in, or why it was not opened."""
        try:
            value = parse(body)
        except JsonRefused:
            return UnpackRefusal.NOT_AN_ENVELOPE
        if isinstance(value, dict):
            for version in self._versions.values():
                unpacked = version.unpack(value)
                if unpacked is not None:
                    return unpacked
        return UnpackRefusal.NOT_AN_ENVELOPE

    def read(self, unpacked: Unpacked) -> Message | None:
        """The message in an envelope, or None where it is none."""
        return self._versions[unpacked.version].read(unpacked.plaintext)

    def read_forward(self, message: Message, *, recipients_max: int) -> Forward | None:
        """What a forward says, or None when it cannot be followed.

        That is so where it names no recipient or more than ``recipients_max`` (part of them would
        be lost unseen), or carries no encrypted envelope: nothing else may enter a queue (RFC
        0685).
        """
        version = self._versions[message.version]
        return version.read_forward(message, recipients_max=recipients_max)

    def own_recipient(self, message: Message) -> str:
        """What a forward like this one names the mediator itself by."""
        return self._versions[message.version].own_recipient

    def answer(self, question: Message, answer: Answer, to: AgentAccount, message_id: str) -> bytes:
        """An answer in the form of the question, packed for the sender of the question."""
        version = self._versions[question.version]
        return version.pack(orjson.dumps(version.write_answer(answer, question, message_id)), to)

    def pack(self, message: NewMessage, to: AgentAccount, message_id: str) -> bytes:
        """A message of ours that answers none, packed for an agent."""
        version = self._versions[to.version]
        return version.pack(orjson.dumps(version.write(message, message_id)), to)

    def media_type(self, to: AgentAccount, used: str) -> str:
        """How to name an envelope to an agent whose own envelope came with the type ``used``."""
        return self._versions[to.version].media_type(used)


def media_type_of(envelope: bytes) -> str:  # noqa: ARG001 - every envelope is of one version so far
    """The media type that an envelope is delivered to an endpoint with.

    ACA-Py takes every type but application/json as an envelope; Credo and other agents of the
    Aries Interop Profile 2 take this one and the older application/ssi-agent-wire.
    """
    return v1.MEDIA_TYPE


def wrap(
    envelope: bytes, did: str, routing_keys: Sequence[str], new_id: Callable[[], str]
) -> bytes | None:
    """An envelope for the agent ``did`` behind mediators of its own, as the outermost takes it.

    ``routing_keys`` are in the order from the agent outwards. None when it cannot be wrapped.
    """
    return forward_v1.wrap(envelope, did, routing_keys, new_id)


def write_invitation(message: NewMessage) -> Json:
    """An invitation of ours as JSON: it travels in a URL, unpacked."""
    return plaintext_v1.write(message, message.id)


def read_invitation(value: Json) -> Message | None:
    """A parsed invitation, or None where it is no message."""
    return plaintext_v1.read_parsed(value)
