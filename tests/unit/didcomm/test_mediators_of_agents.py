"""An agent whose endpoint is a DID: its mediator, whose own document has the URL."""

from __future__ import annotations

import pytest

from http_edge.didcomm.envelopes.agent_documents import (
    AgentDocument,
    MessagingService,
    SeenDids,
    read_agent_document,
)
from http_edge.didcomm.envelopes.own_dids import OwnDids
from http_edge.didcomm.envelopes.peer_dids import encode_peer4
from http_edge.dids.document import Fetch
from tests.unit.didcomm.v2_mediator import OTHER, OWN

URL = "https://agent.example/in"
KNOWN, NEEDED, FAILED, NONE = (f"did:web:{name}.example" for name in ("a", "b", "c", "d"))
UNSEEN = OwnDids(OTHER).peer4_short


def service(uri: str, *routing_keys: str) -> dict[str, object]:
    endpoint = {"uri": uri, "routingKeys": list(routing_keys)}
    return {"type": "DIDCommMessaging", "serviceEndpoint": endpoint}


def fetched(did: str) -> AgentDocument | Fetch | None:
    there = read_agent_document(KNOWN, {"id": KNOWN, "service": [service("wss://far.example")]})
    results: dict[str, AgentDocument | Fetch] = {
        KNOWN: there,
        NEEDED: Fetch.NEEDED,
        FAILED: Fetch.FAILED,
    }
    return results.get(did)


def agent(*uris: str) -> str:
    """The DID of an agent with these endpoints."""
    return encode_peer4({"service": [service(uri, "did:example:r#1") for uri in uris]})


@pytest.mark.parametrize(
    ("uris", "to_learn", "uri", "routing_keys"),
    [
        ([URL], "", URL, ["did:example:r#1"]),
        ([KNOWN], "", "wss://far.example", [KNOWN, "did:example:r#1"]),
        ([OWN.peer4], "", "https://m.example/didcomm", [OWN.peer4, "did:example:r#1"]),
        ([NEEDED], NEEDED, "", []),
        ([FAILED], FAILED, "", []),
        ([NONE], "", "", []),
        ([UNSEEN], "", "", []),
        ([NEEDED, URL], NEEDED, URL, ["did:example:r#1"]),
        ([URL, NEEDED], "", URL, ["did:example:r#1"]),
        ([NONE, NEEDED, FAILED], NEEDED, "", []),
        ([agent(URL)], "", URL, [agent(URL), "did:example:r#1"]),
        ([agent(KNOWN)], "", "", []),
    ],
)
def test_the_first_service_that_leads_to_a_url_counts_and_before_it_what_is_to_be_learned(
    uris: list[str], to_learn: str, uri: str, routing_keys: list[str]
) -> None:
    """Through one mediator at most: its own endpoint has to be a URL."""
    seen = SeenDids(fetched=fetched)
    assert seen.mediator_to_learn(agent(*uris)) == to_learn
    found = seen.service_of(agent(*uris))
    assert found == (MessagingService(uri, routing_keys) if uri else None)


def test_where_nothing_may_be_fetched_no_mediator_is_to_be_learned() -> None:
    assert SeenDids().mediator_to_learn(agent(NEEDED)) == ""
