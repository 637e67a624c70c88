"""Two edges with messages of one agent: the second one notices that the first one has begun."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from actors.core.commands import DeliverMessages, ReleaseLeases
from tests.unit.outbound.agent_host import AgentHost, Gate
from tests.unit.outbound.delivery_network import ALICE, DeliveryNetwork, envelopes, idle


async def test_an_edge_gives_back_what_it_has_leased_behind_a_delivery_that_began_since_its_query(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    looks_up, goes_on = asyncio.Event(), asyncio.Event()

    async def slow_lookup(host: str, port: int) -> Sequence[str]:
        looks_up.set()
        await goes_on.wait()
        return await agents.lookup(host, port)

    await network.connect(ALICE, agents.url(), queued=envelopes(1))
    agents.answer = gate = Gate()
    second = network.workers(slow_lookup, edge="edge-1", retry_s_min=0.01, wakes=ALICE)
    await looks_up.wait()
    first = network.workers(agents.lookup, wakes=ALICE)
    await agents.has(1)
    await network.queue(ALICE, *envelopes(1, first=1))
    goes_on.set()
    await network.identities("edge-1").answered(DeliverMessages)
    await network.identities("edge-1").answered(ReleaseLeases)
    gate.released.set()
    await idle(first)
    await idle(second)
    assert agents.received == envelopes(2)
    assert agents.under_way_most == 1
    assert await network.waiting(ALICE) == 0
