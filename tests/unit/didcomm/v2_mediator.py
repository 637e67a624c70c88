"""A mediator that speaks DIDComm v2, and an agent that writes to it; for tests."""

from __future__ import annotations

from typing import Any

from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.envelopes.messages import (
    NEW_PREFIX,
    Message,
    Unpacked,
)
from http_edge.didcomm.envelopes.own_dids import OwnDids, own_services
from http_edge.didcomm.envelopes.versions import (
    Envelopes,
)
from tests.unit.didcomm.v2_agent import V2Agent, recipient

OURS, AGENT, OTHER = (KeyPair.from_seed(bytes([number]) * 32) for number in (1, 2, 3))
OWN = OwnDids(
    OURS,
    own_services("https://m.example/didcomm"),
    web_did="did:web:m.example",
)
ENVELOPES = Envelopes(OWN, lambda: 1_700_000_000)
ALICE = V2Agent(AGENT)
PEER4 = ALICE.dids.peer4
OWN_DIDS = [OWN.did_key, OWN.x25519, OWN.peer2, OWN.peer4, OWN.peer4_short, OWN.web]
ALICE_DIDS = [ALICE.dids.did_key, ALICE.dids.x25519, ALICE.dids.peer2, PEER4]
FORWARD = NEW_PREFIX + "routing/2.0/forward"
JWE = {"protected": "e30", "recipients": [], "iv": "aXY", "ciphertext": "Y2k", "tag": "dGFn"}


def unpacked(body: bytes, envelopes: Envelopes = ENVELOPES) -> Unpacked:
    found = envelopes.unpack(body)
    assert isinstance(found, Unpacked), found
    return found


def read(body: bytes, envelopes: Envelopes = ENVELOPES) -> Message | None:
    found = unpacked(body, envelopes)
    return envelopes.of(found.version).read(found)


def message(sender: str | None = PEER4, **members: Any) -> Message:
    body = ALICE.pack(ALICE.plaintext(sender, **members), recipient(OWN, OWN.peer2), sender)
    found = read(body)
    assert found is not None
    return found
