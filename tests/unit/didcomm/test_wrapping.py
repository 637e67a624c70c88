from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from http_edge.didcomm.envelopes.keys import KeyPair, base58, did_key, did_key_reference
from http_edge.didcomm.envelopes.messages import Unpacked
from http_edge.didcomm.envelopes.own_dids import OwnDids
from http_edge.didcomm.envelopes.recipient_names import x25519_name
from http_edge.didcomm.envelopes.v1.envelope import OpenedEnvelope, unpack
from http_edge.didcomm.envelopes.v2.version import V2
from http_edge.didcomm.envelopes.versions import wrap
from tests.unit.didcomm.envelopes_v1 import sealed_in

AGENT, NEAR, FAR = (KeyPair.from_seed(bytes([number]) * 32) for number in (1, 2, 3))
DID = did_key(AGENT.public)
PEER_DID = "did:peer:4zQmAgent"
"""What the agent calls itself."""
ENVELOPE = b'{"protected":"e30","iv":"a","ciphertext":"b","tag":"c"}'


def ids() -> Callable[[], str]:
    """Ids that count."""
    numbers = itertools.count(1)
    return lambda: f"id-{next(numbers)}"


def opened(envelope: bytes, key: KeyPair) -> Any:
    """What a mediator with this key reads; no sender is proven."""
    sealed = sealed_in(envelope)
    assert sealed is not None
    unpacked = unpack(sealed, key)
    assert isinstance(unpacked, OpenedEnvelope)
    assert unpacked.sender_key is None
    return orjson.loads(unpacked.plaintext)


@pytest.mark.parametrize("envelope", [b"anything", b'"recipients" of anything'])
def test_without_routing_keys_an_envelope_goes_as_it_is(envelope: bytes) -> None:
    """Nothing is read: that took 15 ms for 512 KiB of DIDComm v2, at every try."""
    assert wrap(envelope, DID, DID, [], ids()) == envelope


def test_each_mediator_on_the_way_learns_the_next_hop_and_no_more() -> None:
    wrapped = wrap(
        ENVELOPE, DID, PEER_DID, [base58(NEAR.public), did_key_reference(FAR.public)], ids()
    )
    assert wrapped is not None
    outer = opened(wrapped, FAR)
    assert outer["@type"] == "https://didcomm.org/routing/1.0/forward"
    assert outer["to"] == base58(NEAR.public)
    inner = opened(orjson.dumps(outer["msg"]), NEAR)
    assert inner["to"] == base58(AGENT.public)
    assert inner["msg"] == orjson.loads(ENVELOPE)
    assert {outer["@id"], inner["@id"]} == {"id-1", "id-2"}


@pytest.mark.parametrize(
    ("did", "routing_key"),
    [
        (DID, OwnDids(FAR).peer2),
        (PEER_DID, did_key_reference(FAR.public)),
        ("did:web:agent.example", base58(FAR.public)),
    ],
)
def test_mediators_learn_an_agent_by_the_did_that_it_has_with_them_if_either_has_no_key(
    did: str, routing_key: str
) -> None:
    wrapped = wrap(ENVELOPE, did, PEER_DID, [routing_key], ids())
    assert wrapped is not None
    version = V2(OwnDids(FAR))
    unpacked = version.unpack(orjson.loads(wrapped))
    assert isinstance(unpacked, Unpacked)
    forward = version.read(unpacked)
    assert forward is not None
    assert (forward.is_forward, forward.body) == (True, {"next": PEER_DID})
    assert forward.attachments[""] == [{"data": {"json": orjson.loads(ENVELOPE)}}]


@pytest.mark.parametrize(
    ("envelope", "did", "key"),
    [
        (ENVELOPE, DID, "no key"),
        (ENVELOPE, DID, base58(bytes(32))),
        (ENVELOPE, DID, x25519_name(bytes(32))),
        (b"", DID, base58(NEAR.public)),
        (b"no json", DID, base58(NEAR.public)),
        (ENVELOPE + b',"to":"x"', DID, base58(NEAR.public)),
    ],
)
def test_what_cannot_be_wrapped_is_not_sent(envelope: bytes, did: str, key: str) -> None:
    assert wrap(envelope, did, did, [key], ids()) is None
