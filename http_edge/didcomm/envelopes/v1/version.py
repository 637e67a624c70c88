"""DIDComm v1 as a message version (``versions.MessageVersion``): agents with Ed25519 keys."""

from __future__ import annotations

from typing import Final

import orjson

from http_edge.crypto.strict_json import object_in
from http_edge.didcomm.envelopes.keys import base58, did_key
from http_edge.didcomm.envelopes.messages import (
    AgentAccount,
    ForOthers,
    Json,
    Message,
    OpenReport,
    ProblemReport,
    Unpacked,
    UnpackRejection,
)
from http_edge.didcomm.envelopes.own_dids import OwnDids
from http_edge.didcomm.envelopes.v1 import envelope, plaintext
from http_edge.didcomm.envelopes.v1.forward import read_forward

MEDIA_TYPE: Final = "application/didcomm-envelope-enc"
"""RFC 0044."""
MEDIA_TYPES: Final = frozenset(
    {MEDIA_TYPE, "application/ssi-agent-wire", "application/jwe", "application/jwe+json"}
)
"""The media types that agents give an envelope (RFC 0044 and before)."""
MIRRORED: Final = frozenset({MEDIA_TYPE, "application/ssi-agent-wire", "application/jwe"})
"""Those in which an agent is answered that uses them: old agents know no other."""


def agent_account(key: bytes) -> AgentAccount:
    """Return the account of an agent with a 32-byte Ed25519 key; its identity is the did:key."""
    return AgentAccount(did_key(key), plaintext.VERSION, key)


class V1:
    """The version for messages and envelopes of DIDComm v1 under the mediator's one key."""

    name = plaintext.VERSION
    generation = 1
    """The generation of DIDComm; stored messages record it."""
    read_forward = staticmethod(read_forward)
    write = staticmethod(plaintext.write)
    write_answer = staticmethod(plaintext.write_answer)

    def __init__(self, own: OwnDids) -> None:
        self._key = own.key

    def unpack(self, value: Json) -> Unpacked | ForOthers | UnpackRejection | None:
        """Unpack a parsed envelope; None if it is of another version."""
        sealed = envelope.parsed(value)
        if sealed is None:
            return None
        if self._key.public not in sealed.kids:
            return ForOthers([base58(kid) for kid in dict.fromkeys(sealed.kids)], self.name)
        opened = envelope.unpack(sealed, self._key)
        if opened is None:
            return UnpackRejection.UNDECRYPTABLE
        found = object_in(opened.plaintext)
        if found is None:
            return UnpackRejection.NOT_A_MESSAGE
        sender = None if opened.sender_key is None else agent_account(opened.sender_key)
        work = 1 if sender is None else 2
        return Unpacked(self.name, opened.plaintext, found, sender, work)

    def read(self, unpacked: Unpacked) -> Message | None:
        """Read an unpacked message; None if it is not a message."""
        return plaintext.read(unpacked.parsed)

    def pack(self, message: Json, to: AgentAccount) -> bytes:
        """Pack a written message for an agent; only the envelope names it."""
        return envelope.pack(orjson.dumps(message), [to.address], self._key)

    def report_openly(
        self, question: Message, report: ProblemReport, message_id: str
    ) -> OpenReport:
        """Write a report in plaintext: agents of this version do not sign whole messages."""
        written = self.write_answer(report, question, message_id)
        return OpenReport(orjson.dumps(written), "application/json")
