"""The table of the supported versions of DIDComm messages.

The version of an envelope unpacks it, and does everything that follows: it reads the message,
writes the answer in the form of the question, and packs the answer. The rest of the mediator sees
accounts, messages and answers that are free of any version's spelling.

A new version needs a package of its own with a class like ``V1`` and ``V2``, and an entry in
``MessageVersion``, ``Envelopes`` and ``MEDIA_TYPES`` here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from http_edge.crypto.strict_json import object_in
from http_edge.didcomm.envelopes.agent_documents import Fetched, SeenDids
from http_edge.didcomm.envelopes.keys import read_key
from http_edge.didcomm.envelopes.messages import (
    AgentAccount,
    Answer,
    ForOthers,
    Json,
    Message,
    NewMessage,
    UnknownSender,
    Unpacked,
    UnpackRejection,
)
from http_edge.didcomm.envelopes.own_dids import OwnDids
from http_edge.didcomm.envelopes.peer_dids import peer4_short
from http_edge.didcomm.envelopes.v1 import forward as forward_v1
from http_edge.didcomm.envelopes.v1 import plaintext as plaintext_v1
from http_edge.didcomm.envelopes.v1 import version as v1
from http_edge.didcomm.envelopes.v2 import forward as forward_v2
from http_edge.didcomm.envelopes.v2 import plaintext as plaintext_v2
from http_edge.didcomm.envelopes.v2 import version as v2

MessageVersion: TypeAlias = v1.V1 | v2.V2
"""One form in which agents write and pack messages."""
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
"""The media types that agents give envelopes, including the defaults of ``fetch`` in browsers."""


class Envelopes:
    """Unpacks and packs the messages of one mediator, in every version."""

    def __init__(
        self,
        own_dids: OwnDids,
        now_s: Callable[[], int] | None = None,
        fetched: Fetched | None = None,
    ) -> None:
        """Pack and unpack with the mediator's one key, that of ``own_dids``.

        ``now_s`` returns Unix seconds for versions that write the time into messages; ``fetched``
        returns the fetched document of a web DID, or is None if fetching is not allowed.
        """
        self._own_names = own_dids.names
        self.seen = SeenDids(fetched=fetched)
        """The DIDs of agents, as far as they are known without asking others."""
        # The version that recognizes its envelopes fastest is first.
        versions = (v2.V2(own_dids, now_s, self.seen), v1.V1(own_dids))
        self._versions: Mapping[str, MessageVersion] = {each.name: each for each in versions}

    def unpack(self, body: bytes) -> Unpacked | ForOthers | UnknownSender | UnpackRejection:
        """Unpack an inbound envelope, or return why it was not opened."""
        value = object_in(body)
        if value is not None:
            for version in self._versions.values():
                unpacked = version.unpack(value)
                if unpacked is not None:
                    return unpacked
        return UnpackRejection.NOT_AN_ENVELOPE

    def of(self, version: str) -> MessageVersion:
        """Return a message version by its name."""
        return self._versions[version]

    def is_own(self, recipient: str) -> bool:
        """Say whether a forward with this recipient name is for the mediator itself."""
        return recipient in self._own_names

    def answer(self, question: Message, answer: Answer, to: AgentAccount, message_id: str) -> bytes:
        """Write an answer in the form of the question, and pack it for the question's sender."""
        version = self._versions[question.version]
        return version.pack(version.write_answer(answer, question, message_id), to)

    def pack(self, message: NewMessage, to: AgentAccount, message_id: str) -> bytes:
        """Write and pack an unsolicited message for an agent."""
        version = self._versions[to.version]
        return version.pack(version.write(message, message_id), to)


def media_type_of(envelope: bytes, used: str = "") -> str:
    """Return the media type of an envelope for an endpoint, or for an agent that ``used`` one.

    For DIDComm v1, ACA-Py accepts every type but application/json as an envelope; Credo and other
    agents of the Aries Interop Profile 2 accept this type and the older application/ssi-agent-wire.
    An agent may be sent an envelope of another version than its own: what waits goes unchanged.
    """
    if _is_v2(envelope):
        return v2.MEDIA_TYPE
    return used if used in v1.MIRRORED else v1.MEDIA_TYPE


def wrap(
    envelope: bytes,
    did: str,
    peer_did: str,
    routing_keys: Sequence[str],
    new_id: Callable[[], str],
    fetched: Fetched | None = None,
) -> bytes | None:
    """Wrap an envelope for the agent ``did`` in forwards for the mediators in front of it.

    ``peer_did`` is the agent's own DID, by which mediators of DIDComm v2 know it. ``routing_keys``
    are in the order from the agent outwards; ``fetched`` returns the fetched documents of web DIDs
    among them. Without any the envelope goes unread as it is. Return None if it cannot be wrapped,
    or is no JSON, which a forward cannot carry.
    """
    if not routing_keys:
        return envelope
    if object_in(envelope) is None:
        return None
    # DIDComm v1 names the agent and all mediators by their keys.
    keys = [key for text in (did, *routing_keys) if (key := read_key(text)) is not None]
    if _is_v2(envelope) or len(keys) <= len(routing_keys):
        return forward_v2.wrap(envelope, peer4_short(peer_did), routing_keys, new_id, fetched)
    return forward_v1.wrap(envelope, keys[0], keys[1:], new_id)


def _is_v2(envelope: bytes) -> bool:
    """Say whether an envelope is of DIDComm v2; v1 has this member inside its encoded header."""
    return b'"recipients"' in envelope


def write_invitation(message: NewMessage, sender_did: str = "") -> Json:
    """Write an invitation of ours as JSON, which travels unpacked in a URL.

    With ``sender_did`` it is a DIDComm v2 invitation, without one a v1 invitation.
    """
    if sender_did:
        return {"from": sender_did, **plaintext_v2.write(message, message.id)}
    return plaintext_v1.write(message, message.id)


def read_invitation(value: Json) -> Message | None:
    """Read a parsed invitation of either version; None if it is not a message."""
    if "type" in value:
        return plaintext_v2.read(value, "")
    return plaintext_v1.read(value)
