from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_edge.crypto import aes_gcm, key_agreement
from http_edge.crypto.canonical_json import canonical
from http_edge.crypto.encoding import b64decode, b64encode
from http_edge.crypto.mediator_keys import MediatorKeys, new_keys
from http_edge.crypto.signatures import sign_object
from http_edge.crypto.strict_json import parse
from http_edge.dids import decentrl
from http_edge.dids.contract_profile import (
    ContractRejection,
    ContractRequest,
    JsonObject,
    RegistrationAccepted,
    VerifiedContract,
    accept_registration,
    accept_request,
    ephemeral_key,
    new_request,
    open_request,
    participants,
    root_secret,
    seal_request,
    verify_request,
    verify_signed_contract,
)
from http_edge.dids.resolver import Resolver

NOW_S = 1_700_000_000.0
EXPIRES_AT_S = 1_730_659_200
MEDIATOR = "did:web:mediator.example"
KEYS = MediatorKeys(bytes(range(32)), bytes(range(32, 64)))
ALICE_KEYS, BOB_KEYS = new_keys(), new_keys()


def _did(alias: str, keys: MediatorKeys) -> str:
    return decentrl.make_did(alias, keys.signing_public, keys.pre_public, MEDIATOR)


ALICE, BOB = _did("alice", ALICE_KEYS), _did("bob", BOB_KEYS)
resolve = Resolver(MEDIATOR, KEYS).known


def _request(recipient: str = MEDIATOR, expires_at_s: float = EXPIRES_AT_S) -> JsonObject:
    ephemeral = key_agreement.new_key_pair()
    return new_request(ALICE, recipient, expires_at_s, ALICE_KEYS.signing_seed, ephemeral.public)


def _resigned(request: JsonObject, **terms: Any) -> JsonObject:
    """The request with other terms (None removes one), signed again by Alice."""
    changed = request["communication_contract"] | terms
    contract = {name: term for name, term in changed.items() if term is not None}
    signature = sign_object(contract, ALICE_KEYS.signing_seed)
    return {"communication_contract": contract, "requestor_signature": signature}


def _register(request: Any, sender: str = ALICE, now_s: float = NOW_S) -> object:
    pair = key_agreement.new_key_pair()
    secret = key_agreement.shared_secret(pair.private, KEYS.pre_public)
    assert secret is not None
    text = request if isinstance(request, bytes) else json.dumps(request).encode()
    sealed = b64encode(aes_gcm.seal(secret, text))
    return _accept(sealed, b64encode(pair.public), sender, now_s)


def _accept(sealed: str, key: str, sender: str = ALICE, now_s: float = NOW_S) -> object:
    opened = open_request(sealed, key, KEYS.pre_private, now_s)
    if isinstance(opened, ContractRejection):
        return opened
    return accept_registration(
        opened, MEDIATOR, sender, KEYS.signing_seed, resolve, bytes_max=16_384
    )


def _registered(request: Any) -> RegistrationAccepted:
    accepted = _register(request)
    assert isinstance(accepted, RegistrationAccepted)
    return accepted


def register_with(**terms: Any) -> object:
    """What comes of Alice's registration with other terms."""
    return _register(_resigned(_request(), **terms))


def is_invalid(outcome: object) -> bool:
    """Rejected for what it says, not for a signature: the protocol's INVALID_COMMAND."""
    return isinstance(outcome, ContractRejection) and not outcome.unsigned


def is_unsigned(outcome: object) -> bool:
    """Rejected for a signature: the protocol's INVALID_SIGNATURES."""
    return isinstance(outcome, ContractRejection) and outcome.unsigned


# ---- registration


def test_a_registration_is_signed_and_verifies_for_everyone() -> None:
    request = _request()
    accepted = _registered(request)
    contract = accepted.signed["communication_contract"]
    added = {"recipient_ephemeral_public_key", "recipient_signing_key_id"}
    assert set(contract) - set(request["communication_contract"]) == added
    assert contract["recipient_signing_key_id"] == MEDIATOR + "#signing"
    assert len(b64decode(contract["recipient_ephemeral_public_key"])) == 32
    assert verify_signed_contract(accepted.signed, NOW_S, resolve) == accepted.contract


