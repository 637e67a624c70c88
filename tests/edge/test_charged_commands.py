"""What a command costs the address that it comes from, also if it is refused."""

from __future__ import annotations

import pytest

from tests.edge.identities import Identity
from tests.edge.mediator import MEDIATOR_DID, HandClock, Mediator

QUERY = {"type": "QUERY_PENDING_EVENTS"}
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


@pytest.mark.parametrize(
    "settings",
    [{"rates": {"per_sender_per_s": 0, "per_address_per_s": 10, "burst_s": 10}}],
)
@pytest.mark.parametrize("fault", ["an unknown type", "another mediator", "a used nonce"])
async def test_an_address_pays_by_its_size_for_a_signed_command_that_is_refused_for_itself(
    mediator: Mediator, alice: Identity, bob: Identity, clock: HandClock, fault: str
) -> None:
    """Of 100 tokens one of 32 KiB takes 41 at least: its key may have been made for it."""
    await mediator.register(alice)
    clock.advance(60)
    kind = "UNKNOWN" if fault == "an unknown type" else "QUERY_PENDING_EVENTS"
    to = bob if fault == "another mediator" else MEDIATOR_DID
    command = mediator.command(alice, {"type": kind, "more": "x" * 32_768}, to=to)
    answers = [await mediator.post(command) for _ in range(5)]
    assert answers[4].refusal == RATE_LIMITED
    clock.advance(60)
    assert (await mediator.send(alice, QUERY)).status == 200


@pytest.mark.parametrize(
    "settings",
    [{"rates": {"per_sender_per_s": 0, "per_address_per_s": 10, "burst_s": 10}}],
)
async def test_an_address_pays_for_the_bytes_of_a_body_whatever_is_used_of_them(
    mediator: Mediator, alice: Identity, clock: HandClock
) -> None:
    """Of 100 tokens one with 40 KB takes eleven."""
    await mediator.register(alice)
    clock.advance(60)
    query = {**QUERY, "more": "x" * 40_000}
    statuses = [(await mediator.send(alice, query)).status for _ in range(11)]
    assert statuses == [200] * 10 + [429]
