"""Two edges with messages of one agent: the second one notices that the first one has begun."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aiohttp import web

from actors.core.commands import DeliverMessages, QueryQueue, ReleaseLeases
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


async def test_what_one_edge_has_set_aside_holds_up_no_delivery_of_another(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    (bad, good), (later,) = envelopes(2), envelopes(1, first=2)

    async def refuses(envelope: bytes) -> web.StreamResponse:
        return web.Response(status=400 if envelope == bad else 200)

    agents.answer = refuses
    await network.connect(ALICE, agents.url(), queued=[bad, good])
    network.workers(agents.lookup, wakes=ALICE)
    await network.identities().answered(QueryQueue, 2)  # before and after these two
    assert (await network.state(ALICE)).messages == 1
    await network.queue(ALICE, later)
    await idle(network.workers(agents.lookup, edge="edge-1", wakes=ALICE))
    assert agents.received == [bad, good, later]
    assert await network.waiting(ALICE) == 1