def test_a_registration_is_stored_as_canonical_json_with_the_digest_of_its_contract() -> None:
    accepted = _registered(_request())
    signed = canonical(accepted.signed)
    digest = hashlib.sha256(canonical(accepted.signed["communication_contract"])).digest()
    assert accepted.contract == VerifiedContract(ALICE, MEDIATOR, EXPIRES_AT_S, digest, signed)


def test_the_mediators_ephemeral_key_is_fresh_for_every_contract() -> None:
    request = _request()
    keys = {ephemeral_key(_registered(request).signed, "recipient") for _ in range(20)}
    assert len(keys) == 20


def test_unknown_members_of_a_contract_are_signed_kept_and_returned() -> None:
    request = _resigned(_request(), metadata={"b": [1.0, None], "a": "\N{EURO SIGN}"})
    accepted = _registered(request | {"version": 7})
    assert accepted.signed["communication_contract"]["metadata"] == {
        "b": [1.0, None],
        "a": "\N{EURO SIGN}",
    }
    assert "version" not in accepted.signed  # which no one has signed
    assert parse(accepted.contract.signed) == accepted.signed


def test_a_null_key_id_stays_as_the_requestor_signed_it() -> None:
    contract = _request()["communication_contract"] | {"recipient_signing_key_id": None}
    signature = sign_object(contract, ALICE_KEYS.signing_seed)
    accepted = _registered({"communication_contract": contract, "requestor_signature": signature})
    assert accepted.signed["communication_contract"]["recipient_signing_key_id"] is None
    assert verify_signed_contract(accepted.signed, NOW_S, resolve) == accepted.contract


def test_a_request_with_the_signature_inside_the_contract_is_read_too() -> None:
    request = _request()
    bare = request["communication_contract"] | {
        "requestor_signature": request["requestor_signature"]
    }
    accepted = _registered(bare)
    assert accepted.signed["requestor_signature"] == request["requestor_signature"]
    assert verify_signed_contract(accepted.signed, NOW_S, resolve) == accepted.contract


def test_the_other_name_of_the_ephemeral_key_is_read_and_the_first_is_written() -> None:
    request = _request()
    key = request["communication_contract"]["requestor_ephemeral_public_key"]
    other = _resigned(
        request, requestor_ephemeral_public_key=None, requestor_encryption_public_key=key
    )
    signed = _registered(other).signed
    assert ephemeral_key(signed, "requestor") == b64decode(key)
    assert "requestor_ephemeral_public_key" not in signed["communication_contract"]
    assert "recipient_ephemeral_public_key" in signed["communication_contract"]


@pytest.mark.parametrize(
    "terms",
    [
        {"requestor_signing_key_id": None},
        {"recipient_signing_key_id": MEDIATOR + "#signing"},
        {"expires_at": NOW_S + 0.5},
        {"expires_at": 100_000_000_000},
        {"expires_at": 1730659200.25},
    ],
    ids=str,
)
def test_a_request_within_the_rules_is_accepted(terms: dict[str, Any]) -> None:
    accepted = _registered(_resigned(_request(), **terms))
    assert verify_signed_contract(accepted.signed, NOW_S, resolve) == accepted.contract


@pytest.mark.parametrize(
    "terms",
    [
        {"requestor_did": None},
        {"requestor_did": BOB},
        {"requestor_did": 1},
        {"requestor_did": MEDIATOR},
        {"recipient_did": None},
        {"recipient_did": BOB},
        {"recipient_did": ALICE},
        {"expires_at": None},
        {"expires_at": True},
        {"expires_at": "1730659200"},
        {"expires_at": NOW_S},
        {"expires_at": NOW_S - 1},
        {"expires_at": 0},
        {"expires_at": -1},
        {"expires_at": 1e11 + 1},
        {"expires_at": 1_730_659_200_000},
        {"requestor_signing_key_id": 1},
        {"recipient_signing_key_id": 1},
        {"recipient_signing_key_id": MEDIATOR + "#prekey"},
        {"recipient_ephemeral_public_key": b64encode(bytes(32))},
        {"recipient_encryption_public_key": b64encode(bytes(32))},
    ],
    ids=lambda terms: str(terms)[:36],  # no keys: they are others in each process
)
def test_a_request_against_the_rules_is_an_invalid_command(terms: dict[str, Any]) -> None:
    assert is_invalid(_register(_resigned(_request(), **terms)))


