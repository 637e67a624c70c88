"""A mediator that invites, over real hosts in this process, and wallets that connect to it."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec
import orjson

from actors.core.commands import Connection, QueryConnection
from actors.core.refusals import Refusal
from actors.core.replies import Connected
from http_edge.clients.didcomm.handshake import peer2_did, peer4_did
from http_edge.didcomm.envelopes.keys import KeyPair, base58, curve_public, did_key
from http_edge.didcomm.envelopes.messages import Json
from http_edge.didcomm.envelopes.own_dids import OwnDids
from http_edge.didcomm.envelopes.peer_documents import (
    KEYS_MAX,
    ROUTING_KEYS_MAX,
    PeerDocument,
    is_url,
)
from http_edge.didcomm.envelopes.signed import sign_attachment
from http_edge.didcomm.envelopes.v1.plaintext import write_attachment
from http_edge.didcomm.protocols.admission import Admission
from http_edge.didcomm.protocols.connections import Connections
from http_edge.didcomm.protocols.did_exchange import DidExchange
from http_edge.didcomm.protocols.handshake import HandshakeResponder
from http_edge.didcomm.protocols.invitations import Invitations
from http_edge.didcomm.protocols.out_of_band import OutOfBand
from http_edge.didcomm.protocols.own_address import OwnAddress
from http_edge.didcomm.protocols.protocol import Family, Outcome, Request
from http_edge.settings.settings import DidComm
from tests.edge.mediator import HandClock
from tests.unit.didcomm.requests import NEW, Agents, agents_of, message, request_of, written

HTTP_URL: Final = "https://mediator.example/didcomm"
WS_URL: Final = "wss://mediator.example/didcomm"
QUEUE: Final = "didcomm:transport/queue"
SERVICE: Final = KeyPair.from_seed(b"m" * 32)
_JSON: Final = "application/json"


def is_usable(document: PeerDocument, did: str) -> bool:
    """Whether it is a document of ``did`` to which messages can be packed and sent."""
    recipients, routing = document.recipient_keys, document.routing_keys
    return (
        document.did == did
        and 0 < len(recipients) <= KEYS_MAX
        and len(routing) <= ROUTING_KEYS_MAX
        and all(curve_public(key) is not None for key in (*recipients, *routing))
        and (document.endpoint == "" or is_url(document.endpoint))
    )


class Wallet:
    """An agent with one key, and its DIDs and documents in every form that wallets use."""

    def __init__(self, number: int, endpoint: str = QUEUE) -> None:
        self.key = KeyPair.from_seed(number.to_bytes(32, "big"))
        self.did = did_key(self.key.public)
        self.unqualified = base58(self.key.public[:16])
        self._endpoint = endpoint
        self.peer4, self.peer2 = peer4_did(self.key, endpoint), peer2_did(self.key, endpoint)

    def legacy_document(self) -> dict[str, Any]:
        """The DIDDoc of connections 1.0, as ACA-Py of that time wrote it."""
        did, verkey = self.unqualified, base58(self.key.public)
        return {
            "@context": "https://w3id.org/did/v1",
            "id": f"did:sov:{did}",
            "publicKey": [
                {
                    "id": f"{did}#1",
                    "type": "Ed25519VerificationKey2018",
                    "controller": did,
                    "publicKeyBase58": verkey,
                }
            ],
            "authentication": [
                {"type": "Ed25519SignatureAuthentication2018", "publicKey": f"{did}#1"}
            ],
            "service": [
                {
                    "id": f"{did};indy",
                    "type": "IndyAgent",
                    "priority": 0,
                    "recipientKeys": [verkey],
                    "serviceEndpoint": self._endpoint,
                }
            ],
        }

    def peer1(self) -> Json:
        """A did:peer:1 document, as Credo 0.5 writes it."""
        document: Json = {
            "@context": ["https://w3id.org/did/v1"],
            "verificationMethod": [
                {
                    "id": "#a1b2",
                    "type": "Ed25519VerificationKey2018",
                    "controller": "#id",
                    "publicKeyBase58": base58(self.key.public),
                }
            ],
            "service": [
                {
                    "id": "#inline-0",
                    "serviceEndpoint": self._endpoint,
                    "type": "did-communication",
                    "priority": 0,
                    "recipientKeys": ["#a1b2"],
                    "routingKeys": [],
                }
            ],
            "authentication": ["#a1b2"],
        }
        digits = base58(b"\x12\x20" + sha256(orjson.dumps(document)).digest())
        return {**document, "id": f"did:peer:1z{digits}"}


class Inviter:
    """The families of one mediator, and what they stand on."""

    def __init__(self, agents: Agents, settings: DidComm) -> None:
        self.agents = agents
        self.clock = HandClock()
        self._ids = itertools.count(1)
        public = settings.registration in {"open", "allow_list"}
        self.invitations = Invitations(SERVICE, settings.label, HTTP_URL, public=public)
        self.admission = Admission(settings, self.invitations, clock=self.clock)
        handshake = HandshakeResponder(self.admission, OwnAddress(HTTP_URL, OwnDids(SERVICE)))
        self.own = handshake.documents
        self.families: dict[str, Family] = {
            family.name: family
            for family in (
                Connections(handshake, clock=self.clock).family(),
                DidExchange(handshake).family(),
                OutOfBand(self.admission).family(),
            )
        }

    def new_id(self) -> str:
        """A fresh id."""
        return f"fresh-{next(self._ids)}"

    def invite(self, *, single_use: bool = False, lasts_s: int | None = None) -> str:
        """The id of a new invitation."""
        expires_at_s = None if lasts_s is None else self.clock.now_s + lasts_s
        invitation = self.invitations.make(
            single_use=single_use, expires_at_s=expires_at_s, label=None, new_id=self.new_id
        )
        return invitation.terms.id

    async def ask(self, asks: Request) -> Outcome:
        """What the family of this message makes of it."""
        kind = asks.message.type
        asks = msgspec.structs.replace(asks, identities=self.agents)
        return await self.families[kind.family].handlers[kind.name](asks)

    async def answer(self, asks: Request) -> Json:
        """The reply."""
        return written((await self.ask(asks)).reply, asks.message)

    async def refusal(self, asks: Request) -> str:
        """The code of the problem report that comes back."""
        outcome = await self.ask(asks)
        report = written(outcome.reply, asks.message)
        assert report["@type"] == asks.message.type.sibling("problem_report"), report
        assert not outcome.may_wait
        code = report["problem-code"]
        assert isinstance(code, str)
        return code

    async def connection(self, wallet: Wallet) -> Connection | None:
        """What is known of a wallet, by its owner's word."""
        answer = await self.agents.ask(wallet.did, QueryConnection(), b"q" * 16, Connected)
        return None if isinstance(answer, Refusal) else answer.connection


