from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import pytest

from actors.core.commands import (
    Connect,
    DeliverMessages,
    QueryConnection,
    QueryQueue,
    QueueEnvelopes,
    ReleaseLeases,
)
from actors.core.refusals import Refusal
from http_edge.didcomm.envelopes.keys import did_key
from http_edge.didcomm.outbound import worker
from http_edge.didcomm.outbound.pool import DeliveryWorkers
from http_edge.didcomm.outbound.responsiveness import Responsiveness
from http_edge.didcomm.outbound.worker import BATCH_MESSAGES_MAX, QUERYING_MAX
from tests.unit.outbound.agent_host import WAIT_S, AgentHost, Gate, agent_host, status
from tests.unit.outbound.delivery_network import (
    ALICE,
    BOB,
    LOOPBACK,
    DeliveryNetwork,
    envelopes,
    idle,
    raw_key,
)
from tests.unit.watched_identities import WatchedIdentities

YEAR_MS: Final = 365 * 86_400_000
STRANGERS: Final = (did_key(raw_key(10)), did_key(raw_key(11)))


async def test_switched_off_nothing_is_delivered(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    await network.connect(ALICE, agents.url(), queued=envelopes(1))
    workers = network.workers(agents.lookup, enabled=False, wakes=ALICE)
    workers.found_waiting([ALICE])
    await idle(workers)
    assert agents.received == []
    assert set(network.identities().counts) <= {QueueEnvelopes, Connect}


async def test_one_slow_agent_does_not_hold_up_another(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    async with agent_host() as others:
        await network.connect(ALICE, agents.url())
        await network.connect(BOB, others.url())
        await network.queue(ALICE, *envelopes(1))
        await network.queue(BOB, *envelopes(3))
        agents.answer = gate = Gate()
        workers = network.workers(agents.lookup, wakes=ALICE)
        await agents.has(1)
        workers.wake(BOB)
        await others.has(3)
        assert await network.waiting(ALICE) == 1
        gate.released.set()
        await idle(workers)
        assert len(agents.received) == 1


async def test_no_more_deliveries_to_one_host_than_the_bound_under_whatever_names(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    dids = [did_key(raw_key(number)) for number in range(10, 16)]
    for number, did in enumerate(dids):
        await network.connect(did, agents.url(host=f"name-{number}.example"))
        await network.queue(did, *envelopes(1, first=number))
    agents.answer = gate = Gate()
    workers = network.workers(agents.lookup, in_flight_per_host_max=2)
    for did in dids:
        workers.wake(did)
    await agents.has(2)
    gate.released.set()
    await idle(workers)
    assert agents.under_way_most == 2
    assert sorted(agents.received) == envelopes(6)


async def test_two_edges_never_deliver_the_same_message_and_keep_the_order(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    await network.connect(ALICE, agents.url())
    sent = envelopes(50)
    await network.queue(ALICE, *sent)
    pools = [
        network.workers(agents.lookup, edge=edge, retry_s_min=0.01) for edge in ("edge-0", "edge-1")
    ]
    for workers in pools:
        workers.wake(ALICE)
    for workers in pools:
        await idle(workers)
    assert agents.received == sent
    assert sum(workers.figures()["delivered"] for workers in pools) == len(sent)
    assert await network.waiting(ALICE) == 0


async def test_an_edge_waits_while_another_one_delivers(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    await network.connect(ALICE, agents.url())
    sent = envelopes(BATCH_MESSAGES_MAX + 5)
    await network.queue(ALICE, *sent)
    agents.answer = gate = Gate()
    first = network.workers(agents.lookup)
    second = network.workers(agents.lookup, edge="edge-1", retry_s_min=0.01)
    first.wake(ALICE)
    await agents.has(1)
    second.wake(ALICE)
    await network.identities("edge-1").answered(QueryQueue, 3)
    assert DeliverMessages not in network.identities("edge-1").counts
    gate.released.set()
    await idle(first)
    await idle(second)
    assert agents.received == sent


async def test_a_message_of_an_agent_brings_its_next_try_forward_and_begins_nothing(
    network: DeliveryNetwork,
) -> None:
    async with agent_host(running=False) as agents:
        await network.connect(ALICE, agents.url(), queued=envelopes(1))
        workers = network.workers(agents.lookup)
        workers.sender_seen(ALICE)
        assert workers.figures()["agents"] == 0
        workers.wake(ALICE)
        await network.identities().answered(ReleaseLeases)
        await agents.start()
        workers.sender_seen(ALICE)
        await idle(workers)
        assert agents.received == envelopes(1)


async def test_an_agent_that_is_found_while_its_worker_runs_has_one_worker_that_looks_again(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    await network.connect(ALICE, agents.url())
    workers = network.workers(agents.lookup)

    async def queue_one() -> None:
        await network.queue(ALICE, *envelopes(1))
        workers.found_waiting([ALICE])
        running.append(len(workers._tasks))

    running: list[int] = []
    network.identities().before_answer[QueryQueue] = queue_one
    workers.wake(ALICE)
    await idle(workers)
    assert running == [1]
    assert agents.received == envelopes(1)


async def test_agents_beyond_the_bound_are_found_later(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    for did in (ALICE, BOB):
        await network.connect(did, agents.url())
        await network.queue(did, did.encode())
    agents.answer = gate = Gate()
    workers = network.workers(agents.lookup, agents_max=1, wakes=ALICE)
    await agents.has(1)
    workers.wake(BOB)
    workers.found_waiting([ALICE, BOB])
    assert workers.figures()["agents"] == 1
    gate.released.set()
    await idle(workers)
    workers.found_waiting([BOB])
    await idle(workers)
    assert agents.received == [ALICE.encode(), BOB.encode()]


async def test_a_sweep_that_finds_many_agents_queries_few_queues_at_once(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    await network.connect(ALICE, agents.url(), queued=envelopes(1))
    dids = [did_key(raw_key(number)) for number in range(10, 310)]
    workers = network.workers(agents.lookup)
    workers.found_waiting([*dids, ALICE])
    await idle(workers)
    identities = network.identities()
    assert identities.counts[QueryQueue] > len(dids)
    assert identities.under_way_most <= 2 * QUERYING_MAX
    assert agents.received == envelopes(1)


async def test_an_agent_whose_queries_wait_makes_room_for_one_with_a_new_message(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    await network.connect(ALICE, agents.url(), queued=envelopes(1))
    dids = [did_key(raw_key(number)) for number in range(10, 10 + QUERYING_MAX + 1)]
    workers = network.workers(agents.lookup, agents_max=len(dids))
    workers.found_waiting(dids)
    await asyncio.sleep(0)  # all have begun: the last one waits
    assert workers.found_waiting([ALICE]) == 0
    workers.wake(ALICE)
    assert workers.figures()["agents"] == len(dids)
    await idle(workers)
    assert agents.received == envelopes(1)


class Hanging:
    """A host that does not answer questions about queues until it ``host_is_back``."""

    def __init__(self) -> None:
        self.host_is_back = asyncio.Event()

    async def all_of(self, identities: WatchedIdentities) -> None:
        """Let ``QUERYING_MAX`` questions hang; return once they do. Later ones are answered."""
        count, all_hang = 0, asyncio.Event()

        async def hang() -> None:
            nonlocal count
            count += 1
            identities.before_answer[QueryQueue] = hang
            if count == QUERYING_MAX:
                all_hang.set()
            await self.host_is_back.wait()

        identities.before_answer[QueryQueue] = hang
        await asyncio.wait_for(all_hang.wait(), WAIT_S)
        identities.before_answer.clear()


async def test_agents_whose_host_is_away_do_not_keep_others_from_querying(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    await network.connect(ALICE, agents.url(), queued=envelopes(1))
    identities = network.identities()
    hanging = Hanging()
    away = Refusal.TEMPORARILY_UNAVAILABLE
    identities.refused |= {QueryConnection: away, QueryQueue: away}
    workers = network.workers(agents.lookup, retry_s_min=0.01, retry_s_max=0.01)
    workers.found_waiting([did_key(raw_key(number)) for number in range(10, 10 + QUERYING_MAX)])
    await identities.answered(QueryQueue, QUERYING_MAX)
    await hanging.all_of(identities)
    identities.refused.clear()
    workers.wake(ALICE)
    await agents.has(1)
    hanging.host_is_back.set()
    await idle(workers)


async def test_agents_whose_host_hangs_keep_others_from_querying_for_a_bounded_time(
    network: DeliveryNetwork, agents: AgentHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_QUERY_S_MAX", 0)
    await network.connect(ALICE, agents.url(), queued=envelopes(1))
    identities = network.identities()
    hanging = Hanging()
    workers = network.workers(agents.lookup)
    workers.found_waiting([did_key(raw_key(number)) for number in range(10, 10 + QUERYING_MAX)])
    await hanging.all_of(identities)
    workers.wake(ALICE)
    await agents.has(1)
    hanging.host_is_back.set()
    await idle(workers)


async def test_an_agent_that_fails_makes_room_for_one_with_a_new_message(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    async with agent_host(running=False) as down:
        await network.connect(ALICE, down.url())
        await network.connect(BOB, agents.url())
        for did in (ALICE, BOB):
            await network.queue(did, did.encode())
        workers = network.workers(agents.lookup, agents_max=1, retry_s_min=60, wakes=ALICE)
        await network.identities().answered(ReleaseLeases)
        await network.state(ALICE)  # by the time of an answer the failed one sleeps
        workers.wake(BOB)
        await idle(workers)
        assert agents.received == [BOB.encode()]
        assert await network.waiting(ALICE) == 1


@pytest.mark.parametrize(("ahead_at", "of_round"), [(None, 3), (1, 4)])
async def test_sweeps_reach_each_agent_again_while_all_fail_and_new_ones_come(
    network: DeliveryNetwork, ahead_at: int | None, of_round: int
) -> None:
    dids = [did_key(raw_key(number)) for number in range(10, 16)]
    found: list[str] = []
    async with agent_host(running=False) as down:
        workers = network.workers(down.lookup, agents_max=1)
        for tries, did in enumerate(dids, start=1):
            await network.connect(did, down.url(), queued=envelopes(1))
            network.now_ms += 1
            ahead_ms = YEAR_MS if tries == ahead_at else 0
            network.now_ms += ahead_ms
            await workers.sweep(network.outbound_queues)
            network.now_ms -= ahead_ms
            found += workers._agents
            await network.identities().answered(ReleaseLeases, tries)
            await network.state(did)  # by the time of an answer the failed one sleeps
    # A round ends with the first queue that is newer than its begin, by a clock that is right.
    assert found == [*dids[:of_round], *dids[: 6 - of_round]]


async def test_sweeps_reach_each_agent_whose_messages_came_by_a_clock_that_was_ahead(
    network: DeliveryNetwork,
) -> None:
    dids = [did_key(raw_key(number)) for number in range(10, 13)]
    async with agent_host(running=False) as down:
        for did in dids:
            await network.connect(did, down.url(), queued=envelopes(1))
        network.now_ms -= YEAR_MS
        workers = network.workers(down.lookup, agents_max=1)
        for tries in (1, 2, 3):
            await workers.sweep(network.outbound_queues)
            (did,) = workers._agents
            dids.remove(did)
            await network.identities().answered(ReleaseLeases, tries)
            await network.state(did)


async def test_a_sweep_does_not_start_a_worker_again_that_it_has_stopped(
    network: DeliveryNetwork,
) -> None:
    first, second, third = dids = [did_key(raw_key(number)) for number in range(10, 13)]
    running: list[list[str]] = []
    async with agent_host(running=False) as down:
        workers = network.workers(down.lookup, agents_max=2)
        for tries in (1, 2, 3, 4, 4):
            if len(running) < len(dids):
                await network.connect(dids[tries - 1], down.url(), queued=envelopes(1))
                network.now_ms += 1
            await workers.sweep(network.outbound_queues)
            running.append([*workers._agents])
            await network.identities().answered(ReleaseLeases, tries)
            await network.state(first)  # by the time of an answer the failed one sleeps
    # There is room for two. The third gets the place of the first, then the first of the second.
    last = [third, first]
    assert running == [[first], [first, second], [second, third], last, last]


@asynccontextmanager
async def one_in_line(
    network: DeliveryNetwork, agents: AgentHost, strangers: Responsiveness
) -> AsyncIterator[tuple[DeliveryWorkers, AgentHost, Gate]]:
    """Workers of two strangers, for one of which there is a slot, and no room for another agent.

    Their endpoint answers once its gate is open. Alice has a message; her endpoint answered before.
    """
    async with agent_host() as silent:
        await network.connect(ALICE, agents.url(), queued=envelopes(1))
        workers = network.workers(
            agents.lookup, agents_max=2, in_flight_per_host_max=1, slow_s=60, timeout_s=120
        )
        slots = workers._queue.destinations._slots
        silent.answer = gate = Gate()
        for did in STRANGERS:
            await network.connect(did, silent.url(), queued=envelopes(1))
            slots.remember(f"{did} {silent.url()}", [LOOPBACK], strangers)
            workers.wake(did)
        slots.remember(f"{ALICE} {agents.url()}", [LOOPBACK], Responsiveness.QUICK)
        await silent.has(1)
        await network.identities().answered(QueryConnection, len(STRANGERS))
        # By the time of a later answer one is delivered to, and the other stands in line.
        await network.state(ALICE)
        yield workers, silent, gate


async def test_an_agent_in_line_makes_room_for_one_whose_endpoint_answers_and_loses_nothing(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    async with one_in_line(network, agents, Responsiveness.NEW) as (workers, silent, gate):
        workers.wake(ALICE)
        await agents.has(1)
        gate.released.set()
        await idle(workers)
        assert silent.received == envelopes(1)
        workers.found_waiting(STRANGERS)
        await idle(workers)
        assert silent.received == envelopes(1) * 2


async def test_an_agent_in_line_whose_endpoint_answered_before_is_not_stopped_for_another(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    async with one_in_line(network, agents, Responsiveness.QUICK) as (workers, silent, gate):
        workers.wake(ALICE)
        gate.released.set()
        await idle(workers)
        assert silent.received == envelopes(1) * 2
    assert agents.received == []


async def test_closing_lets_the_message_on_its_way_arrive_and_begins_no_other(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    await network.connect(ALICE, agents.url(), queued=envelopes(3))
    agents.answer = gate = Gate()
    workers = network.workers(agents.lookup, wakes=ALICE)
    await agents.has(1)
    closing = asyncio.create_task(workers.close(WAIT_S))
    await asyncio.sleep(0)
    gate.released.set()
    await asyncio.wait_for(closing, WAIT_S)
    assert agents.received == envelopes(1)
    state = await network.state(ALICE)
    assert (state.messages, state.available) == (2, 2)
    workers.wake(ALICE)
    assert workers.figures()["agents"] == 0


async def test_closing_does_not_wait_for_an_endpoint_that_never_answers(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    await network.connect(ALICE, agents.url(), queued=envelopes(1))
    agents.answer = gate = Gate()
    workers = network.workers(agents.lookup, timeout_s=120, wakes=ALICE)
    await agents.has(1)
    await asyncio.wait_for(workers.close(0.2), WAIT_S)
    assert await network.waiting(ALICE) == 1
    gate.released.set()


async def test_closing_does_not_wait_for_a_worker_that_only_waits(
    network: DeliveryNetwork,
) -> None:
    looked_up, answered = asyncio.Event(), asyncio.Event()

    async def lookup(_host: str, _port: int) -> Sequence[str]:
        looked_up.set()
        await answered.wait()
        raise OSError("no such name")

    await network.connect(ALICE, "http://agent.example/", queued=envelopes(1))
    workers = network.workers(lookup, slow_s=60, timeout_s=120, wakes=ALICE)
    await asyncio.wait_for(looked_up.wait(), WAIT_S)
    await asyncio.wait_for(workers.close(120), WAIT_S)
    assert await network.waiting(ALICE) == 1
    answered.set()


async def test_the_log_names_the_host_and_nothing_else(
    network: DeliveryNetwork, agents: AgentHost, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="http_edge")
    await network.connect(ALICE, agents.url(), queued=envelopes(1))
    agents.answer = status(503)
    workers = network.workers(agents.lookup, wakes=ALICE)
    await network.identities().answered(ReleaseLeases)
    await workers.close(WAIT_S)
    (record,) = [record for record in caplog.records if "outbound" in record.getMessage()]
    assert vars(record)["host"] == "agent.example"
    assert vars(record)["reason"] == "unavailable"
    logged = " ".join(map(str, vars(record).values()))
    assert not any(word in logged for word in ("secret", "/in", "number", ALICE))


async def test_endpoints_that_fail_for_ever_more_agents_write_few_lines(
    network: DeliveryNetwork, agents: AgentHost, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="http_edge")
    agents.answer = status(503)
    workers = network.workers(agents.lookup)
    for number in range(3):
        did = did_key(raw_key(10 + number))
        await network.connect(did, agents.url())
        await network.queue(did, *envelopes(1, first=number))
        workers.wake(did)
        await agents.has(number + 1)
    await workers.close(WAIT_S)
    assert len([record for record in caplog.records if "outbound" in record.getMessage()]) == 1