@pytest.mark.parametrize("expires_at", ["NaN", "Infinity", "1e999"])
def test_an_expiry_that_is_no_number_is_an_invalid_command(expires_at: str) -> None:
    text = json.dumps(_request()).replace(str(EXPIRES_AT_S), expires_at)
    assert is_invalid(_register(text.encode()))


@pytest.mark.parametrize(
    "plaintext",
    [
        b"",
        b"not json",
        b"null",
        b"[]",
        b'"text"',
        b"{}",
        b'{"communication_contract":null}',
        b'{"communication_contract":[],"requestor_signature":""}',
        b'{"communication_contract":{},"requestor_signature":""}',
        b"\xff" * 40,
    ],
)
def test_a_plaintext_that_is_no_request_is_an_invalid_command(plaintext: bytes) -> None:
    assert is_invalid(_register(plaintext))


def test_a_request_with_a_member_said_twice_is_an_invalid_command() -> None:
    text = json.dumps(_request())
    twice = text.replace('"expires_at"', '"expires_at": 1800000000, "expires_at"')
    assert is_invalid(_register(twice.encode()))


@pytest.mark.parametrize("signature", [None, 1, ["x"]])
def test_a_request_without_a_signature_is_an_invalid_command(signature: object) -> None:
    assert is_invalid(_register(_request() | {"requestor_signature": signature}))


def test_no_sender_registers_another_identity() -> None:
    assert is_invalid(_register(_request(), sender=BOB))
    forged = new_request(BOB, MEDIATOR, EXPIRES_AT_S, ALICE_KEYS.signing_seed, bytes(32))
    assert is_unsigned(_register(forged, sender=BOB))


@pytest.mark.parametrize("signature", ["", "!", b64encode(bytes(64)), b64encode(bytes(63))])
def test_a_request_with_a_wrong_signature_is_refused_as_such(signature: str) -> None:
    request = _request() | {"requestor_signature": signature}
    assert is_unsigned(_register(request))


def test_a_request_signed_by_a_key_that_is_not_in_the_document_is_refused() -> None:
    request = _resigned(_request(), requestor_signing_key_id=ALICE + "#prekey")
    assert is_unsigned(_register(request))


@pytest.mark.parametrize(
    "key", ["", "!", b64encode(bytes(31)), b64encode(bytes(32)), b64encode(b"\x01" + bytes(31))]
)
def test_a_key_that_gives_no_secret_is_an_invalid_command(key: str) -> None:
    sealed = b64encode(aes_gcm.seal(bytes(32), b"{}"))
    assert is_invalid(_accept(sealed, key))


@given(st.text() | st.binary().map(b64encode))
def test_a_text_that_does_not_decrypt_is_an_invalid_command(sealed: str) -> None:
    key = b64encode(key_agreement.new_key_pair().public)
    assert is_invalid(_accept(sealed, key))


# ---- contracts between identities


def _contract(expires_at_s: float = EXPIRES_AT_S) -> JsonObject:
    """A contract that Alice requested and Bob accepted, made with the clients' functions."""
    pair = key_agreement.new_key_pair()
    request = new_request(ALICE, BOB, expires_at_s, ALICE_KEYS.signing_seed, pair.public)
    sealed = seal_request(request, pair.private, BOB_KEYS.pre_public)
    assert sealed is not None
    opened = open_request(sealed, b64encode(pair.public), BOB_KEYS.pre_private, NOW_S)
    assert isinstance(opened, ContractRequest)
    assert (opened.requestor_did, opened.recipient_did, opened.expires_at_s, opened.signed) == (
        *(ALICE, BOB, expires_at_s),
        request,
    )
    assert verify_request(opened, resolve)
    return accept_request(opened, BOB_KEYS.signing_seed, key_agreement.new_key_pair().public)


