"""``from_prior`` of DIDComm v2: proven changes of DID, and what proves nothing."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from http_edge.crypto.encoding import b64encode
from http_edge.crypto.signatures import sign
from http_edge.didcomm.envelopes.agent_documents import SeenDids, read_agent_document
from http_edge.didcomm.envelopes.keys import KeyPair, did_key
from http_edge.didcomm.envelopes.messages import (
    DidRotation,
)
from http_edge.didcomm.envelopes.own_dids import OwnDids
from http_edge.didcomm.envelopes.peer_dids import encode_peer2
from http_edge.didcomm.envelopes.recipient_names import canonical_name
from http_edge.didcomm.envelopes.v2.signed import (
    FROM_PRIOR_CHARS_MAX,
    read_from_prior,
    write_from_prior,
)
from tests.unit.didcomm.v2_agent import V2Agent, recipient
from tests.unit.didcomm.v2_mediator import ALICE, OTHER, OWN, PEER4, message, read

PRIOR = V2Agent(OTHER).dids
ALICE_KEY = ALICE.key.public.raw
NOW_S = 1_700_000_000
"""The time of the mediator's envelopes (``v2_mediator``)."""


def prior(rotation: DidRotation, **change: str) -> str:
    kid = f"{PRIOR.peer4}#key-1"
    return write_from_prior(rotation, change.get("kid", kid), OTHER)


def signed(claims: dict[str, Any]) -> str:
    """A JWT of the prior DID, as another agent may write it."""
    head = {"typ": "JWT", "alg": "EdDSA", "kid": f"{PRIOR.peer4}#key-1"}
    whole = {"iss": PRIOR.peer4, "iat": 1, **claims}
    text = ".".join(b64encode(orjson.dumps(part)) for part in (head, whole))
    return f"{text}.{b64encode(sign(OTHER.seed, text.encode()))}"


def test_a_change_of_did_is_proven_by_the_prior_one() -> None:
    moved = DidRotation(PRIOR.peer4, PEER4, 1_600_000_000)
    found = message(from_prior=prior(moved))
    assert found.rotation is not None
    assert found.rotation == DidRotation(
        PRIOR.peer4,
        PEER4,
        1_600_000_000,
        [did_key(OTHER.public), PRIOR.peer4_short],
    )


@pytest.mark.parametrize(
    ("agreement", "has_account"),
    [([], True), ([OTHER.curve_public], True), ([ALICE_KEY], False)],
)
def test_a_key_gives_its_account_away_by_no_did_that_packs_with_another_key(
    agreement: list[bytes], *, has_account: bool
) -> None:
    did = encode_peer2([OTHER.public], [], agreement_keys=agreement)
    proof = write_from_prior(DidRotation(did, PEER4, 1), f"{did}#key-1", OTHER)
    rotation = message(from_prior=proof).rotation
    assert rotation is not None
    of_key = [did_key(OTHER.public)] if has_account else []
    assert rotation.prior_accounts == [*of_key, canonical_name(did)]


def test_a_did_of_a_web_host_gives_no_account_of_its_key_away() -> None:
    did = "did:web:prior.example"
    document = read_agent_document(did, OwnDids(OTHER, web_did=did).merged({"id": did}))
    proof = write_from_prior(DidRotation(did, PEER4, 1), f"{did}#key-1", OTHER)
    seen = SeenDids(fetched={did: document}.get)
    rotation = read_from_prior(proof, seen, lambda _: True, NOW_S)
    assert rotation == DidRotation(did, PEER4, 1, [did])


def test_a_prior_did_may_be_spelled_otherwise_than_in_the_id_of_its_key() -> None:
    for iss, of_key in [(PRIOR.peer4_short, PRIOR.peer4), (PRIOR.peer4, PRIOR.peer4_short)]:
        proof = write_from_prior(DidRotation(iss, PEER4, 1), f"{of_key}#key-1", OTHER)
        seen = SeenDids()
        seen.learn(PRIOR.peer4)
        found = read_from_prior(proof, seen, lambda _: True, NOW_S)
        assert found is not None
        assert found.prior_accounts == [did_key(OTHER.public), PRIOR.peer4_short]
    another = write_from_prior(DidRotation(PEER4, PEER4, 1), f"{PRIOR.peer4}#key-1", OTHER)
    assert read_from_prior(another, SeenDids(), lambda _: True, NOW_S) is None


def test_a_change_to_the_did_of_another_is_not_read() -> None:
    moved = DidRotation(PRIOR.peer4, "did:example:third", 1)
    whole = ALICE.plaintext(PEER4, from_prior=prior(moved))
    assert read(ALICE.pack(whole, recipient(OWN, OWN.peer2), PEER4)) is None


