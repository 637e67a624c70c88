"""Envelopes of DIDComm v2 that are broken in every way: 400 and a code, and nothing changes.

The negative vectors of SICPA's didcomm-python are among them, made anew on envelopes that are for
the mediator; rows that DIDComm v2.1 allows are answered as what they are.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import orjson
import pytest
from aries_askar import Key
from hypothesis import strategies as st

from http_edge.clients.didcomm import forward_2
from http_edge.crypto.encoding import b64encode
from http_edge.didcomm.envelopes.agent_documents import resolve_document
from http_edge.didcomm.envelopes.key_agreement import PrivateKey, StaticSecrets
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.envelopes.own_dids import OwnDids
from http_edge.didcomm.envelopes.public_keys import Curve, PublicKey, write_jwk, write_multibase
from http_edge.didcomm.envelopes.v2 import envelope
from http_edge.didcomm.envelopes.v2.signed import write_signed
from http_edge.didcomm.envelopes.v2.version import MEDIA_TYPE
from tests.edge.didcomm.newer_wallets import Sender, connected
from tests.edge.didcomm.test_bad_input import samples
from tests.edge.didcomm.wallet_network import SERVICE, WalletNetwork
from tests.unit.didcomm.askar_envelope import from_b64, to_b64
from tests.unit.didcomm.askar_jwe import Change, Named, jwe
from tests.unit.didcomm.test_jwe import SMALL_ORDER
from tests.unit.didcomm.v2_agent import PING, V2Agent

NOT_AN_ENVELOPE: Final = "not-an-envelope"
UNDECRYPTABLE: Final = "undecryptable"
NOT_A_MESSAGE: Final = "not-a-message"
MEDIATOR: Final = OwnDids(SERVICE)
CAROL: Final = V2Agent(KeyPair.from_seed(b"c" * 32))
DID: Final = CAROL.dids.did_key
KID: Final = CAROL.named(DID).agreement_kid
TO: Final = f"{MEDIATOR.did_key}#{MEDIATOR.x25519.split(':')[2]}"
TO_KEY: Final = PublicKey(Curve.X25519, SERVICE.curve_public)
WHOLE: Final = {**CAROL.plaintext(DID, return_route="all"), "type": PING}


def sealed(content: bytes, sender: str | None = KID) -> bytes:
    """Any bytes in an envelope that opens."""
    by = None if sender is None else envelope.Sender(sender, CAROL.key, StaticSecrets(1))
    return envelope.seal(content, [envelope.Recipient(TO, TO_KEY)], by)


def said(**members: Any) -> bytes:
    """A message with members exchanged; None takes one away."""
    whole = {**WHOLE, **members}
    return sealed(orjson.dumps({name: each for name, each in whole.items() if each is not None}))


def changed(sender: str | None = KID, **members: Any) -> bytes:
    """An envelope with members exchanged; None takes one away."""
    value = {**orjson.loads(sealed(orjson.dumps(WHOLE), sender)), **members}
    return orjson.dumps({name: each for name, each in value.items() if each is not None})


def reheaded(change: Change, *, sender: bool = True) -> bytes:
    """An envelope by another library, whose header is changed before it is authenticated."""
    public = Key.from_jwk(json.dumps(write_jwk(TO_KEY)))
    jwk = {**write_jwk(CAROL.key.public), "d": b64encode(CAROL.key.secret)}
    by = Named(KID, Key.from_jwk(json.dumps(jwk))) if sender else None
    return jwe(orjson.dumps(WHOLE), [Named(TO, public)], by, change=change)


def headed(**members: Any) -> bytes:
    """The same, with members of the header exchanged; None takes one away."""

    def change(header: dict[str, Any]) -> None:
        header.update(members)
        for name in [name for name, each in members.items() if each is None]:
            del header[name]

    return reheaded(change)


def twice(body: bytes, member: str) -> bytes:
    """An envelope whose protected header has a member twice."""
    value = orjson.loads(body)
    header = from_b64(value["protected"])
    again = b'{"%b":"x",' % member.encode() + header[1:]
    return orjson.dumps({**value, "protected": to_b64(again)})


def nested(depth: int) -> bytes:
    return b'{"a":' * depth + b"1" + b"}" * depth


def signed(**change: Any) -> Any:
    """A message signed by Carol, with members of the signed form exchanged."""
    plain = orjson.dumps({**WHOLE, "to": [MEDIATOR.did_key]})
    kid = f"{DID}#{DID.split(':')[2]}"
    return {**write_signed(plain, kid, KeyPair.from_seed(b"c" * 32)), **change}


def recipients(**header: Any) -> list[Any]:
    (own,) = orjson.loads(sealed(orjson.dumps(WHOLE)))["recipients"]
    return [{**own, "header": {**own["header"], **header}}]


def vectors() -> Iterator[tuple[str, bytes]]:
    """The negative vectors of encrypted and of signed messages."""
    for sender in (None, KID):
        yield NOT_AN_ENVELOPE, changed(sender, protected="invalid")
        for member in ("ciphertext", "tag", "iv"):
            yield UNDECRYPTABLE, changed(sender, **{member: "invalid"})
        yield UNDECRYPTABLE, sealed(orjson.dumps(signed(payload="invalid")), sender)


def members() -> Iterator[tuple[str, bytes]]:
    """Members that are missing, of another type, there twice, or unknown and critical."""
    for name in ("protected", "iv", "ciphertext", "tag", "recipients"):
        yield NOT_AN_ENVELOPE, changed(KID, **{name: None})
        yield NOT_AN_ENVELOPE, changed(KID, **{name: 7})
    yield NOT_AN_ENVELOPE, changed(recipients=[])
    yield NOT_AN_ENVELOPE, changed(recipients=[{}])
    yield NOT_AN_ENVELOPE, changed(recipients=recipients() * 65)
    yield NOT_AN_ENVELOPE, changed(recipients=recipients(kid=7))
    yield NOT_AN_ENVELOPE, changed(recipients=recipients(kid="did:example:bob#" + "k" * 5_000))
    for name in ("alg", "enc", "apv", "apu", "skid", "epk"):
        yield NOT_AN_ENVELOPE, twice(sealed(orjson.dumps(WHOLE)), name)
    body = sealed(orjson.dumps(WHOLE))
    yield NOT_AN_ENVELOPE, body.replace(b'{"protected"', b'{"tag":"eA","protected"', 1)
    yield NOT_AN_ENVELOPE, body.replace(b'{"kid"', b'{"kid":"did:example:bob","kid"', 1)
    for name, value in {
        "alg": "none", "enc": "none", "crit": ["b64"], "zip": "DEF", "apv": to_b64(b"x" * 32),
        "apu": to_b64(b"did:example:bob#1"), "skid": "did:example:bob#1",
    }.items():  # fmt: skip
        yield NOT_AN_ENVELOPE, headed(**{name: value})
    yield NOT_AN_ENVELOPE, headed(apu=None, skid=None)
    yield NOT_AN_ENVELOPE, headed(enc="A256GCM")  # authcrypt is of one content encryption


def keys() -> Iterator[tuple[str, bytes]]:
    """Keys of other curves, of small order, off their curve, or of an unknown sender."""
    for point in SMALL_ORDER:
        for sender in (False, True):

            def weak(header: dict[str, Any], point: bytes = point) -> None:
                header["epk"]["x"] = to_b64(point)

            yield UNDECRYPTABLE, reheaded(weak, sender=sender)
        weak_did = f"did:key:{write_multibase(PublicKey(Curve.X25519, point))}"
        yield UNDECRYPTABLE, sealed(orjson.dumps(WHOLE), f"{weak_did}#{weak_did.split(':')[2]}")
    for curve in (Curve.P256, Curve.P384, Curve.P521, Curve.SECP256K1):
        other = PrivateKey.new(curve).public
        yield UNDECRYPTABLE, headed(epk=write_jwk(other))
        did = f"did:key:{write_multibase(other)}"
        yield UNDECRYPTABLE, sealed(orjson.dumps(WHOLE), f"{did}#{did.split(':')[2]}")
    off = {**write_jwk(PrivateKey.new(Curve.P256).public), "y": to_b64(b"\1" * 32)}
    for epk in (off, {}, {"kty": "RSA"}, {"kty": "OKP", "crv": "X25519", "x": ""}):
        yield UNDECRYPTABLE, headed(epk=epk)
    for kid in (
        "did:web:x.example#key-1",
        "did:webvh:QmP1perXqTHLPtd2XAXJbyfXm7VG4dA7ANRXAcfQWBEeUP:x.example#key-1",
        f"{DID}#other",
        CAROL.named(CAROL.dids.peer4_short).agreement_kid,
        "did:peer:2.Ez6LSnothing#key-1",
        "did:peer:4zQmNothing#key-1",
        "no DID",
    ):
        yield UNDECRYPTABLE, sealed(orjson.dumps(WHOLE), kid)


def contents() -> Iterator[tuple[str, bytes]]:
    """What is no message, too deep, or another's; the vectors of plaintext among it."""
    for content in (b"", b"\xff", b'"aaa"', b"[1]", b'{"id":"1","id":"2"}', b"{", b"{" * 5_000):
        yield NOT_A_MESSAGE, sealed(content)
    deep = orjson.dumps(WHOLE)[:-1] + b',"deep":' + nested(5_000) + b"}"
    yield NOT_A_MESSAGE, sealed(deep)
    yield NOT_A_MESSAGE, sealed(b"{}")
    for name in ("id", "type", "from"):
        yield NOT_A_MESSAGE, said(**{name: None})
    bads: list[dict[str, Any]] = [
        {"id": 7}, {"id": "x" * 257}, {"type": ""}, {"body": []}, {"from": "did:example:e"},
    ]  # fmt: skip
    for bad in bads:
        yield NOT_A_MESSAGE, said(**bad)
    yield UNDECRYPTABLE, sealed(sealed(orjson.dumps(WHOLE), None), None)  # anonymous twice
    other = write_signed(orjson.dumps({**WHOLE, "to": ["x"]}), "did:key:z6Mk#z6Mk", SERVICE)
    yield UNDECRYPTABLE, sealed(orjson.dumps(other))
    (good,) = signed()["signatures"]
    changes: list[dict[str, Any]] = [
        {"signatures": []}, {"signatures": [{}]}, {"signatures": 7}, {"payload": 7},
        {"signatures": [{**good, "signature": "AAAA"}]}, {"signatures": [good] * 5},
        {"signatures": [{**good, "header": {"kid": KID}}]},
    ]  # fmt: skip
    for change in changes:
        yield UNDECRYPTABLE, sealed(orjson.dumps(signed(**change)))