CONTRACT = _contract()


def test_a_contract_of_two_identities_verifies() -> None:
    signed, terms = canonical(CONTRACT), canonical(CONTRACT["communication_contract"])
    expected = VerifiedContract(ALICE, BOB, EXPIRES_AT_S, hashlib.sha256(terms).digest(), signed)
    assert verify_signed_contract(CONTRACT, NOW_S, resolve) == expected
    assert participants(CONTRACT) == (ALICE, BOB)


def test_both_parties_derive_the_same_root_secret() -> None:
    alice, bob = key_agreement.new_key_pair(), key_agreement.new_key_pair()
    request = new_request(ALICE, BOB, EXPIRES_AT_S, ALICE_KEYS.signing_seed, alice.public)
    signed = accept_request(
        ContractRequest(ALICE, BOB, EXPIRES_AT_S, request), BOB_KEYS.signing_seed, bob.public
    )
    theirs, hers = ephemeral_key(signed, "recipient"), ephemeral_key(signed, "requestor")
    assert theirs is not None
    assert hers is not None
    secret = root_secret(alice.private, theirs)
    assert secret is not None
    assert secret == root_secret(bob.private, hers)


def test_no_secret_is_derived_from_a_key_of_low_order() -> None:
    assert root_secret(ALICE_KEYS.pre_private, bytes(32)) is None
    assert seal_request(_request(), ALICE_KEYS.pre_private, bytes(32)) is None


def test_a_request_does_not_open_for_another_recipient() -> None:
    pair = key_agreement.new_key_pair()
    sealed = seal_request(_request(BOB), pair.private, BOB_KEYS.pre_public)
    assert sealed is not None
    outcome = open_request(sealed, b64encode(pair.public), ALICE_KEYS.pre_private, NOW_S)
    assert is_invalid(outcome)


def _changed(change: Callable[[JsonObject], object]) -> JsonObject:
    signed = copy.deepcopy(CONTRACT)
    change(signed)
    return signed


INVALID_COMMANDS: dict[str, Callable[[JsonObject], object]] = {
    "no contract": lambda c: c.pop("communication_contract"),
    "no requestor signature": lambda c: c.pop("requestor_signature"),
    "no recipient signature": lambda c: c.pop("recipient_signature"),
    "null signature": lambda c: c.update(recipient_signature=None),
    "no requestor": lambda c: c["communication_contract"].pop("requestor_did"),
    "no recipient": lambda c: c["communication_contract"].pop("recipient_did"),
    "no expiry": lambda c: c["communication_contract"].pop("expires_at"),
    "one party": lambda c: c["communication_contract"].update(recipient_did=ALICE),
    "expired": lambda c: c["communication_contract"].update(expires_at=NOW_S),
    "NaN": lambda c: c["communication_contract"].update(expires_at=float("nan")),
    "infinity": lambda c: c["communication_contract"].update(expires_at=float("inf")),
    "milliseconds": lambda c: c["communication_contract"].update(expires_at=1730659200000),
    "key id": lambda c: c["communication_contract"].update(recipient_signing_key_id=[]),
}


@pytest.mark.parametrize("change", INVALID_COMMANDS.values(), ids=INVALID_COMMANDS.keys())
def test_a_malformed_or_expired_contract_is_an_invalid_command(
    change: Callable[[JsonObject], object],
) -> None:
    outcome = verify_signed_contract(_changed(change), NOW_S, resolve)
    assert is_invalid(outcome)


@pytest.mark.parametrize("value", [None, 1, "text", [], {}, [CONTRACT]], ids=type)
def test_what_is_no_contract_is_an_invalid_command(value: object) -> None:
    assert is_invalid(verify_signed_contract(value, NOW_S, resolve))
    assert participants(value) is None


def _swap(signed: JsonObject) -> None:
    signed["requestor_signature"], signed["recipient_signature"] = (
        signed["recipient_signature"],
        signed["requestor_signature"],
    )