def test_a_change_that_is_not_proven_changes_nothing() -> None:
    good = prior(DidRotation(PRIOR.peer4, PEER4, 1))
    head, payload, signature = good.split(".")
    cases = [
        5,
        "",
        "a.b",
        f"{head}.{payload}.{signature[:-4]}AAAA",
        f"{head}.{payload}",
        prior(DidRotation(PRIOR.peer4, PEER4, 1), kid=f"{PEER4}#key-1"),
        prior(DidRotation(PRIOR.peer4, PEER4, 1), kid=f"{PRIOR.peer4}#key-2"),
        prior(DidRotation("did:web:x.example", PEER4, 1), kid="did:web:x.example#key-1"),
        prior(DidRotation(PRIOR.did_key, PEER4, 1)),
        prior(DidRotation(PRIOR.peer4, PEER4, -1)),
        "x" * 20_000,
    ]
    for text in cases:
        assert message(from_prior=text).rotation is None, text


@pytest.mark.parametrize(
    ("claims", "is_proven"),
    [
        ({}, True),
        ({"sub": None}, True),
        ({"jti": "1", "aud": None, "exp": None, "nbf": None}, True),
        ({"aud": OWN.peer2}, True),
        ({"aud": ["did:example:other", OWN.peer4_short]}, True),
        ({"nbf": NOW_S, "exp": NOW_S + 0.5}, True),
        ({"aud": "https://issuer.example"}, False),
        ({"aud": []}, False),
        ({"nonce": "of a proof for an issuer of credentials"}, False),
        ({"vc": {"type": ["VerifiableCredential"]}}, False),
        ({"sub": PRIOR.peer4}, False),
        ({"jti": "x" * FROM_PRIOR_CHARS_MAX}, False),
        ({"exp": NOW_S}, False),
        ({"nbf": NOW_S + 1}, False),
    ],
)
def test_what_a_key_signed_for_something_else_changes_no_did(
    claims: dict[str, Any], *, is_proven: bool
) -> None:
    proof = signed({"sub": PEER4, **claims})
    found = message(PEER4 if claims.get("sub", PEER4) else None, from_prior=proof)
    assert (found.rotation is not None) is is_proven


@pytest.mark.parametrize(
    ("issued_at", "issued_at_s"),
    [
        (1_600_000_000, 1_600_000_000),
        (1_600_000_000.0, 1_600_000_000),
        (1_600_000_000.999, 1_600_000_000),
        (2**40, 2**40),
        (2**40 + 0.5, None),
        (2**53 - 1, None),
        (1e300, None),
        (-0.5, None),
        (True, None),
        ("1600000000", None),
        (None, None),
    ],
)
def test_a_change_of_did_has_a_date_in_seconds_with_a_fraction_or_without(
    issued_at: object, issued_at_s: int | None
) -> None:
    proof = signed({"sub": PEER4, "iat": issued_at})
    for now_s in (2**41, None):
        found = read_from_prior(proof, SeenDids(), lambda _: True, now_s)
        assert (None if found is None else found.issued_at_s) == issued_at_s


@pytest.mark.parametrize(("chars", "is_to_learn"), [(1, True), (FROM_PRIOR_CHARS_MAX, False)])
def test_a_prior_did_is_learned_if_what_names_it_may_be_a_proof(
    chars: int, *, is_to_learn: bool
) -> None:
    unknown = V2Agent(KeyPair.new()).dids.peer4_short
    head = b64encode(orjson.dumps({"alg": "EdDSA", "kid": f"{unknown}#key-1"}))
    found = message(from_prior=f"{head}.{'x' * chars}.x")
    assert found.is_prior_unproven
    assert found.unknown_prior == (unknown if is_to_learn else "")


@pytest.mark.parametrize(("ahead_s", "is_proven"), [(300, True), (301, False)])
def test_a_date_in_the_future_proves_no_change_of_did(ahead_s: int, *, is_proven: bool) -> None:
    moved = prior(DidRotation(PRIOR.peer4, PEER4, NOW_S + ahead_s))
    ended = prior(DidRotation(PRIOR.peer4, None, NOW_S + ahead_s))
    assert (message(from_prior=moved).rotation is not None) is is_proven
    assert (message(None, from_prior=ended).rotation is not None) is is_proven


def test_a_relationship_is_ended_by_who_has_it() -> None:
    ended = prior(DidRotation(PRIOR.peer4, None, 7))
    whole = ALICE.plaintext(None, from_prior=ended)
    found = read(ALICE.pack(whole, recipient(OWN, OWN.peer2), None))
    assert found is not None
    assert found.rotation is not None
    assert found.rotation.new_did is None
    bob = V2Agent(OTHER)
    found = read(bob.pack(whole, recipient(OWN, OWN.peer2), bob.dids.peer4))
    assert found is not None
    assert found.rotation is not None
    assert read(ALICE.pack(whole, recipient(OWN, OWN.peer2), PEER4)) is None
    in_anothers_name = bob.plaintext(PEER4, from_prior=ended)
    assert read(bob.pack(in_anothers_name, recipient(OWN, OWN.peer2), bob.dids.peer4)) is None
