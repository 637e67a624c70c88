"""What an address has loaded into memory: it pays for it, on requests as on sockets."""

from __future__ import annotations

import pytest

from tests.edge.identities import Identity
from tests.edge.mediator import HandClock, Mediator

QUERY = {"type": "QUERY_PENDING_EVENTS"}
UNAVAILABLE = (503, "TEMPORARILY_UNAVAILABLE")


@pytest.mark.parametrize(
    "settings",
    [
        {
            "rates": {"per_address_per_s": 2, "burst_s": 60},
            "limits": {"active_identities_max": 1},
        }
    ],
)
async def test_an_address_that_has_much_loaded_is_served_what_is_in_memory_until_that_is_paid(
    mediator: Mediator, alice: Identity, bob: Identity, clock: HandClock
) -> None:
    """Each load of Bob's queue takes 6.5 of 120 tokens; opening a socket loads as queries do."""
    await mediator.register(alice, bob)
    await mediator.befriend(bob, alice)
    for number in range(60):
        await mediator.delivered(alice, bob, str(number))
        clock.advance(1)
    clock.advance(120)
    for _ in range(18):
        assert [(await mediator.send(one, QUERY)).status for one in (alice, bob)] == [200, 200]
    assert (await mediator.send(alice, QUERY)).refusal == UNAVAILABLE
    async with mediator.upgrade() as socket:
        await socket.say(mediator.authenticate(alice))
        assert (await socket.hear())["type"] == "AUTH_FAILED"
    assert (await mediator.send(bob, QUERY)).status == 200
    clock.advance(60)
    assert (await mediator.send(alice, QUERY)).status == 200