def texts() -> Iterator[tuple[str, bytes]]:
    """What is no JSON, or one that is too deep."""
    body = sealed(orjson.dumps(WHOLE))
    yield NOT_AN_ENVELOPE, nested(80_000)
    yield NOT_AN_ENVELOPE, body[:-1] + b',"deep":' + nested(5_000) + b"}"
    yield NOT_AN_ENVELOPE, changed(protected=to_b64(nested(5_000)))
    yield NOT_AN_ENVELOPE, orjson.dumps(WHOLE)
    yield NOT_AN_ENVELOPE, orjson.dumps(signed())
    for end in range(0, len(body), 61):
        yield NOT_AN_ENVELOPE, body[:end]


GROUPS: Final = [vectors, members, keys, contents, texts]


@pytest.mark.parametrize("group", GROUPS, ids=lambda each: each.__name__)
async def test_a_broken_envelope_is_refused_and_changes_nothing(
    network: WalletNetwork, group: Any, caplog: pytest.LogCaptureFixture
) -> None:
    facts = network.mediator.facts()
    for number, (code, body) in enumerate(group()):
        answer = await network.post(body, content_type=MEDIA_TYPE)
        assert (answer.status, answer.json) == (400, {"error": code}), (number, body[:200])
    assert network.mediator.facts() == facts
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("group", [contents], ids=lambda each: each.__name__)
async def test_a_broken_envelope_closes_a_socket_with_its_code(
    network: WalletNetwork, group: Any
) -> None:
    facts = network.mediator.facts()
    for code, body in group():
        async with network.socket() as socket:
            await socket.raw.send_bytes(body)
            assert await socket.ended_because() == (4400, code), body[:200]
    assert network.mediator.facts() == facts


