"""DCTRL-0004 sections 4 to 7: the envelope, the signature, and the order of the checks."""

from __future__ import annotations

import base64
import math
from typing import Any

import orjson
import pytest

from tests.edge.identities import Identity, b64, signed_contract
from tests.edge.mediator import MEDIATOR_DID, Mediator

QUERY = {"type": "QUERY_PENDING_EVENTS"}
UUID_V4 = "6f1d1c6e-5b7a-4b8e-9c2d-1e2f3a4b5c6d"


@pytest.fixture(autouse=True)
async def _alice_is_registered(mediator: Mediator, alice: Identity) -> None:
    await mediator.register(alice)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"1",
        b"\xff\xfe",
        b"\xef\xbb\xbf{}",
        b"{}",
        b'{"header":{},"payload":{},"signature":""}',
        b'{"a":' * 2_000 + b"1" + b"}" * 2_000,
        b"[" * 100_000,
    ],
)
async def test_trap_7_what_is_no_command_is_an_invalid_command(
    mediator: Mediator, body: bytes
) -> None:
    assert (await mediator.post(body)).refusal == (400, "INVALID_COMMAND")


@pytest.mark.parametrize(
    "content_type", ["application/json", "text/plain", "application/x-www-form-urlencoded", ""]
)
async def test_trap_7_the_content_type_does_not_matter(
    mediator: Mediator, alice: Identity, content_type: str
) -> None:
    command = mediator.command(alice, QUERY)
    answer = await mediator.post(command, headers={"Content-Type": content_type})
    assert answer.status == 200


async def test_trap_7_white_space_and_order_of_members_do_not_matter(
    mediator: Mediator, alice: Identity
) -> None:
    command = mediator.command(alice, QUERY)
    backwards = {name: command[name] for name in reversed(list(command))}
    backwards["header"] = dict(reversed(list(command["header"].items())))
    body = orjson.dumps(backwards, option=orjson.OPT_INDENT_2)
    assert (await mediator.post(body)).status == 200


async def test_trap_11_members_beyond_the_six_are_signed_but_mean_nothing(
    mediator: Mediator, alice: Identity
) -> None:
    command = mediator.command(alice, {**QUERY, "comment": "hi"}, trace={"deep": [1, None, "é"]})
    assert (await mediator.post(command)).status == 200
    forged = mediator.command(alice, QUERY)
    forged["header"]["trace"] = "added on the way"
    assert (await mediator.post(forged)).refusal == (401, "INVALID_SIGNATURE")


async def test_trap_11_members_beside_header_and_payload_are_ignored(
    mediator: Mediator, alice: Identity
) -> None:
    command = {**mediator.command(alice, QUERY), "received_at": 1, "extra": {"a": "b"}}
    assert (await mediator.post(command)).status == 200


@pytest.mark.parametrize("timestamp", [0.25, -0.75, 0.0])
async def test_trap_12_a_timestamp_is_any_finite_number(
    mediator: Mediator, alice: Identity, timestamp: float
) -> None:
    answer = await mediator.send(alice, QUERY, timestamp=mediator.clock.now_ms + timestamp)
    assert answer.status == 200


@pytest.mark.parametrize("timestamp", ["1800000000000", True, None, [], {}])
async def test_trap_12_a_timestamp_is_nothing_but_a_number(
    mediator: Mediator, alice: Identity, timestamp: Any
) -> None:
    answer = await mediator.send(alice, QUERY, timestamp=timestamp)
    assert answer.refusal == (400, "INVALID_COMMAND")


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e999"])
async def test_trap_12_a_number_that_is_not_finite_is_not_json(
    mediator: Mediator, alice: Identity, number: bytes
) -> None:
    command = orjson.dumps(mediator.command(alice, QUERY))
    body = command.replace(str(mediator.clock.now_ms).encode(), number)
    assert (await mediator.post(body)).refusal == (400, "INVALID_COMMAND")


@pytest.mark.parametrize("nonce", [UUID_V4, UUID_V4.upper()])
async def test_trap_13_a_nonce_is_a_uuid_of_version_4_in_either_case(
    mediator: Mediator, alice: Identity, nonce: str
) -> None:
    assert (await mediator.send(alice, QUERY, nonce=nonce)).status == 200


@pytest.mark.parametrize(
    "nonce",
    [
        "",
        "6f1d1c6e-5b7a-1b8e-9c2d-1e2f3a4b5c6d",  # version 1
        "6f1d1c6e-5b7a-4b8e-cc2d-1e2f3a4b5c6d",  # another variant
        "6f1d1c6e5b7a4b8e9c2d1e2f3a4b5c6d",
        "{6f1d1c6e-5b7a-4b8e-9c2d-1e2f3a4b5c6d}",
        "6f1d1c6e-5b7a-4b8e-9c2d-1e2f3a4b5c6d\n",
        "6f1d1c6e-5b7a-4b8e-9c2d-1e2f3a4b5c6٣",
        4,
        None,
    ],
)
async def test_trap_13_any_other_nonce_is_an_invalid_command(
    mediator: Mediator, alice: Identity, nonce: Any
) -> None:
    assert (await mediator.send(alice, QUERY, nonce=nonce)).refusal == (400, "INVALID_COMMAND")