@asynccontextmanager
async def inviter_of(data_dir: Path, **settings: Any) -> AsyncIterator[Inviter]:
    """A mediator without connections; ``settings`` are those of DIDComm."""
    async with agents_of(data_dir, didcomm=settings) as agents:
        yield Inviter(agents, DidComm.model_validate(settings))


def connection_request(
    wallet: Wallet, invitation: str | None = None, *, prefix: str = NEW, **members: Any
) -> Request:
    """A connections 1.0 request of this wallet."""
    body: Json = {
        "label": "Alice",
        "connection": {"DID": wallet.unqualified, "DIDDoc": wallet.legacy_document()},
        **_thread(invitation),
        **members,
    }
    return request_of(message("connections/1.0/request", prefix, **body), wallet.key.public)


def exchange_request(
    wallet: Wallet, did: str, invitation: str | None = None, *, minor: int = 1, **members: Any
) -> Request:
    """A DID exchange request of this wallet with one of its DIDs."""
    body: Json = {"label": "Alice", "did": did, **_thread(invitation), **members}
    return request_of(message(f"didexchange/1.{minor}/request", **body), wallet.key.public)


def attached(document: Json, key: KeyPair) -> Json:
    """A document signed by a key, as the member that carries it."""
    return {
        "did_doc~attach": write_attachment(
            sign_attachment(orjson.dumps(document), key, media_type=_JSON)
        )
    }


def _thread(invitation: str | None) -> Json:
    return {} if invitation is None else {"~thread": {"thid": "message-1", "pthid": invitation}}
