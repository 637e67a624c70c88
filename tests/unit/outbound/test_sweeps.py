"""With more waiting agents than workers, sweeps give all of them a try within a bounded time."""

from __future__ import annotations

import asyncio

import pytest

from actors.core.commands import QueryConnection, ReleaseLeases
from http_edge.didcomm.envelopes.keys import did_key
from tests.unit.outbound.agent_host import AgentHost, Gate, agent_host, status
from tests.unit.outbound.delivery_network import (
    ALICE,
    BOB,
    DeliveryNetwork,
    envelopes,
    idle,
    raw_key,
)
from tests.unit.test_hang_watch import clock_set_ahead


async def test_a_tenth_of_the_workers_that_failed_make_room_for_agents_of_a_sweep(
    network: DeliveryNetwork,
) -> None:
    dids = [did_key(raw_key(number)) for number in range(10, 50)]
    async with agent_host(running=False) as down:
        for did in dids:
            await network.connect(did, down.url(), queued=envelopes(1))
        workers = network.workers(down.lookup, agents_max=30)
        assert workers.found_waiting(dids[:30]) == 30
        tries = 30
        for turn in range(3):
            await network.identities().answered(ReleaseLeases, tries)
            await network.state(dids[0])  # by the time of an answer the failed ones sleep
            assert workers.found_waiting(dids[30 + 3 * turn :]) == 3
            tries += 3
        assert workers.figures()["agents"] == 30


async def test_of_workers_that_wait_for_their_first_try_a_sweep_stops_few(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    dids = [did_key(raw_key(number)) for number in range(10, 50)]
    agents.answer = gate = Gate()
    for number, did in enumerate(dids):
        await network.connect(did, agents.url(), queued=envelopes(1, first=number))
    workers = network.workers(
        agents.lookup, agents_max=30, in_flight_per_host_max=1, slow_s=60, timeout_s=120
    )
    workers.found_waiting(dids[:30])
    await agents.has(1)
    await network.identities().answered(QueryConnection, 30)
    await network.state(dids[0])  # by the time of an answer all but one stand in line
    assert workers.found_waiting(dids[30:]) == 1
    gate.released.set()
    await idle(workers)
    assert len(agents.received) == 30


async def test_an_agent_that_took_the_place_of_another_has_one_try_until_the_longest_pause(
    network: DeliveryNetwork, agents: AgentHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each failed try is rows in the log, and the place is soon another agent's."""
    agents.answer = status(503)
    goes_on = clock_set_ahead(asyncio.get_running_loop(), monkeypatch)
    for did in (ALICE, BOB):
        await network.connect(did, agents.url(), queued=envelopes(1))
    identities = network.identities()
    workers = network.workers(
        agents.lookup, agents_max=1, retry_s_min=60, retry_s_max=6_000, wakes=ALICE
    )
    await identities.answered(ReleaseLeases)
    await network.state(ALICE)  # by the time of an answer the failed one sleeps
    assert workers.found_waiting([BOB]) == 1
    await identities.answered(ReleaseLeases, 2)
    await network.state(BOB)
    goes_on(60)
    await idle(network.workers(agents.lookup, edge="edge-1", wakes=did_key(raw_key(10))))
    assert sum(isinstance(each, QueryConnection) for each in identities.seen) == 2
    goes_on(6_000)
    await identities.answered(ReleaseLeases, 3)


async def test_an_agent_whose_worker_starts_again_before_its_last_one_has_ended_has_one_worker(
    network: DeliveryNetwork,
) -> None:
    async with agent_host(running=False) as down:
        carol = did_key(raw_key(3))
        for did in (ALICE, BOB, carol):
            await network.connect(did, down.url(), queued=envelopes(1))
        workers = network.workers(down.lookup, agents_max=2)
        workers.found_waiting([ALICE, BOB])
        await network.identities().answered(ReleaseLeases, 2)
        await network.state(ALICE)  # by the time of an answer both sleep
        first = next(iter(workers._queue.waiting)).did
        workers.wake(carol)  # in place of the first
        workers.wake(first)  # in place of the other one
        await asyncio.sleep(0)
        assert [*workers._agents] == [carol, first]
