"""Reading of inbound messages: what a forward asks for, within the limits of the settings."""

from __future__ import annotations

from typing import Any

import pytest

from http_edge.didcomm.reading import MessageReader, ToForward
from http_edge.settings.settings import DidComm
from tests.unit.didcomm.v2_agent import recipient
from tests.unit.didcomm.v2_mediator import ALICE, ENVELOPES, FORWARD, JWE, OWN, PEER4

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