async def test_an_envelope_that_is_too_large_is_refused_before_it_is_read(
    network: WalletNetwork,
) -> None:
    body = changed(ciphertext="A" * network.mediator.settings.didcomm.message_bytes_max)
    answer = await network.post(body, content_type=MEDIA_TYPE)
    assert (answer.status, answer.json) == (413, {"error": "message-too-large"})


async def test_what_the_specification_allows_is_answered_as_what_it_is(
    network: WalletNetwork,
) -> None:
    """Rows of the plaintext vectors: no ``body`` (2.1), no ``typ`` or an odd one, attachments that
    a protocol here does not read. All are of a protocol that is unknown here."""
    kind = "http://example.com/protocols/lets_do_lunch/1.0/proposal"
    mediator = resolve_document(MEDIATOR.did_key)
    assert mediator is not None
    attachments: list[Any] = [
        [{}], [{"id": "23"}], [{"id": "23", "data": {}}], "131", [2131], [{"id": 2}],
        [{"id": "23", "data": {"links": ["231", "212"]}}], [{"id": "1", "data": None}],
        [{"id": "1", "data": "None"}],
    ]  # fmt: skip
    rows: list[dict[str, Any]] = [{"body": None}, {"typ": None}, {"typ": "unknown"}]
    rows += [{"attachments": attached} for attached in attachments]
    for row in rows:
        answer = await network.post(said(type=kind, **row), content_type=MEDIA_TYPE)
        assert answer.status == 200, row
        report = CAROL.open(answer.body, mediator)
        assert report["body"]["code"] == "e.p.msg.unsupported", row


