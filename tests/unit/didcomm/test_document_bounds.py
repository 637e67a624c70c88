"""What a stranger's document of DIDComm v1 may cost: bounds on its keys and services."""

from __future__ import annotations

import pytest

from http_edge.didcomm.envelopes.keys import KeyPair, base58, did_key, read_key
from http_edge.didcomm.envelopes.peer_documents import (
    KEYS_MAX,
    METHODS_MAX,
    ROUTING_KEYS_MAX,
    SERVICES_MAX,
)
from tests.unit.didcomm.test_documents import KEY, ROUTING, URL, legacy, read

KEYS = [KeyPair.from_seed(bytes([number]) * 32).public for number in range(METHODS_MAX)]


def test_what_others_could_make_grow_is_bounded() -> None:
    service = legacy()["service"][0]
    assert read(legacy(recipientKeys=[base58(KEY)] * (KEYS_MAX + 1))) is None
    several = [base58(ROUTING)] * ROUTING_KEYS_MAX
    assert read(legacy(routingKeys=several)) == ((KEY,), (ROUTING,) * ROUTING_KEYS_MAX, URL)
    assert read(legacy(routingKeys=[*several, base58(ROUTING)])) is None
    many = [{**service, "serviceEndpoint": ""}] * SERVICES_MAX
    assert read(legacy() | {"service": [*many, service]}) == ((KEY,), (ROUTING,), "")
    methods = [{"id": f"#{n}", "publicKeyBase58": base58(KEY)} for n in range(1, METHODS_MAX + 1)]
    late = {"id": "#late", "publicKeyBase58": base58(KEY)}
    document = legacy(recipientKeys=["#late"]) | {"publicKey": [*methods, late]}
    assert read(document) is None


def test_of_a_document_with_many_keys_twelve_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[object] = []

    def counted(text: object) -> bytes | None:
        tried.append(text)
        return read_key(text)

    monkeypatch.setattr("http_edge.didcomm.envelopes.peer_documents.read_key", counted)
    names = list(map(base58, KEYS))
    methods = [{"id": f"#{n}", "publicKeyBase58": name} for n, name in enumerate(names)]
    service = legacy()["service"][0]
    services = [
        {**service, "recipientKeys": names[n : n + KEYS_MAX], "routingKeys": names[n : n + 1]}
        for n in range(SERVICES_MAX)
    ]
    for member, value in (("publicKey", methods), ("service", services)):
        tried.clear()
        read(legacy() | {"publicKey": [], member: value})
        assert len(tried) == len(set(tried)) == 12


def test_the_twelfth_key_of_a_document_is_read_and_the_thirteenth_is_not() -> None:
    methods = [{"id": f"#{n}", "publicKeyBase58": base58(key)} for n, key in enumerate(KEYS[:13])]
    for last, found in ((11, ((KEYS[11],), (), URL)), (12, None)):
        document = legacy(recipientKeys=[f"#{last}"], routingKeys=[])
        assert read(document | {"publicKey": methods}) == found


def test_a_key_that_a_document_repeats_is_counted_once() -> None:
    methods = [{"id": f"#{n}", "publicKeyBase58": base58(KEY)} for n in range(40)]
    document = legacy(recipientKeys=["#39"], routingKeys=[did_key(ROUTING)])
    assert read(document | {"publicKey": methods}) == ((KEY,), (ROUTING,), URL)


@pytest.mark.parametrize("service", [[], [{"type": "IndyAgent", "recipientKeys": []}]])
def test_a_document_that_says_nothing_of_its_keys_is_that_of_the_first_alone(
    service: list[object],
) -> None:
    """Old agents list the keys of their mediators, too, who must not connect as the agent."""
    methods = [{"id": f"#{n}", "publicKeyBase58": base58(key)} for n, key in enumerate(KEYS[:3])]
    bare = {"publicKey": methods, "authentication": [], "service": service}
    assert read(legacy() | bare) == ((KEYS[0],), (), "")
    authentication = ["#2", "#2", {"publicKey": "#1"}, "#unknown"]
    named = bare | {"authentication": authentication}
    assert read(legacy() | named) == ((KEYS[2], KEYS[1]), (), "")


def test_a_key_is_found_by_an_id_without_a_fragment() -> None:
    named = legacy(recipientKeys=["key-1"], routingKeys=[])
    methods = [{"id": "key-1", "publicKeyBase58": base58(KEYS[1])}]
    assert read(named | {"publicKey": methods}) == ((KEYS[1],), (), URL)
