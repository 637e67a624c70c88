"""What a command costs the address that it comes from, also if it is refused."""

from __future__ import annotations

import pytest

from tests.edge.identities import Identity
from tests.edge.mediator import HandClock, Mediator

QUERY = {"type": "QUERY_PENDING_EVENTS"}
NOW_S = 1_800_000_000
RATE_LIMITED = (429, "RATE_LIMITED")


@pytest.mark.parametrize("settings", [{"rates": {"per_address_per_s": 10, "burst_s": 10}}])
async def test_an_address_pays_for_a_command_with_a_wrong_timestamp_as_for_one_without_a_signature(
    mediator: Mediator, alice: Identity
) -> None:
    """Of 100 tokens one takes 17."""
    early = mediator.command(alice, QUERY, timestamp=0)
    answers = [(await mediator.post(early)).refusal for _ in range(7)]
    assert answers[0] == (401, "TIMESTAMP_OUT_OF_RANGE")
    assert answers[6] == RATE_LIMITED


@pytest.mark.parametrize("settings", [{"rates": {"per_address_per_s": 10, "burst_s": 10}}])
async def test_an_address_pays_for_a_command_for_another_mediator_as_for_one_of_a_stranger(
    mediator: Mediator, bob: Identity
) -> None:
    """Of 100 tokens one takes 17, though it is signed: a key may have been made for it."""
    commands = [mediator.command(Identity(str(number)), QUERY, to=bob) for number in range(7)]
    answers = [(await mediator.post(command)).refusal for command in commands]
    assert answers == [(401, "UNAUTHORIZED_COMMAND")] * 6 + [RATE_LIMITED]


@pytest.mark.parametrize(
    "settings",
    [{"rates": {"per_sender_per_s": 0, "per_address_per_s": 10, "burst_s": 10}}],
)
@pytest.mark.parametrize("more", ["x" * 40_000, "\N{EURO SIGN}" * 13_333], ids=["ASCII", "euro"])
async def test_an_address_pays_for_the_bytes_of_a_body_whatever_is_used_of_them(
    mediator: Mediator, alice: Identity, clock: HandClock, more: str
) -> None:
    """Of 100 tokens one with 40 KB takes eleven."""
    await mediator.register(alice)
    clock.advance(60)
    query = {**QUERY, "more": more}
    statuses = [(await mediator.send(alice, query)).status for _ in range(11)]
    assert statuses == [200] * 10 + [429]


@pytest.mark.parametrize(
    "settings",
    [{"rates": {"per_sender_per_s": 0, "per_address_per_s": 10, "burst_s": 10}}],
)
@pytest.mark.parametrize(
    "more", [[1.2345678901] * 3_000, "\U0001f600" * 10_000], ids=["floats", "astral"]
)
async def test_a_body_whose_canonical_form_takes_longer_to_write_is_paid_for_again(
    mediator: Mediator, alice: Identity, clock: HandClock, more: object
) -> None:
    """Of 100 tokens one with 40 KB takes twenty."""
    await mediator.register(alice)
    clock.advance(60)
    query = {**QUERY, "more": more}
    statuses = [(await mediator.send(alice, query)).status for _ in range(6)]
    assert statuses == [200] * 5 + [429]


@pytest.mark.parametrize(
    "settings",
    [{"rates": {"per_sender_per_s": 0, "per_address_per_s": 10, "burst_s": 10}}],
)
@pytest.mark.parametrize(("query", "status"), [(QUERY, 200), ({"type": "?"}, 400)])
async def test_an_address_pays_for_a_repeated_command_as_for_one_without_a_signature(
    mediator: Mediator, alice: Identity, clock: HandClock, query: dict[str, str], status: int
) -> None:
    """Of 100 tokens the command takes one and each copy 17, though all have one valid signature."""
    await mediator.register(alice)
    clock.advance(60)
    command = mediator.command(alice, query)
    assert (await mediator.post(command)).status == status
    repeated = [(await mediator.post(command)).refusal for _ in range(7)]
    assert repeated == [(401, "DUPLICATE_NONCE")] * 6 + [RATE_LIMITED]


@pytest.mark.parametrize(
    "settings", [{"rates": {"per_address_per_s": 10, "burst_s": 10, "limited_answer_s": 0}}]
)
async def test_an_address_pays_for_the_work_of_commands_however_many_identities_send_them(
    mediator: Mediator, clock: HandClock
) -> None:
    """Of 100 tokens one of 15 units takes nearly four, and one of a few units its own."""
    many = [Identity(f"one of many {number}") for number in range(30)]
    for identity in many:
        await mediator.register(identity)
        clock.advance(20)
    event = {
        "sender_did": many[0].did,
        "recipient_did": many[0].did,
        "timestamp": NOW_S,
        "payload": "x",
        "encrypted_tags": [],
    }
    tagged = {**event, "encrypted_tags": [chr(ord("a") + number) for number in range(17)]}
    statuses = [
        (await mediator.do(identity, "SAVE_EVENTS", events=[tagged])).status for identity in many
    ]
    assert statuses == [200] * 26 + [429] * 4
    clock.advance(60)
    few = [(await mediator.do(one, "SAVE_EVENTS", events=[event])).status for one in many * 3]
    assert few == [200] * 90
