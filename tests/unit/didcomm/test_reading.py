"""Reading of inbound messages: what a forward asks for, within the limits of the settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from http_edge.didcomm.envelopes.keys import KeyPair, base58
from http_edge.didcomm.envelopes.messages import NEW_PREFIX
from http_edge.didcomm.envelopes.own_dids import OwnDids
from http_edge.didcomm.envelopes.v1.envelope import pack
from http_edge.didcomm.envelopes.v2.signed import write_signed
from http_edge.didcomm.envelopes.versions import Envelopes
from http_edge.didcomm.reading import ForUs, MessageReader, NotTaken, ToForward
from http_edge.didcomm.rejections import RejectionReason
from http_edge.didcomm.unknown_dids import UnknownDids, methods
from http_edge.dids.fetched import FetchedDids, WebLimits
from http_edge.settings.settings import DidComm
from tests.unit.didcomm.requests import agents_of
from tests.unit.didcomm.v2_agent import recipient
from tests.unit.didcomm.v2_mediator import (
    AGENT,
    ALICE,
    ENVELOPES,
    FORWARD,
    JWE,
    OTHER,
    OURS,
    OWN,
    OWN_DIDS,
    PEER4,
)

LEARNS_NOTHING: Any = None
"""A forward without a sender depends on no unknown DID."""
READER = MessageReader(DidComm(forward_delay_s_max=60), ENVELOPES, LEARNS_NOTHING)


async def delay_ms(wished_ms: object, message_id: str = "message-1") -> int:
    """How long the message of a forward is held back."""
    forward = ALICE.plaintext(
        None,
        id=message_id,
        type=FORWARD,
        body={"next": PEER4},
        attachments=[{"data": {"json": JWE}}],
        delay_milli=wished_ms,
    )
    body = ALICE.pack(forward, recipient(OWN, OWN.peer2), None)
    found = await READER.read(body, b"")
    assert isinstance(found, ToForward)
    return found.envelopes.delay_ms


@pytest.mark.parametrize("amount_ms", [8_000, 10**9])
async def test_a_negative_delay_is_drawn_evenly_from_all_up_to_its_amount(amount_ms: int) -> None:
    up_to_ms = min(amount_ms, 60_000)
    drawn = [await delay_ms(-amount_ms, f"message-{number}") for number in range(200)]
    assert max(drawn) <= up_to_ms
    for quarter in range(4):
        of_quarter = [each for each in drawn if quarter == 4 * each // (up_to_ms + 1)]
        assert 30 < len(of_quarter) < 70


async def test_a_message_that_is_sent_again_draws_the_same_delay() -> None:
    """Although its envelope differs each time: a relay of envelopes cannot know the delay."""
    assert await delay_ms(-(10**9)) == await delay_ms(-(10**9)) > 0


@pytest.mark.parametrize(("wished_ms", "held_ms"), [(8_000, 8_000), (10**9, 60_000), (0, 0)])
async def test_a_delay_is_at_most_that_of_the_settings(wished_ms: int, held_ms: int) -> None:
    assert await delay_ms(wished_ms) == held_ms


TO_US = recipient(OWN, OWN.peer2)


def forward(inner: object, following: str = PEER4, **members: Any) -> dict[str, Any]:
    """The plaintext of a forward."""
    attached = [{"data": {"json": inner}}]
    return ALICE.plaintext(
        PEER4,
        to=[OWN.peer2],
        type=FORWARD,
        body={"next": following},
        attachments=attached,
        **members,
    )


def packed(message: object, sender: str | None) -> Any:
    """An envelope for the mediator, as JSON."""
    return orjson.loads(ALICE.pack(message, TO_US, sender))


def signed(message: object, signatures: int) -> dict[str, Any]:
    whole: dict[str, Any] = write_signed(orjson.dumps(message), f"{PEER4}#key-1", AGENT)
    return {**whole, "signatures": whole["signatures"] * signatures}


def within(inner: object, layers: int) -> Any:
    """An envelope in so many forwards to the mediator itself."""
    for _ in range(layers):
        inner = packed(forward(inner, OWN.peer2), None)
    return inner


V1_FORWARD = orjson.dumps(
    {"@type": "https://didcomm.org/routing/1.0/forward", "@id": "1", "to": "x", "msg": JWE}
)


@pytest.mark.parametrize(
    ("envelope", "work"),
    [
        (orjson.loads(pack(V1_FORWARD, [OURS.public], None)), 1),
        (orjson.loads(pack(V1_FORWARD, [OURS.public], KeyPair.from_seed(b"1" * 32))), 2),
        (packed(forward(JWE), None), 1),
        (packed(forward(JWE), PEER4), 2),
        (packed(packed(forward(JWE), PEER4), None), 3),
        (packed(signed(forward(JWE), 1), None), 2),
        (packed(packed(signed(forward(JWE), 4), PEER4), None), 7),
        (within(packed(forward(JWE), PEER4), 2), 4),
    ],
)
async def test_what_it_takes_to_open_a_forward_is_counted(envelope: object, work: int) -> None:
    found = await READER.read(orjson.dumps(envelope), b"")
    assert isinstance(found, ToForward)
    assert found.work == work


async def test_what_it_takes_to_open_a_message_is_counted_whatever_becomes_of_it() -> None:
    mine = packed(packed(ALICE.plaintext(PEER4), PEER4), None)
    moved = packed(ALICE.plaintext(PEER4, from_prior="e30.e30.e30"), PEER4)
    found = await READER.read(orjson.dumps(moved), b"")
    assert isinstance(found, ForUs)
    assert found.work == 3
    found = await READER.read(orjson.dumps(within(mine, 3)), b"")
    assert isinstance(found, ForUs)
    assert found.work == 6
    deep = await READER.read(orjson.dumps(within(mine, 4)), b"")
    assert deep == NotTaken(RejectionReason.TOO_DEEP, "routing/2.0/forward", 4)
    empty = await READER.read(orjson.dumps(within({**JWE, "ciphertext": ""}, 1)), b"")
    assert empty == NotTaken(RejectionReason.NOT_A_MESSAGE, "routing/2.0/forward", 1)
    others = await READER.read(orjson.dumps({**mine, "recipients": []}), b"")
    assert others == NotTaken(RejectionReason.NOT_AN_ENVELOPE)


def by(kid: str) -> bytes:
    """A message in three forwards to the mediator, packed with the key of another than it names."""
    inner = ALICE.pack(ALICE.plaintext(PEER4), TO_US, PEER4, kid=kid)
    return orjson.dumps(within(orjson.loads(inner), 3))


async def test_the_work_for_what_does_not_open_does_not_show_who_has_an_account(
    tmp_path: Path,
) -> None:
    """Its price follows from it, and the DID of an account may be known already."""
    other, envelopes = OwnDids(OTHER), Envelopes(OWN)
    body = by(f"{other.peer4_short}#key-2")
    async with agents_of(tmp_path) as agents:
        unknown_dids = UnknownDids(agents, envelopes.seen, None)
        reader = MessageReader(DidComm(), envelopes, unknown_dids)
        unknown = await reader.read(body, b"")
        envelopes.seen.learn(other.peer4)
        assert await reader.read(body, b"") == unknown
    assert unknown == NotTaken(RejectionReason.UNDECRYPTABLE, work=3)


async def test_what_was_opened_is_counted_though_its_sender_is_to_try_again() -> None:
    fetched = FetchedDids(methods(lambda: 0), WebLimits(fetches_per_host_max=0))
    envelopes = Envelopes(OWN, fetched=fetched.known)
    identities: Any = None  # only hashed DIDs are asked for
    unknown_dids = UnknownDids(identities, envelopes.seen, fetched)
    reader = MessageReader(DidComm(), envelopes, unknown_dids)
    found = await reader.read(by("did:web:agent.example#key-2"), b"")
    assert found == NotTaken(RejectionReason.TRY_AGAIN, work=3)


async def test_a_change_of_did_is_not_verified_on_a_forward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    verified: list[object] = []
    monkeypatch.setattr(
        "http_edge.didcomm.envelopes.v2.version.read_from_prior",
        lambda text, *_: verified.append(text),
    )
    for sender in (PEER4, None):
        body = orjson.dumps(packed(forward(JWE, from_prior="e30.e30.e30"), sender))
        assert isinstance(await READER.read(body, b""), ToForward)
    assert verified == []


@pytest.mark.parametrize("to", OWN_DIDS)
async def test_a_forward_of_a_v1_agent_to_any_did_of_ours_is_opened(to: str) -> None:
    ping = {"@type": NEW_PREFIX + "trust_ping/1.0/ping", "@id": "ping"}
    inner = orjson.loads(pack(orjson.dumps(ping), [OURS.public], None))
    outer = {"@type": NEW_PREFIX + "routing/1.0/forward", "to": to, "msg": inner}
    found = await READER.read(pack(orjson.dumps(outer), [OURS.public], None), b"")
    assert isinstance(found, ForUs)
    assert found.message.id == "ping"


async def test_a_forward_makes_the_mediator_open_one_envelope_at_most() -> None:
    """Each costs key agreements, and its sender one forward."""
    mine = packed(ALICE.plaintext(PEER4), PEER4)
    two = {**forward(mine, OWN.peer2), "attachments": [{"data": {"json": mine}}] * 2}
    found = await READER.read(orjson.dumps(packed(two, None)), b"")
    assert found == NotTaken(RejectionReason.NOT_A_MESSAGE, "routing/2.0/forward", 1)
    head = {"@type": NEW_PREFIX + "routing/1.0/forward", "msg": mine}
    both = orjson.dumps({**head, "to": [base58(OURS.public), base58(OTHER.public)]})
    found = await READER.read(pack(both, [OURS.public], None), b"")
    assert found == NotTaken(RejectionReason.NOT_A_MESSAGE, "routing/1.0/forward", 1)


@pytest.mark.parametrize("body", [b"[]", b"no json", b'{"id":"did:web:other.example"}', b"{}"])
def test_the_document_of_another_did_is_none_of_a_did_web(body: bytes) -> None:
    """Its keys would be those of a DID that its host does not speak for."""
    assert methods(lambda: 0)["did:web:"].read("did:web:agent.example", body, b"") is None
