"""Connections 1.0 (RFC 0160), role inviter: how the older wallets connect.

The request names a DID and carries its document; what vouches for the document is that the
request was packed by a key of it. The response carries the mediator's own document, signed by
the key of the invitation (``connection~sig``), and the protocol is over: the ping or the
acknowledgement that wallets send next is of a family of its own.
"""

from __future__ import annotations

from typing import Final

from actors.clock import Clock
from http_edge.didcomm.documents import PeerDocument, read_document
from http_edge.didcomm.handling import NOTHING, Asked, Family, Outcome
from http_edge.didcomm.handshake import PROBLEM_REPORT, Handshake, Objection
from http_edge.didcomm.keys import KeyPair
from http_edge.didcomm.messages import Json, Message
from http_edge.didcomm.own_documents import OwnDocuments
from http_edge.didcomm.signed import sign_member

MINORS: Final = (0,)


class Connections:
    """Answers the messages of connections 1.0."""

    def __init__(
        self, handshake: Handshake, own: OwnDocuments, key: KeyPair, *, clock: Clock
    ) -> None:
        """Connections of one mediator; ``key`` is the key of its invitations."""
        self._handshake = handshake
        self._own = own
        self._key = key
        self._clock = clock

    def family(self) -> Family:
        """The family, with the mediator as inviter."""
        return Family(
            name="connections",
            major=1,
            minors=MINORS,
            roles=("inviter",),
            handlers={"request": self._request, PROBLEM_REPORT: _reported},
        )

    async def _request(self, asked: Asked) -> Outcome:
        document = _document(asked.message)
        if isinstance(document, Objection):
            return self._handshake.refuse(asked, document)
        objection = await self._handshake.connect(asked, document)
        if objection is not None:
            return self._handshake.refuse(asked, objection)
        connection: Json = {"DID": self._own.legacy_did, "DIDDoc": self._own.legacy_document()}
        signed = sign_member(connection, self._key, self._clock() // 1000)
        return self._handshake.accept(asked, **{"connection~sig": signed})


def _document(request: Message) -> PeerDocument | Objection:
    connection = request.body.get("connection")
    if not isinstance(connection, dict):
        return Objection.NO_DID
    did = connection.get("DID")
    if not isinstance(did, str):
        return Objection.NO_DID
    return read_document(did, connection.get("DIDDoc")) or Objection.NO_DOCUMENT


async def _reported(asked: Asked) -> Outcome:  # noqa: ARG001 - whatever went wrong over there
    """A problem report is never answered (RFC 0035)."""
    return NOTHING
