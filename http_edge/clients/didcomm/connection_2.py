"""A wallet's connection in DIDComm v2: both sides are DIDs, and there was no handshake."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeAlias

from http_edge.clients.didcomm.connection import Received
from http_edge.clients.didcomm.errors import NotAuthentic, UnexpectedAnswer, UnusableInvitation
from http_edge.clients.didcomm.flat_messages import from_flat, to_flat
from http_edge.crypto.strict_json import JsonRefused, parse, parse_answer
from http_edge.didcomm.envelopes.did_documents import (
    messaging_services,
    own_document,
    resolve_document,
)
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.envelopes.messages import (
    AgentAccount,
    ForOthers,
    Json,
    UnknownSender,
    Unpacked,
    UnpackRefusal,
)
from http_edge.didcomm.envelopes.own_dids import PROFILE, OwnDids
from http_edge.didcomm.envelopes.public_keys import Curve, PublicKey
from http_edge.didcomm.envelopes.v2.plaintext import addressed
from http_edge.didcomm.envelopes.v2.version import MEDIA_TYPE, V2, agent_account

DidMethod2: TypeAlias = Literal["peer4", "peer2", "key"]
"""What the wallet's own DIDs are: did:peer:4, did:peer:2 or did:key."""


def own_did(own: OwnDids, method: DidMethod2) -> str:
    """One of the names of a key pair."""
    return {"peer4": own.peer4, "peer2": own.peer2, "key": own.did_key}[method]


def messaging_service(uri: str) -> Json:
    """The one service of a document: where the wallet takes messages, or its mediator's DID."""
    endpoint = {"uri": uri, "accept": [PROFILE], "routingKeys": []}
    return {"id": "#service", "type": "DIDCommMessaging", "serviceEndpoint": endpoint}


def peer_account(did: str, own: str) -> AgentAccount:
    """Whom a message to a DID is packed for, by the DID ``own``.

    Raises:
        UnusableInvitation: the DID does not carry a key that messages can be packed to.
    """
    kid, _ = agreement_key(did)
    document = resolve_document(did)
    account = None if document is None else agent_account(kid, document, own)
    assert account is not None
    return account


def agreement_key(did: str) -> tuple[str, PublicKey]:
    """The key that a DID is written to with, X25519 where it has one, behind its id.

    Raises:
        UnusableInvitation: the DID carries none.
    """
    keys = resolve_document(did)
    if keys is None or not keys.agreement:
        raise UnusableInvitation(f"{did} carries no key agreement key")
    of_25519 = (name for name, key in keys.agreement.items() if key.curve is Curve.X25519)
    name = next(of_25519, next(iter(keys.agreement)))
    return f"{did}#{name}", keys.agreement[name]


@dataclass(frozen=True)
class Connection2:
    """What a wallet has to know of itself and of its mediator. Keep it to come back as the same.

    ``endpoint`` is where the wallet takes messages, or ``QUEUE``. ``is_known``: the mediator has
    answered, so it knows the whole DID, and the short form of a did:peer:4 is enough from now on.
    """

    key: KeyPair = field(repr=False)
    method: DidMethod2
    endpoint: str
    mediator_did: str
    http_url: str
    ws_url: str
    is_known: bool = False

    @cached_property
    def own(self) -> OwnDids:
        """The wallet's own names for this connection."""
        return OwnDids(self.key, [messaging_service(self.endpoint)])

    @cached_property
    def did(self) -> str:
        """The name that it uses."""
        if self.is_known and self.method == "peer4":
            return self.own.peer4_short
        return own_did(self.own, self.method)

    @property
    def media_type(self) -> str:
        """What its envelopes are named over HTTP."""
        return MEDIA_TYPE

    @cached_property
    def _version(self) -> V2:
        return V2(self.own, parse_content=parse_answer)

    @cached_property
    def _mediator(self) -> AgentAccount:
        return peer_account(self.mediator_did, self.did)

    def pack(self, message: Json) -> bytes:
        """A flat message for the mediator, authenticated by this side's key.

        Raises:
            UnusableInvitation: nothing can be packed to the mediator's key.
        """
        return seal_for(self._version, self.did, message, self.mediator_did)

    def packed(self, written: bytes) -> bytes:
        """A message for the mediator that is written already, as it is.

        Raises:
            UnusableInvitation: nothing can be packed to the mediator's key.
        """
        return packed_for(self._version, written, self._mediator)

    def open(self, body: bytes) -> Received:
        """What came: the mediator's message, or ``body`` itself when it is for another key.

        Raises:
            NotAuthentic: it is for the connection's key and not by the mediator.
            UnexpectedAnswer: it is no envelope, or its content no message.
        """
        opened = open_for_did(self._version, body)
        if opened is None:
            return body
        message, sender = opened.parsed, opened.sender
        is_mediators = sender is not None and sender.did == self._mediator.did
        if message is None or not is_mediators or message.get("from") != self.mediator_did:
            raise NotAuthentic("a message for this connection that is not by the mediator")
        return to_flat(message)


def seal_for(version: V2, did: str, message: Json, to: str) -> bytes:
    """A flat message by the DID ``did``, whose envelopes ``version`` makes, for the DID ``to``.

    Raises:
        UnusableInvitation: ``to`` does not carry a key that messages can be packed to.
    """
    return packed_for(version, addressed(from_flat(message), did, to), peer_account(to, did))


def packed_for(version: V2, written: bytes, account: AgentAccount) -> bytes:
    """A written message in an envelope for an account.

    Raises:
        UnusableInvitation: its key is of another curve than the own, or of low order.
    """
    try:
        return version.pack(written, account)
    except ValueError as error:
        raise UnusableInvitation(f"{account.did}: {error}") from error


def open_for_did(version: V2, body: bytes) -> Unpacked | None:
    """What is in an envelope; None when it is for another.

    Raises:
        NotAuthentic: it is for this one and does not open.
        UnexpectedAnswer: it is no envelope.
    """
    try:
        value = parse(body)
    except JsonRefused as error:
        raise UnexpectedAnswer(f"no envelope: {error}") from error
    opened = version.unpack(value) if isinstance(value, dict) else None
    match opened:
        case None | UnpackRefusal.NOT_AN_ENVELOPE:
            # Another generation's envelope is for another key.
            if isinstance(value, dict) and "ciphertext" in value:
                return None
            raise UnexpectedAnswer("no envelope")
        case UnpackRefusal():
            raise NotAuthentic(f"an envelope that does not open: {opened.name}")
        case UnknownSender():
            raise NotAuthentic(f"an envelope of a sender that is not known: {opened.did}")
        case ForOthers():
            return None
        case Unpacked():
            return opened


def endpoints_of(did: str) -> tuple[str, str]:
    """The first HTTP and the first WebSocket endpoint in the document that a DID carries."""
    document = own_document(did)
    found = [] if document is None else [each.uri for each in messaging_services(document)]
    http = [url for url in found if url.startswith(("http://", "https://"))]
    websocket = [url for url in found if url.startswith(("ws://", "wss://"))]
    return (http or [""])[0], (websocket or [""])[0]
