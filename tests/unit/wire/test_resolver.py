from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from http_edge.crypto.mediator_keys import MediatorKeys
from http_edge.didcomm.envelopes.keys import did_key
from http_edge.dids import decentrl, key
from http_edge.dids.document import DID_CHARS_MAX, DidDocument, Fetch, read_document
from http_edge.dids.fetched import FetchedDids
from http_edge.dids.own_document import mediator_document
from http_edge.dids.resolver import Resolver
from http_edge.dids.web import METHODS, WebDids
from tests.kept_memory import bytes_kept, made_up
from tests.unit.wire.https_host import HttpsHost, https_host
from tests.unit.wire.test_did_web import document

KEYS = MediatorKeys(bytes(range(32)), bytes(range(32, 64)))
OWN = "did:web:mediator.example"
ALICE = decentrl.make_did("alice", KEYS.signing_public, KEYS.pre_public, OWN)
CAROL = did_key(KEYS.signing_public)


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[HttpsHost]:
    async with https_host(tmp_path) as running:
        running.answer = document(running)
        yield running


def _web(host: HttpsHost) -> WebDids:
    return FetchedDids(METHODS, lookup=host.lookup, tls=host.trust, permitted=lambda *_: True)


async def test_the_mediators_own_did_is_never_fetched(host: HttpsHost) -> None:
    own = DidDocument(OWN, {OWN + "#signing": KEYS.signing_public}, KEYS.pre_public)
    for resolver in (Resolver(OWN, KEYS), Resolver(OWN, KEYS, web=_web(host))):
        assert resolver.resolve_now(OWN) == resolver.known(OWN) == own
        assert await resolver.resolve(OWN) == own
    assert own == read_document(OWN, mediator_document(OWN, "https://mediator.example", KEYS))
    assert host.looked_up == []


async def test_dids_that_are_their_own_documents_resolve_at_once() -> None:
    resolver = Resolver(OWN, KEYS)
    assert resolver.resolve_now(ALICE) == await resolver.resolve(ALICE) == decentrl.resolve(ALICE)
    assert resolver.resolve_now(CAROL) == resolver.known(CAROL) == key.resolve(CAROL) is not None


def test_what_was_parsed_once_is_remembered() -> None:
    resolver = Resolver(OWN, KEYS)
    assert resolver.resolve_now(ALICE) is resolver.resolve_now(ALICE)


@made_up
def test_of_long_dids_nothing_is_remembered(made_up: str) -> None:
    resolver = Resolver(OWN, KEYS)
    end = made_up[-900:]
    assert bytes_kept(lambda text: resolver.resolve_now(f"did:decentrl:{text}"), end) < 32


def test_a_long_did_is_resolved_like_any_other() -> None:
    did = decentrl.make_did("a" * 256, KEYS.signing_public, KEYS.pre_public, OWN + ":path" * 20)
    assert len(did) > 512
    assert Resolver(OWN, KEYS).resolve_now(did) == decentrl.resolve(did) is not None


@pytest.mark.parametrize(
    "did", ["", "did:", "did:other:x", "did:decentrl:x", "did:key:x", "did:web", OWN + "#signing"]
)
async def test_an_unknown_or_malformed_did_does_not_resolve(did: str) -> None:
    resolver = Resolver(OWN, KEYS)
    assert resolver.resolve_now(did) is resolver.known(did) is await resolver.resolve(did) is None


async def test_a_foreign_did_web_is_off_by_default(host: HttpsHost) -> None:
    resolver = Resolver(OWN, KEYS)
    assert resolver.resolve_now(host.did) is None
    assert await resolver.resolve(host.did) is None
    why = "is a did:web, which this mediator does not resolve"
    assert resolver.why_unknown(host.did) == why


async def test_a_foreign_did_web_is_fetched_where_it_is_switched_on(host: HttpsHost) -> None:
    resolver = Resolver(OWN, KEYS, web=_web(host))
    assert resolver.resolve_now(host.did) is Fetch.NEEDED
    assert resolver.known(host.did) is None
    found = await resolver.resolve(host.did)
    assert found is not None
    assert resolver.resolve_now(host.did) == resolver.known(host.did) == found
    assert len(host.requests) == 1
    assert resolver.why_unknown(f"{host.did}:other") == "does not resolve"


def test_a_flood_of_dids_is_remembered_only_up_to_the_limit() -> None:
    resolver = Resolver(OWN, KEYS, entries_max=2)
    first = resolver.resolve_now(ALICE)
    for number in range(5):
        resolver.resolve_now(f"did:key:z{number}")
    again = resolver.resolve_now(ALICE)
    assert again == first
    assert again is not first


def test_a_did_beyond_the_length_limit_pushes_nothing_out() -> None:
    resolver = Resolver(OWN, KEYS, entries_max=1)
    first = resolver.resolve_now(ALICE)
    assert resolver.resolve_now("did:key:z" + "6" * DID_CHARS_MAX) is None
    assert resolver.resolve_now("did:web:other.example") is None
    assert resolver.resolve_now(ALICE) is first
