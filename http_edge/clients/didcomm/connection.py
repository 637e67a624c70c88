"""The connection of a wallet with its mediator: keys, endpoints, and checks of authenticity.

In DIDComm v2 (``Connection2``) each side knows the other's DID, without a handshake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Final, Literal, NamedTuple, TypeAlias

import orjson

from http_edge.clients.didcomm.errors import NotAuthentic, UnexpectedAnswer, UnusableInvitation
from http_edge.clients.didcomm.flat_messages import from_flat, to_flat
from http_edge.crypto.strict_json import JsonRefused, parse, parse_answer
from http_edge.didcomm.envelopes.agent_documents import (
    messaging_services,
    own_document,
    resolve_document,
)
from http_edge.didcomm.envelopes.keys import KeyPair, did_key
from http_edge.didcomm.envelopes.messages import (
    AgentAccount,
    ForOthers,
    Json,
    UnknownSender,
    Unpacked,
    UnpackRejection,
)
from http_edge.didcomm.envelopes.own_dids import PROFILE, OwnDids
from http_edge.didcomm.envelopes.public_keys import PublicKey
from http_edge.didcomm.envelopes.v1.envelope import OpenedEnvelope, pack, parsed, unpack
from http_edge.didcomm.envelopes.v1.version import MEDIA_TYPE
from http_edge.didcomm.envelopes.v2.plaintext import addressed
from http_edge.didcomm.envelopes.v2.version import MEDIA_TYPE as MEDIA_TYPE_2
from http_edge.didcomm.envelopes.v2.version import V2, agent_account

QUEUE: Final = "didcomm:transport/queue"
"""The endpoint of a wallet that fetches its messages (RFC 0092)."""

Received: TypeAlias = Json | bytes
"""A message of the mediator itself, or an unopened envelope for another key."""

Key: TypeAlias = bytes | str
"""A public key: 32 bytes, sent as did:key, or a text, sent as it is."""


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
    media_type: ClassVar[str] = MEDIA_TYPE
    """The media type of envelopes over HTTP."""

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
    value = _json_object(body)
    sealed = parsed(value)
    if sealed is None:
        # Anything that resembles an envelope may be for another key, whose holder can refuse it.
        if "ciphertext" in value:
            return None
        raise UnexpectedAnswer("no envelope")
    if key.public not in sealed.kids:
        return None
    unpacked = unpack(sealed, key)
    if unpacked is None:
        raise NotAuthentic("an envelope that does not open: UNDECRYPTABLE")
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


DidMethod2: TypeAlias = Literal["peer4", "peer2", "key"]
"""The method of the wallet's own DIDs: did:peer:4, did:peer:2 or did:key."""


def own_did(own: OwnDids, method: DidMethod2) -> str:
    """The DID of a key pair by this method."""
    return {"peer4": own.peer4, "peer2": own.peer2, "key": own.did_key}[method]


def messaging_service(uri: str) -> Json:
    """The only service of a document; ``uri`` is the wallet's endpoint or its mediator's DID."""
    endpoint = {"uri": uri, "accept": [PROFILE], "routingKeys": []}
    return {"id": "#service", "type": "DIDCommMessaging", "serviceEndpoint": endpoint}


def peer_account(did: str, own: str) -> AgentAccount:
    """The account for which the DID ``own`` packs messages to ``did``.

    Raises:
        UnusableInvitation: ``did`` carries no key to which messages can be packed.
    """
    kid, _ = agreement_key(did)
    document = resolve_document(did)
    account = None if document is None else agent_account(kid, document, own)
    assert account is not None
    return account


def agreement_key(did: str) -> tuple[str, PublicKey]:
    """The id and the key agreement key of a DID, X25519 if it has one.

    Raises:
        UnusableInvitation: the DID carries no such key.
    """
    keys = resolve_document(did)
    name = None if keys is None else keys.preferred_agreement()
    if keys is None or name is None:
        raise UnusableInvitation(f"{did} carries no key agreement key")
    return f"{did}#{name}", keys.agreement[name]


