"""Commands with a contract: its bound comes before its signatures, and it is written once."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from actors.core.refusals import Refusal
from http_edge.crypto.canonical_json import canonical
from http_edge.crypto.mediator_keys import MediatorKeys
from http_edge.crypto.strict_json import parse
from http_edge.decentrl import envelope
from http_edge.decentrl.answers import Rejected
from http_edge.decentrl.command_table import TABLE
from http_edge.decentrl.envelope import CommandEnvelope
from http_edge.decentrl.validator import CommandValidator
from http_edge.dids.resolver import Resolver
from http_edge.settings.settings import Settings
from tests.calls import calls_counted
from tests.edge.identities import (
    Identity,
    Json,
    contract_request,
    contract_terms,
    registration,
    signed_contract,
)

NOW_S = 1_700_000_000
LATER_S = NOW_S + 60.5
MEDIATOR = "did:web:mediator.example"
KEYS = MediatorKeys(bytes(range(32)), bytes(range(32, 64)))
SETTINGS = Settings(did=MEDIATOR)
BYTES_MAX = SETTINGS.limits.contract_bytes_max
VALIDATOR = CommandValidator(SETTINGS, KEYS, Resolver(MEDIATOR, KEYS), TABLE)
ALICE, BOB, CAROL = Identity("alice"), Identity("bob"), Identity("carol")


def _command(payload: Json) -> CommandEnvelope:
    header = {
        "channel": "DIRECT_AUTHENTICATED",
        "sender_did": ALICE.did,
        "sender_signing_key_id": ALICE.key_id,
        "recipient_did": MEDIATOR,
        "timestamp": NOW_S * 1000,
        "nonce": str(uuid.UUID(int=1, version=4)),
    }
    signed = {"header": header, "payload": payload}
    body = json.dumps({**signed, "signature": ALICE.sign(signed)}).encode()
    command = envelope.read(body, did_bytes_max=SETTINGS.limits.did_bytes_max)
    assert isinstance(command, CommandEnvelope)
    return command


def _rejected(payload: Json) -> Rejected | None:
    result = VALIDATOR.validate(_command(payload), NOW_S)
    return result if isinstance(result, Rejected) else result.rejection


def _with_contract(kind: str, *, signs: Identity, **terms: Any) -> Json:
    contract = signed_contract(ALICE, BOB, LATER_S, **terms)
    contract["recipient_signature"] = signs.sign(contract["communication_contract"])
    return {"type": kind, "signed_communication_contract": contract}


def _saved(signs: Identity = BOB, **terms: Any) -> Json:
    return _with_contract("SAVE_COMMUNICATION_CONTRACT", signs=signs, **terms)


def _response(signs: Identity = BOB, **terms: Any) -> Json:
    return _with_contract("COMMUNICATION_CONTRACT_RESPONSE", signs=signs, **terms)


def _registration(signs: Identity = ALICE, **terms: Any) -> Json:
    if signs is ALICE:
        return registration(ALICE, MEDIATOR, KEYS.pre_public, LATER_S, **terms)
    contract = contract_terms(ALICE, MEDIATOR, LATER_S, **terms)
    request = {"communication_contract": contract, "requestor_signature": signs.sign(contract)}
    return contract_request(ALICE, KEYS.pre_public, request)


@pytest.mark.parametrize("payload_of", [_saved, _response, _registration])
def test_a_contract_beyond_its_bound_is_refused_before_its_signatures_are_verified(
    payload_of: Callable[..., Json],
) -> None:
    assert _rejected(payload_of()) is None
    forged = _rejected(payload_of(signs=CAROL))
    assert forged is not None
    assert forged.code is Refusal.INVALID_SIGNATURES
    for payload in (payload_of(note="x" * BYTES_MAX), payload_of(CAROL, note="x" * BYTES_MAX)):
        too_large = _rejected(payload)
        assert too_large is not None
        assert too_large.code is Refusal.INVALID_COMMAND
        assert too_large.detail.endswith(f" more than {BYTES_MAX} bytes")


def _calls(work: Callable[..., object], *args: object) -> int:
    work(*args)  # the first time it also makes what is kept: documents, checks of payloads
    with calls_counted() as counted:
        work(*args)
    return counted[0]


@pytest.mark.parametrize("payload_of", [_saved, _response])
def test_a_contract_is_not_written_again_for_its_signatures_its_id_or_the_log(
    payload_of: Callable[..., Json],
) -> None:
    """To write a fraction takes a few calls; before, each of those wrote them all."""
    few, many = (_command(payload_of(note=[0.5] * number)) for number in (1, 1_001))
    once = _calls(many.signed_bytes) - _calls(few.signed_bytes)
    assert once >= 1_000
    validate = VALIDATOR.validate
    assert _calls(validate, many, NOW_S) - _calls(validate, few, NOW_S) <= once + 100


def test_a_registration_is_written_once() -> None:
    few, many = (_command(_registration(note=[0.5] * number)) for number in (1, 1_001))
    note = [0.5] * 1_000
    read_and_written = _calls(parse, canonical(note)) + _calls(canonical, note)
    validate = VALIDATOR.validate
    assert _calls(validate, many, NOW_S) - _calls(validate, few, NOW_S) <= read_and_written + 100