OTHER_KEY = b64encode(key_agreement.new_key_pair().public)
INVALID_SIGNATURES: dict[str, Callable[[JsonObject], object]] = {
    "swapped": _swap,
    "requestor signature": lambda c: c.update(requestor_signature=b64encode(bytes(64))),
    "recipient signature": lambda c: c.update(recipient_signature=b64encode(bytes(64))),
    "not base64": lambda c: c.update(recipient_signature="!"),
    "longer life": lambda c: c["communication_contract"].update(expires_at=EXPIRES_AT_S + 1),
    "another member": lambda c: c["communication_contract"].update(metadata=1),
    "another requestor key": lambda c: c["communication_contract"].update(
        requestor_ephemeral_public_key=OTHER_KEY
    ),
    "another recipient key": lambda c: c["communication_contract"].update(
        recipient_ephemeral_public_key=OTHER_KEY
    ),
    "a second recipient key": lambda c: c["communication_contract"].update(
        recipient_encryption_public_key=OTHER_KEY
    ),
    "no recipient key": lambda c: c["communication_contract"].pop("recipient_ephemeral_public_key"),
    "unknown party": lambda c: c["communication_contract"].update(requestor_did="did:x:y"),
    "another party": lambda c: c["communication_contract"].update(requestor_did=MEDIATOR),
    "pre-key": lambda c: c["communication_contract"].update(
        requestor_signing_key_id=ALICE + "#prekey"
    ),
    "the other's key": lambda c: c["communication_contract"].update(
        requestor_signing_key_id=BOB + "#signing"
    ),
}


@pytest.mark.parametrize("change", INVALID_SIGNATURES.values(), ids=INVALID_SIGNATURES.keys())
def test_a_contract_that_either_party_did_not_sign_is_refused_as_such(
    change: Callable[[JsonObject], object],
) -> None:
    outcome = verify_signed_contract(_changed(change), NOW_S, resolve)
    assert is_unsigned(outcome)


def test_a_party_that_does_not_resolve_makes_the_signatures_invalid() -> None:
    for known, party in (([ALICE], "recipient"), ([BOB], "requestor"), ([], "requestor")):
        documents = {did: resolve(did) for did in known}
        rule = f"communication_contract.{party}_did: does not resolve"
        outcome = verify_signed_contract(CONTRACT, NOW_S, documents.get)
        assert outcome == ContractRejection(rule, unsigned=True)


def test_members_beside_the_contract_are_not_kept_since_no_party_signed_them() -> None:
    signed = _changed(lambda c: c.update(note="unsigned"))
    outcome = verify_signed_contract(signed, NOW_S, resolve)
    assert isinstance(outcome, VerifiedContract)
    assert parse(outcome.signed) == CONTRACT
    assert verify_signed_contract(parse(outcome.signed), NOW_S, resolve) == outcome


@given(st.floats(NOW_S, 1e11, exclude_min=True) | st.integers(int(NOW_S) + 1, 10**11))
def test_any_finite_expiry_in_the_future_survives_the_way_through_json(
    expires_at_s: float,
) -> None:
    signed = parse(canonical(_contract(expires_at_s)))
    outcome = verify_signed_contract(signed, NOW_S, resolve)
    assert isinstance(outcome, VerifiedContract)
    assert outcome.expires_at_s == expires_at_s


@pytest.mark.parametrize("key", [None, 1, "!", b64encode(bytes(31)), b64encode(bytes(33))])
def test_a_contract_without_a_usable_ephemeral_key_has_none(key: object) -> None:
    signed = {"communication_contract": {"requestor_ephemeral_public_key": key}}
    assert ephemeral_key(signed, "requestor") is None


def test_a_request_is_written_under_one_set_of_names() -> None:
    request = _request()
    assert set(request) == {"communication_contract", "requestor_signature"}
    assert set(request["communication_contract"]) == {
        "requestor_did",
        "requestor_signing_key_id",
        "requestor_ephemeral_public_key",
        "recipient_did",
        "expires_at",
    }
