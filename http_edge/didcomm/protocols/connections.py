"""Connections 1.0 (RFC 0160), role inviter: the handshake of older wallets.

The request names a DID and carries its document; the document is trusted because one of its keys
packed the request. The response carries the mediator's own document, signed by the invitation's
key, and ends the protocol: the ping or the acknowledgement that wallets send next belongs to
another family.
"""

from __future__ import annotations

from actors.host.clock import Clock
from http_edge.didcomm.envelopes.messages import Json, Message, Reply, SignedValue
from http_edge.didcomm.envelopes.peer_documents import PeerDocument, read_document
from http_edge.didcomm.protocols.admission import NotAdmitted
from http_edge.didcomm.protocols.handshake import PROBLEM_REPORT, HandshakeResponder, refused
from http_edge.didcomm.protocols.protocol import Family, Outcome, Request, no_answer


class Connections:
    """Answers the messages of connections 1.0."""

    def __init__(self, handshake: HandshakeResponder, *, clock: Clock) -> None:
        self._handshake = handshake
        self._clock = clock

    def family(self) -> Family:
        """Return the family, with the mediator as inviter."""
        return Family(
            name="connections",
            major=1,
            minors=(0,),
            roles=("inviter",),
            handlers={"request": self._request, PROBLEM_REPORT: no_answer},
        )

    async def _request(self, request: Request) -> Outcome:
        rejection = await self._handshake.connect(request, _document(request.message))
        if rejection is not None:
            return refused(rejection)
        own = self._handshake.documents
        connection: Json = {"DID": own.legacy_did, "DIDDoc": own.legacy_document()}
        signed = SignedValue(connection, own.key, self._clock() // 1000)
        return Outcome(Reply("response", signed={"connection": signed}, names_parent=True))


def _document(request: Message) -> PeerDocument | NotAdmitted:
    connection = request.body.get("connection")
    if not isinstance(connection, dict):
        return NotAdmitted.NO_DID
    did = connection.get("DID")
    if not isinstance(did, str):
        return NotAdmitted.NO_DID
    return read_document(did, connection.get("DIDDoc")) or NotAdmitted.NO_DOCUMENT
