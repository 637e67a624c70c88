"""Agents whose DID documents stand with a host of the test, and the edge's way to that host."""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web

from http_edge.clients.didcomm.connection import agreement_key
from http_edge.didcomm.envelopes.agent_documents import resolve_document
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.envelopes.own_dids import OwnDids
from http_edge.didcomm.envelopes.v2.envelope import Recipient
from http_edge.didcomm.envelopes.v2.version import MEDIA_TYPE
from tests.edge.didcomm.wallet_network import SERVICE, WalletNetwork
from tests.edge.identities import Json
from tests.edge.mediator import Answer, Mediator
from tests.unit.didcomm.v2_agent import PING, V2Agent
from tests.unit.wire.https_host import HttpsHost

MEDIATOR: Final = OwnDids(SERVICE).did_key


def reach(mediator: Mediator, host: HttpsHost) -> None:
    """Let the edge's fetches end at the host of this test, behind all their gates."""
    fetched: Any = mediator.edges[0]._agent_dids
    if fetched is not None:
        fetched._lookup, fetched._tls = host.lookup, host.trust
        fetched._permitted = lambda *_: True


def forget(mediator: Mediator) -> None:
    """Let the edge's documents be as old as they may become."""
    fetched: Any = mediator.edges[0]._agent_dids
    fetched._remembered.clear()


class NetworkAgent:
    """An agent whose DID document stands with a host."""

    def __init__(self, did: str) -> None:
        self.did = did
        self.pair = KeyPair.new()
        self._agent = V2Agent(self.pair)

    @property
    def document(self) -> Json:
        return OwnDids(self.pair, web_did=self.did).merged({"id": self.did})

    def packed(self, kind: str = PING, *, to: str = MEDIATOR, **members: Any) -> bytes:
        """A message of it, to the mediator as a rule."""
        kid, key = agreement_key(to)
        whole = self._agent.plaintext(self.did, type=kind, return_route="all", **members)
        sender = self._agent.dids.did_key
        return self._agent.pack(whole, Recipient(kid, key), sender, kid=f"{self.did}#key-2")

    def opened(self, answer: Answer) -> Json:
        assert answer.status == 200, answer
        mediator = resolve_document(MEDIATOR)
        assert mediator is not None
        return self._agent.open(answer.body, mediator)


def serve(host: HttpsHost, *agents: NetworkAgent) -> None:
    """Let the host have the documents of did:web agents."""
    documents = {agent.did: agent.document for agent in agents}

    async def answer(request: web.Request) -> web.StreamResponse:
        parts = request.path.removesuffix("/did.json").removeprefix("/.well-known").split("/")
        did = ":".join([host.did, *filter(None, parts)])
        if did not in documents:
            raise web.HTTPNotFound
        return web.json_response(documents[did])

    host.answer = answer


async def say(network: WalletNetwork, body: bytes) -> Answer:
    return await network.post(body, content_type=MEDIA_TYPE)
