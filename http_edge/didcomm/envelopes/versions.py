"""The seam: what a message version of DIDComm is, and the table of those that are spoken.

An envelope is unpacked by the version that it is of, and everything that follows (reading its
message, answering it in the form of the question, packing the answer) is done by the same one. The
rest of the mediator sees an account, a message and an answer in no version's spelling.

Another version is a package of its own and an entry in ``_spoken`` and ``MEDIA_TYPES`` here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from http_edge.crypto.strict_json import JsonRefused, parse
from http_edge.didcomm.envelopes.did_documents import Fetched, MessagingService
from http_edge.didcomm.envelopes.keys import KeyPair, read_key
from http_edge.didcomm.envelopes.messages import (
    AgentAccount,
    Answer,
    ForOthers,
    Forward,
    Json,
    Message,
    NewMessage,
    OpenReport,
    ProblemReport,
    UnknownSender,
    Unpacked,
    UnpackRefusal,
)
from http_edge.didcomm.envelopes.own_dids import OwnDids
from http_edge.didcomm.envelopes.peer_dids import peer4_short
from http_edge.didcomm.envelopes.v1 import forward as forward_v1
from http_edge.didcomm.envelopes.v1 import plaintext as plaintext_v1
from http_edge.didcomm.envelopes.v1 import version as v1
from http_edge.didcomm.envelopes.v2 import forward as forward_v2
from http_edge.didcomm.envelopes.v2 import plaintext as plaintext_v2
from http_edge.didcomm.envelopes.v2 import version as v2


class MessageVersion(Protocol):
    """One form in which agents write and pack messages."""

    @property
    def name(self) -> str:
        """What accounts and messages of this version carry as ``version``."""

    @property
    def generation(self) -> int:
        """The generation of DIDComm: 1 or 2. What is stored for an agent says it."""

    def is_own(self, recipient: str) -> bool:
        """Does a forward mean this mediator by the name of this recipient?"""

    def unpack(self, value: Json) -> Unpacked | ForOthers | UnknownSender | UnpackRefusal | None:
        """What is in a parsed envelope; None where it is of another version."""

    def pack(self, message: bytes, to: AgentAccount) -> bytes:
        """A written message in an envelope for an agent of this version."""

    def read(self, unpacked: Unpacked) -> Message | None:
        """An unpacked message, or None where it is none."""

    def read_forward(self, message: Message, *, recipients_max: int) -> Forward | None:
        """What a forward says, or None where it cannot be followed."""

    def write(self, message: NewMessage, to: AgentAccount, message_id: str) -> bytes:
        """A message for an agent that answers none."""

    def write_answer(
        self, answer: Answer, question: Message, to: AgentAccount, message_id: str
    ) -> bytes:
        """An answer for an agent, in the form of its question."""

    def report_openly(
        self, question: Message, report: ProblemReport, message_id: str
    ) -> OpenReport:
        """A problem report on a message whose sender is not proven."""

    def learn(self, did: str) -> None:
        """Know a DID from now on by its hash too."""

    def service_of(self, did: str) -> MessagingService | None:
        """Where an agent takes messages, if its DID says so by itself and is of this version."""

    def unknown_mediator(self, did: str) -> str:
        """The DID that has to be learned before that is known; empty for none."""

    def media_type(self, used: str) -> str:
        """The media type for an answer to an envelope that came with the type ``used``."""


def _spoken(
    key: KeyPair,
    own_dids: OwnDids,
    now_s: Callable[[], int] | None,
    fetched: Fetched | None,
) -> tuple[MessageVersion, ...]:
    """The table: every message version, the one that knows its envelopes at a glance first."""
    return (v2.V2(own_dids, now_s, fetched), v1.V1(key))


MEDIA_TYPES: Final = (
    v1.MEDIA_TYPES
    | v2.MEDIA_TYPES
    | {
        "",
        "application/json",
        "application/octet-stream",
        "text/plain",
    }
)
"""What agents name an envelope of any version; the browser forms of ``fetch`` among them."""


class Envelopes:
    """Unpacks and packs the messages of one mediator, in every version."""

    def __init__(
        self,
        key: KeyPair,
        own_dids: OwnDids | None = None,
        now_s: Callable[[], int] | None = None,
        fetched: Fetched | None = None,
    ) -> None:
        """Envelopes to and from the mediator's one key.

        ``own_dids`` are the names of this key, by default those that need no services; ``now_s``
        is the time in Unix seconds for versions that write it into messages; ``fetched`` says
        what is known of DIDs that only the network has, None where nothing may be fetched.
        """
        self.own_dids = own_dids or OwnDids(key)
        self._versions: Mapping[str, MessageVersion] = {
            version.name: version for version in _spoken(key, self.own_dids, now_s, fetched)
        }

    def unpack(self, body: bytes) -> Unpacked | ForOthers | UnknownSender | UnpackRefusal:
        """What is in an envelope that came in, or why it was not opened."""
        try:
            value = parse(body)
        except JsonRefused:
            return UnpackRefusal.NOT_AN_ENVELOPE
        if isinstance(value, dict):
            for version in self._versions.values():
                unpacked = version.unpack(value)
                if isinstance(unpacked, ForOthers):
                    return msgspec.structs.replace(unpacked, version=version.name)
                if unpacked is not None:
                    return unpacked
        return UnpackRefusal.NOT_AN_ENVELOPE

    def read(self, unpacked: Unpacked) -> Message | None:
        """The message in an envelope, or None where it is none."""
        return self._versions[unpacked.version].read(unpacked)

    def read_forward(self, message: Message, *, recipients_max: int) -> Forward | None:
        """What a forward says, or None when it cannot be followed.

        That is so where it names no recipient or more than ``recipients_max`` (part of them would
        be lost unseen), or carries no encrypted envelope: nothing else may enter a queue (RFC
        0685).
        """
        version = self._versions[message.version]
        return version.read_forward(message, recipients_max=recipients_max)

    def is_own(self, recipient: str, message: Message) -> bool:
        """Does a forward like this one mean the mediator itself by the name of this recipient?"""
        return self._versions[message.version].is_own(recipient)

    def generation(self, version: str) -> int:
        """The generation of DIDComm that a message version is of."""
        return self._versions[version].generation

    def answer(self, question: Message, answer: Answer, to: AgentAccount, message_id: str) -> bytes:
        """An answer in the form of the question, packed for the sender of the question."""
        version = self._versions[question.version]
        return version.pack(version.write_answer(answer, question, to, message_id), to)

    def report_openly(
        self, question: Message, report: ProblemReport, message_id: str
    ) -> OpenReport:
        """A problem report on a message whose sender is not proven, in the form of the message."""
        return self._versions[question.version].report_openly(question, report, message_id)

    def pack(self, message: NewMessage, to: AgentAccount, message_id: str) -> bytes:
        """A message of ours that answers none, packed for an agent."""
        version = self._versions[to.version]
        return version.pack(version.write(message, to, message_id), to)

    def learn(self, did: str) -> None:
        """Know a DID from now on by its hash too: an account has stored it, so it was proven."""
        for version in self._versions.values():
            version.learn(did)

    def service_of(self, message: Message) -> MessagingService | None:
        """Where the sender of a message takes messages, as the DID that it names says by itself.

        None where it names none, or one that says nothing.
        """
        return self._versions[message.version].service_of(message.sender_did)

    def unknown_mediator(self, message: Message) -> str:
        """The DID of a mediator of the sender that is to be learned first; empty for none."""
        return self._versions[message.version].unknown_mediator(message.sender_did)

    def media_type(self, to: AgentAccount, used: str) -> str:
        """How to name an envelope to an agent whose own envelope came with the type ``used``."""
        return self._versions[to.version].media_type(used)


def media_type_of(envelope: bytes) -> str:
    """The media type that an envelope is delivered to an endpoint with.

    Of DIDComm v1, ACA-Py takes every type but application/json as an envelope; Credo and other
    agents of the Aries Interop Profile 2 take this one and the older application/ssi-agent-wire.
    """
    return v2.MEDIA_TYPE if _is_v2(envelope) else v1.MEDIA_TYPE


def wrap(
    envelope: bytes,
    did: str,
    peer_did: str,
    routing_keys: Sequence[str],
    new_id: Callable[[], str],
    fetched: Fetched | None = None,
) -> bytes | None:
    """An envelope for the agent ``did`` behind mediators of its own, as the outermost takes it.

    ``peer_did`` is what the agent calls itself, which is what mediators of DIDComm v2 know it by.
    ``routing_keys`` are in the order from the agent outwards, ``fetched`` what is known of those
    that only the network has. None when it cannot be wrapped.
    """
    if _is_v2(envelope) or any(read_key(text) is None for text in routing_keys):
        return forward_v2.wrap(envelope, peer4_short(peer_did), routing_keys, new_id, fetched)
    return forward_v1.wrap(envelope, did, routing_keys, new_id)


def _is_v2(envelope: bytes) -> bool:
    """Is it an envelope of DIDComm v2? In v1 this member is within the encoded header."""
    return b'"recipients"' in envelope


def write_invitation(message: NewMessage, sender_did: str = "") -> Json:
    """An invitation of ours as JSON: it travels in a URL, unpacked.

    With the DID that invites it is one of DIDComm v2, without it one of v1.
    """
    if sender_did:
        return {"from": sender_did, **plaintext_v2.write(message, message.id)}
    return plaintext_v1.write(message, message.id)


def read_invitation(value: Json) -> Message | None:
    """A parsed invitation of either version, or None where it is no message."""
    if "type" in value:
        return plaintext_v2.read(value, "", None)
    return plaintext_v1.read_parsed(value)