@pytest.mark.parametrize("payload", ["text", None, 1, [], True])
async def test_trap_14_a_direct_command_has_an_object_as_payload(
    mediator: Mediator, alice: Identity, payload: Any
) -> None:
    assert (await mediator.send(alice, payload)).refusal == (400, "INVALID_COMMAND")


@pytest.mark.parametrize("payload", [{"type": "QUERY_PENDING_EVENTS"}, None, 1, ["text"], True])
async def test_trap_14_a_message_is_a_string(
    mediator: Mediator, alice: Identity, bob: Identity, payload: Any
) -> None:
    await mediator.register(bob)
    await mediator.befriend(bob, alice)
    answer = await mediator.send(alice, payload, to=bob, channel="TWO_WAY_PRIVATE")
    assert answer.refusal == (400, "INVALID_COMMAND")


async def test_trap_14_the_empty_string_is_a_message(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    await mediator.register(bob)
    await mediator.befriend(bob, alice)
    await mediator.delivered(alice, bob, "")
    assert await mediator.waiting(bob) == [""]


@pytest.mark.parametrize(
    "signature", ["", "not base64!", "AA==", b64(bytes(63)), b64(bytes(64)), b64(bytes(65)), "é"]
)
async def test_trap_15_a_signature_that_is_none_is_invalid(
    mediator: Mediator, alice: Identity, signature: str
) -> None:
    command = {**mediator.command(alice, QUERY), "signature": signature}
    assert (await mediator.post(command)).refusal == (401, "INVALID_SIGNATURE")


@pytest.mark.parametrize("signature", [None, 1, [], {}])
async def test_trap_15_a_signature_is_a_string(
    mediator: Mediator, alice: Identity, signature: Any
) -> None:
    command = {**mediator.command(alice, QUERY), "signature": signature}
    assert (await mediator.post(command)).refusal == (400, "INVALID_COMMAND")


@pytest.mark.parametrize("altchars", [b"+/", b"-_"])
@pytest.mark.parametrize("padding", ["==", ""])
async def test_a_signature_is_read_in_every_form_of_base64(
    mediator: Mediator, alice: Identity, altchars: bytes, padding: str
) -> None:
    command = mediator.command(alice, QUERY)
    raw = base64.b64decode(command["signature"])
    text = base64.b64encode(raw, altchars).decode().rstrip("=") + padding
    assert (await mediator.post({**command, "signature": text})).status == 200


async def test_trap_16_a_key_of_another_identity_is_not_among_the_senders_keys(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    answer = await mediator.send(alice, QUERY, sender_signing_key_id=bob.key_id)
    assert answer.refusal == (404, "SENDER_SIGNING_KEY_NOT_FOUND")


async def test_trap_2_a_pre_key_is_no_signing_key(mediator: Mediator, alice: Identity) -> None:
    answer = await mediator.send(alice, QUERY, sender_signing_key_id=f"{alice.did}#prekey")
    assert answer.refusal == (404, "SENDER_SIGNING_KEY_NOT_FOUND")


@pytest.mark.parametrize(
    "did",
    ["", "alice", "did:unknown:alice", "did:web:alice.example", "did:decentrl:a:b:c:d", "did:é:x"],
)
async def test_trap_17_a_sender_that_does_not_resolve_is_not_found(
    mediator: Mediator, alice: Identity, did: str
) -> None:
    answer = await mediator.send(alice, QUERY, sender_did=did)
    assert answer.refusal == (404, "SENDER_NOT_FOUND")


async def test_trap_18_the_payload_is_judged_after_the_signature_and_before_the_authorization(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    nonsense = {"type": "NONSENSE"}
    command = mediator.command(alice, QUERY)
    assert (await mediator.post({**command, "payload": nonsense})).refusal == (
        401,
        "INVALID_SIGNATURE",
    )
    assert (await mediator.send(bob, nonsense)).refusal == (400, "INVALID_COMMAND")
    assert (await mediator.send(bob, QUERY)).refusal == (401, "UNAUTHORIZED_COMMAND")


@pytest.mark.parametrize("channel", ["", "direct_authenticated", "GROUP", 1, None, ["x"]])
async def test_trap_19_an_unknown_channel_is_an_invalid_command(
    mediator: Mediator, alice: Identity, channel: Any
) -> None:
    answer = await mediator.send(alice, QUERY, channel=channel)
    assert answer.refusal == (400, "INVALID_COMMAND")


@pytest.mark.parametrize("kind", ["", "query_pending_events", "TWO_WAY_PRIVATE", None, 1, {}, []])
@pytest.mark.parametrize("channel", ["DIRECT_AUTHENTICATED", "ONE_WAY_PUBLIC"])
async def test_trap_19_an_unknown_type_is_an_invalid_command(
    mediator: Mediator, alice: Identity, kind: Any, channel: str
) -> None:
    answer = await mediator.send(alice, {"type": kind}, channel=channel)
    assert answer.refusal == (400, "INVALID_COMMAND")


async def test_a_command_of_one_channel_is_none_on_another(
    mediator: Mediator, alice: Identity
) -> None:
    answer = await mediator.send(alice, QUERY, channel="ONE_WAY_PUBLIC")
    assert answer.refusal == (400, "INVALID_COMMAND")


async def test_a_did_beyond_the_bound_is_an_invalid_command(
    mediator: Mediator, alice: Identity
) -> None:
    longest = "did:decentrl:" + "a" * (2048 - len("did:decentrl:"))
    answer = await mediator.send(alice, QUERY, sender_did=longest)
    assert answer.refusal == (404, "SENDER_NOT_FOUND")
    longer: list[dict[str, Any]] = [{"sender_did": longest + "a"}, {"recipient_did": longest + "a"}]
    for header in longer:
        answer = await mediator.send(alice, QUERY, **header)
        assert answer.refusal == (400, "INVALID_COMMAND")


@pytest.mark.parametrize(
    "member",
    [b'"a":"\\ud800"', b'"a":9007199254740993', b'"a":1,"a":1', b'"a":1e400'],
)
async def test_json_that_readers_disagree_about_is_refused_before_its_signature(
    mediator: Mediator, alice: Identity, member: bytes
) -> None:
    body = orjson.dumps(mediator.command(alice, QUERY))
    before, payload, after = body.partition(b'"payload":{')
    answer = await mediator.post(before + payload + member + b"," + after)
    assert answer.refusal == (400, "INVALID_COMMAND")


async def test_the_order_of_the_checks_is_the_one_of_the_specification(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    """Everything is wrong with the first command; each next one has the first fault mended."""
    wrong: dict[str, Any] = {
        "channel": "TWO_WAY_PRIVATE",
        "timestamp": math.floor(mediator.clock.now_ms - 300_001),
        "nonce": UUID_V4,
        "sender_did": "did:decentrl:unknown",
        "sender_signing_key_id": "#other",
        "recipient_did": "did:decentrl:unknown",
    }
    payload: Any = {"no": "string"}
    codes: list[str] = []

    async def send(*, signed: bool = False) -> None:
        command = mediator.command(alice, payload, **wrong)
        if not signed:
            command["signature"] = bob.sign("something else")
        codes.append((await mediator.post(command)).refusal[1])

    await mediator.post({**mediator.command(alice, "x", nonce=UUID_V4), "signature": "A"})
    await send()
    wrong["timestamp"] = mediator.clock.now_ms
    await send()
    wrong["sender_did"] = alice.did
    await send()
    wrong["nonce"] = mediator.nonce()
    await send()
    wrong.update(sender_signing_key_id=alice.key_id, nonce=mediator.nonce())
    await send()
    wrong.update(nonce=mediator.nonce())
    await send(signed=True)
    payload = "a string"
    wrong.update(nonce=mediator.nonce())
    await send(signed=True)
    wrong.update(nonce=mediator.nonce(), recipient_did=bob.did)
    await send(signed=True)
    await mediator.register(bob)
    wrong.update(nonce=mediator.nonce())
    await send(signed=True)
    assert codes == [
        "TIMESTAMP_OUT_OF_RANGE",
        "SENDER_NOT_FOUND",
        "DUPLICATE_NONCE",
        "SENDER_SIGNING_KEY_NOT_FOUND",
        "INVALID_SIGNATURE",
        "INVALID_COMMAND",
        "RECIPIENT_NOT_FOUND",
        "RECIPIENT_NOT_REGISTERED",
        "COMMUNICATION_CONTRACT_NOT_FOUND",
    ]


async def test_trap_33_the_recipient_is_checked_before_the_sender_and_both_say_unauthorized(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    assert (await mediator.send(alice, QUERY, to=bob)).refusal == (401, "UNAUTHORIZED_COMMAND")
    assert (await mediator.send(bob, QUERY)).refusal == (401, "UNAUTHORIZED_COMMAND")
    assert (await mediator.send(bob, QUERY, to=alice)).refusal == (401, "UNAUTHORIZED_COMMAND")
    assert (await mediator.send(alice, QUERY, to=MEDIATOR_DID)).status == 200


async def test_it_is_said_which_of_two_recipients_is_not_registered(
    mediator: Mediator, alice: Identity, bob: Identity, carol: Identity
) -> None:
    contract = signed_contract(carol, bob, mediator.clock.now_s + 60)
    forged = {**contract, "requestor_signature": contract["recipient_signature"]}
    for sent in (contract, forged):
        payload = {
            "type": "COMMUNICATION_CONTRACT_RESPONSE",
            "signed_communication_contract": sent,
        }
        for named, member in (
            (alice, "payload.signed_communication_contract"),
            (carol, "header.recipient_did"),
        ):
            answer = await mediator.send(bob, payload, to=named)
            assert answer.refusal == (404, "RECIPIENT_NOT_REGISTERED")
            assert answer.json["detail"].partition(": ")[0] == member
