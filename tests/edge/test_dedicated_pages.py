"""Pages of a dedicated identity: read at another host than that of its nonces, and paid for."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.edge.identities import Identity
from tests.edge.mediator import Answer, HandClock
from tests.edge.moving import MovingMediator
from tests.ports import free_port

RATES: Final = {"per_sender_per_s": 1, "burst_s": 60}
RATE_LIMITED = (429, "RATE_LIMITED")
UNAVAILABLE = (503, "TEMPORARILY_UNAVAILABLE")
EVENTS: Final = 30


async def page(mediator: MovingMediator, owner: Identity) -> Answer:
    """A page of 316 KiB, which costs 31 units; the query itself costs 4."""
    pagination = {"page": 0, "page_size": EVENTS}
    return await mediator.do(owner, "QUERY_EVENTS", filter={}, pagination=pagination)


@pytest.mark.parametrize(
    ("is_dedicated", "refusal"), [(False, RATE_LIMITED), (True, UNAVAILABLE)], ids=["shard", "own"]
)
async def test_an_identity_pays_for_its_pages_whether_it_is_dedicated_or_not(
    tmp_path: Path,
    clock: HandClock,
    alice: Identity,
    is_dedicated: bool,
    refusal: tuple[int, str],
) -> None:
    """What the host of its pages refuses has used up its nonce, so it is no RATE_LIMITED."""
    listen = f"127.0.0.1:{free_port()}"
    where = {"hosts": 2, "listen": listen, "public_url": f"http://{listen}"}
    mediator = MovingMediator(tmp_path, clock, rates=RATES, **where)
    await mediator.start()
    try:
        await mediator.register(alice)
        clock.advance(10)
        event = {"sender_did": alice.did, "recipient_did": alice.did, "timestamp": 1}
        events = [event | {"payload": "x" * 10_800, "encrypted_tags": []}] * EVENTS
        assert (await mediator.do(alice, "SAVE_EVENTS", events=events)).status == 200
        if is_dedicated:
            await mediator.dedicate(alice.did)
        clock.advance(120)
        assert [(await page(mediator, alice)).status for _ in range(2)] == [200, 200]
        refused = await page(mediator, alice)
        assert refused.refusal == refusal
        assert 0 < int(refused.headers["Retry-After"]) < 60
        clock.advance(60)
        assert (await page(mediator, alice)).status == 200
    finally:
        await mediator.stop()