@dataclass(frozen=True)
class Connection2:
    """A wallet's data about itself and its mediator; store them to come back as the same wallet.

    ``endpoint`` is the wallet's own endpoint, or ``QUEUE``. ``is_known`` means that the mediator
    has answered: while the account lasts, it knows the whole DID of a did:peer:4 by the short one.
    """

    key: KeyPair = field(repr=False)
    method: DidMethod2
    endpoint: str
    mediator_did: str
    http_url: str
    ws_url: str
    is_known: bool = False
    media_type: ClassVar[str] = MEDIA_TYPE_2
    """The media type of envelopes over HTTP."""

    @cached_property
    def own(self) -> OwnDids:
        """The wallet's own DIDs for this connection."""
        return OwnDids(self.key, [messaging_service(self.endpoint)])

    @cached_property
    def did(self) -> str:
        """The DID that the wallet uses now."""
        if self.is_known and self.method == "peer4":
            return self.own.peer4_short
        return own_did(self.own, self.method)

    @cached_property
    def _version(self) -> V2:
        return V2(self.own, parse_content=parse_answer)

    @cached_property
    def _mediator(self) -> AgentAccount:
        return peer_account(self.mediator_did, self.did)

    def pack(self, message: Json) -> bytes:
        """Pack a flat message for the mediator, authenticated by the wallet's key.

        Raises:
            UnusableInvitation: nothing can be packed to the mediator's key.
        """
        return self.packed(addressed(from_flat(message), self.did, self.mediator_did))

    def packed(self, written: bytes) -> bytes:
        """Pack an encoded message for the mediator.

        Raises:
            UnusableInvitation: nothing can be packed to the mediator's key.
        """
        return packed_for(self._version, written, self._mediator)

    def open(self, body: bytes) -> Received:
        """Open the mediator's message; return ``body`` itself if it is for another key.

        Raises:
            NotAuthentic: the message is for the connection's key, but not from the mediator.
            UnexpectedAnswer: ``body`` is no envelope, or its content is no message.
        """
        opened = open_for_did(self._version, body)
        if opened is None:
            return body
        message, sender = opened.parsed, opened.sender
        is_mediators = sender is not None and sender.did == self._mediator.did
        if not is_mediators or message.get("from") != self.mediator_did:
            raise NotAuthentic("a message for this connection that is not by the mediator")
        return to_flat(message)


MediatorConnection: TypeAlias = Connection | Connection2
"""A connection of either generation, as transports use it.

Messages are flat objects as in DIDComm v1, whatever form they have on the wire.
"""


def seal_for(version: V2, did: str, message: Json, to: str) -> bytes:
    """Pack a flat message from the DID ``did``, whose keys ``version`` has, for the DID ``to``.

    Raises:
        UnusableInvitation: ``to`` carries no key to which messages can be packed.
    """
    return packed_for(version, addressed(from_flat(message), did, to), peer_account(to, did))


def packed_for(version: V2, written: bytes, account: AgentAccount) -> bytes:
    """Pack an encoded message into an envelope for an account.

    Raises:
        UnusableInvitation: the account's key is of low order, or of another curve than the own key.
    """
    try:
        return version.seal(written, account)
    except ValueError as error:
        raise UnusableInvitation(f"{account.did}: {error}") from error


def open_for_did(version: V2, body: bytes) -> Unpacked | None:
    """Open an envelope; return None if it is for another DID.

    Raises:
        NotAuthentic: the envelope is for this DID and does not open.
        UnexpectedAnswer: ``body`` is no envelope.
    """
    try:
        value = parse(body)
    except JsonRefused as error:
        raise UnexpectedAnswer(f"no envelope: {error}") from error
    opened = version.unpack(value) if isinstance(value, dict) else None
    match opened:
        case None | UnpackRejection.NOT_AN_ENVELOPE:
            # An envelope of another generation is for another key.
            if isinstance(value, dict) and "ciphertext" in value:
                return None
            raise UnexpectedAnswer("no envelope")
        case UnpackRejection():
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
    return _first_of_each(
        [] if document is None else [each.uri for each in messaging_services(document)]
    )


def endpoints(document: Mapping[str, object]) -> tuple[str, str]:
    """The first HTTP and the first WebSocket endpoint of a document; empty if it has none."""
    return _first_of_each([*_endpoints(document.get("service"))])


def _first_of_each(urls: Sequence[str]) -> tuple[str, str]:
    """The first HTTP and the first WebSocket URL; empty if there is none."""
    http = [url for url in urls if url.startswith(("http://", "https://"))]
    websocket = [url for url in urls if url.startswith(("ws://", "wss://"))]
    return (http or [""])[0], (websocket or [""])[0]


def _endpoints(services: object) -> Iterator[str]:
    for service in services if isinstance(services, list) else []:
        endpoint = service.get("serviceEndpoint") if isinstance(service, dict) else None
        url = endpoint.get("uri") if isinstance(endpoint, dict) else endpoint
        if isinstance(url, str):
            yield url