async def test_envelopes_with_the_keys_of_others_are_those_of_unknown_recipients(
    network: WalletNetwork,
) -> None:
    """The vectors of the specification are for Bob, who is unknown here."""
    facts = network.mediator.facts()
    text = (Path(__file__).parents[2] / "vectors/didcomm_v2.json").read_bytes()
    for value in orjson.loads(text)["encrypted"].values():
        answer = await network.post(orjson.dumps(value), content_type=MEDIA_TYPE)
        assert (answer.status, answer.body) == (202, b"")
    assert network.mediator.facts() == facts


GENUINE: Final = (sealed(orjson.dumps(WHOLE)), sealed(orjson.dumps(WHOLE), None))


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A genuine envelope with some of its bytes replaced, taken away or added."""
    genuine = draw(st.sampled_from(GENUINE))
    start = draw(st.integers(0, len(genuine)))
    end = draw(st.integers(start, min(len(genuine), start + 8)))
    return genuine[:start] + draw(st.binary(min_size=1, max_size=8)) + genuine[end:]


async def test_a_damaged_envelope_is_never_an_error_of_ours(
    network: WalletNetwork, caplog: pytest.LogCaptureFixture
) -> None:
    facts = network.mediator.facts()
    bodies = [one for one in samples(damaged(), 200) if one not in GENUINE]
    for start in range(0, len(bodies), 20):
        part = bodies[start : start + 20]
        posts = [network.post(body, content_type=MEDIA_TYPE) for body in part]
        for body, answer in zip(part, await asyncio.gather(*posts), strict=True):
            # Blanks can change in an envelope without harm; then it is a stranger's ping.
            assert answer.status in {400, 200}, body
    assert network.mediator.facts() == facts
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []


# ---- no time tells who is registered


async def test_an_unknown_recipient_is_answered_no_sooner_than_a_known_one(
    network: WalletNetwork,
) -> None:
    bob, alice, loop = await connected(network), Sender(network), asyncio.get_running_loop()
    await alice.write(await bob.new_recipient(), "hello")
    (edge,) = network.mediator.edges
    mediation: Any = edge._mediation
    mediation.endpoint._inbound._times._stored_s = deque([0.2], 64)  # as if the log took so long
    started_s = loop.time()
    unknown = KeyPair.new()
    answer = await alice.forward(OwnDids(unknown).peer4, "x", routing_did=bob.routing_did)
    assert (answer.status, answer.body) == (202, b"")
    assert loop.time() - started_s > 0.19


async def refused_in_its_time(network: WalletNetwork, body: bytes, said: str) -> None:
    """An envelope is refused for this, no sooner than what cannot be opened."""
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    answer = await network.post(body, content_type=MEDIA_TYPE)
    assert (answer.status, answer.json) == (400, {"error": said})
    assert loop.time() - started_s > 0.19


async def test_a_sender_with_an_account_and_one_without_are_refused_at_one_time(
    network: WalletNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("http_edge.didcomm.answer_times.UNOPENED_S", 0.2)
    bob = await connected(network)
    known, unknown = bob.connection.own.peer4_short, OwnDids(KeyPair.new()).peer4_short
    assert bob.connection.did == known
    await network.mediator.restart()
    for did in (known, known, unknown):
        body = sealed(orjson.dumps(WHOLE), f"{did}#key-2")
        await refused_in_its_time(network, body, UNDECRYPTABLE)


async def test_a_prior_did_that_is_not_proven_tells_nothing_by_the_time_of_the_answer(
    network: WalletNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it has an account is in memory here, asked of others, or not known."""
    monkeypatch.setattr("http_edge.didcomm.answer_times.UNOPENED_S", 0.2)
    bob = await connected(network)
    known, unknown = bob.connection.own.peer4_short, OwnDids(KeyPair.new()).peer4_short
    for did in (known, unknown, "x"):
        header = to_b64(orjson.dumps({"alg": "EdDSA", "kid": f"{did}#key-1"}))
        body = sealed(orjson.dumps({**WHOLE, "from_prior": f"{header}.e30.{'A' * 86}"}), None)
        await refused_in_its_time(network, body, "anonymous")


async def test_unknown_names_are_counted_by_their_form(network: WalletNetwork) -> None:
    bob, alice, unknown = await connected(network), Sender(network), OwnDids(KeyPair.new())
    for did in (unknown.peer2, unknown.peer4, unknown.x25519, "did:web:unknown.example"):
        body = forward_2([alice.sealed("x", unknown.did_key)], did, bob.routing_did)
        assert (await network.post(body, content_type=MEDIA_TYPE)).status == 202
    await network.mediator.restart()
    assert {entry.reason for entry in network.mediator.refused()} == {
        "unknown-recipient:did:peer:3",
        "unknown-recipient:did:peer:4",
        "unknown-recipient:x25519",
        "unknown-recipient:did:web",
    }
