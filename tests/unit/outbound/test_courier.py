from __future__ import annotations

import asyncio
import logging

import pytest

from actors.commands import (
    Connect,
    DeliverMessages,
    QueryQueue,
    QueueEnvelope,
    ReleaseLeases,
)
from http_edge.didcomm.keys import did_key
from http_edge.outbound.rounds import BATCH_MESSAGES_MAX
from tests.unit.outbound.agent_host import WAIT_S, AgentHost, Gate, agent_host, status
from tests.unit.outbound.office import ALICE, BOB, PostOffice, envelopes, idle, raw_key


async def test_switched_off_nothing_is_delivered(office: PostOffice, agents: AgentHost) -> None:
    await office.connect(ALICE, agents.url())
    await office.queue(ALICE, *envelopes(1))
    courier = office.courier(agents.lookup, enabled=False)
    courier.wake(ALICE)
    courier.found_waiting([ALICE])
    await idle(courier)
    assert agents.received == []
    assert set(office.identities().counts) <= {QueueEnvelope, Connect}


async def test_one_slow_agent_does_not_hold_up_another(
    office: PostOffice, agents: AgentHost
) -> None:
    async with agent_host() as others:
        await office.connect(ALICE, agents.url())
        await office.connect(BOB, others.url())
        await office.queue(ALICE, *envelopes(1))
        await office.queue(BOB, *envelopes(3))
        agents.answer = gate = Gate()
        courier = office.courier(agents.lookup)
        courier.wake(ALICE)
        await agents.has(1)
        courier.wake(BOB)
        await others.has(3)
        assert await office.waiting(ALICE) == 1
        gate.released.set()
        await idle(courier)
        assert len(agents.received) == 1


async def test_no_more_deliveries_to_one_host_than_the_bound_under_whatever_names(
    office: PostOffice, agents: AgentHost
) -> None:
    dids = [did_key(raw_key(number)) for number in range(10, 16)]
    for number, did in enumerate(dids):
        await office.connect(did, agents.url(host=f"name-{number}.example"))
        await office.queue(did, *envelopes(1, first=number))
    agents.answer = gate = Gate()
    courier = office.courier(agents.lookup, in_flight_per_host_max=2)
    for did in dids:
        courier.wake(did)
    await agents.has(2)
    gate.released.set()
    await idle(courier)
    assert agents.under_way_most == 2
    assert sorted(agents.received) == envelopes(6)


async def test_two_edges_never_deliver_the_same_message_at_once(
    office: PostOffice, agents: AgentHost
) -> None:
    await office.connect(ALICE, agents.url())
    sent = envelopes(50)
    await office.queue(ALICE, *sent)
    couriers = [
        office.courier(agents.lookup, edge=edge, retry_s_min=0.01) for edge in ("edge-0", "edge-1")
    ]
    for courier in couriers:
        courier.wake(ALICE)
    for courier in couriers:
        await idle(courier)
    assert sorted(agents.received) == sorted(sent)
    assert sum(courier.figures()["delivered"] for courier in couriers) == len(sent)
    assert await office.waiting(ALICE) == 0


async def test_an_edge_waits_while_another_one_delivers(
    office: PostOffice, agents: AgentHost
) -> None:
    await office.connect(ALICE, agents.url())
    sent = envelopes(BATCH_MESSAGES_MAX + 5)
    await office.queue(ALICE, *sent)
    agents.answer = gate = Gate()
    first = office.courier(agents.lookup)
    second = office.courier(agents.lookup, edge="edge-1", retry_s_min=0.01)
    first.wake(ALICE)
    await agents.has(1)
    second.wake(ALICE)
    await office.identities("edge-1").answered(QueryQueue, 3)
    assert DeliverMessages not in office.identities("edge-1").counts
    gate.released.set()
    await idle(first)
    await idle(second)
    assert agents.received == sent


async def test_a_message_of_an_agent_brings_its_next_try_forward_and_begins_nothing(
    office: PostOffice,
) -> None:
    async with agent_host(running=False) as agents:
        await office.connect(ALICE, agents.url())
        await office.queue(ALICE, *envelopes(1))
        courier = office.courier(agents.lookup)
        courier.heard_from(ALICE)
        assert courier.figures()["agents"] == 0
        courier.wake(ALICE)
        await office.identities().answered(ReleaseLeases)
        await agents.start()
        courier.heard_from(ALICE)
        await idle(courier)
        assert agents.received == envelopes(1)


async def test_agents_beyond_the_bound_are_found_later(
    office: PostOffice, agents: AgentHost
) -> None:
    for did in (ALICE, BOB):
        await office.connect(did, agents.url())
        await office.queue(did, did.encode())
    agents.answer = gate = Gate()
    courier = office.courier(agents.lookup, agents_max=1)
    courier.wake(ALICE)
    await agents.has(1)
    courier.wake(BOB)
    courier.found_waiting([ALICE, BOB])
    assert courier.figures()["agents"] == 1
    gate.released.set()
    await idle(courier)
    courier.found_waiting([BOB])
    await idle(courier)
    assert agents.received == [ALICE.encode(), BOB.encode()]


async def test_an_agent_that_fails_makes_room_for_one_with_a_new_message(
    office: PostOffice, agents: AgentHost
) -> None:
    async with agent_host(running=False) as down:
        await office.connect(ALICE, down.url())
        await office.connect(BOB, agents.url())
        for did in (ALICE, BOB):
            await office.queue(did, did.encode())
        courier = office.courier(agents.lookup, agents_max=1, retry_s_min=60)
        courier.wake(ALICE)
        await office.identities().answered(ReleaseLeases)
        await office.state(ALICE)  # by the time of an answer the failed one sleeps
        courier.found_waiting([BOB])
        assert agents.received == []
        courier.wake(BOB)
        await idle(courier)
        assert agents.received == [BOB.encode()]
        assert await office.waiting(ALICE) == 1


async def test_closing_lets_the_message_on_its_way_arrive_and_begins_no_other(
    office: PostOffice, agents: AgentHost
) -> None:
    await office.connect(ALICE, agents.url())
    await office.queue(ALICE, *envelopes(3))
    agents.answer = gate = Gate()
    courier = office.courier(agents.lookup)
    courier.wake(ALICE)
    await agents.has(1)
    closing = asyncio.create_task(courier.close())
    await asyncio.sleep(0)
    gate.released.set()
    await asyncio.wait_for(closing, WAIT_S)
    assert agents.received == envelopes(1)
    state = await office.state(ALICE)
    assert (state.messages, state.available) == (2, 2)
    courier.wake(ALICE)
    assert courier.figures()["agents"] == 0


async def test_closing_does_not_wait_for_an_endpoint_that_never_answers(
    office: PostOffice, agents: AgentHost
) -> None:
    await office.connect(ALICE, agents.url())
    await office.queue(ALICE, *envelopes(1))
    agents.answer = gate = Gate()
    courier = office.courier(agents.lookup, timeout_s=0.2)
    courier.wake(ALICE)
    await agents.has(1)
    await asyncio.wait_for(courier.close(), WAIT_S)
    assert await office.waiting(ALICE) == 1
    gate.released.set()


async def test_the_log_names_the_host_and_nothing_else(
    office: PostOffice, agents: AgentHost, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="http_edge")
    await office.connect(ALICE, agents.url())
    await office.queue(ALICE, *envelopes(1))
    agents.answer = status(503)
    courier = office.courier(agents.lookup)
    courier.wake(ALICE)
    await office.identities().answered(ReleaseLeases)
    await courier.close()
    (record,) = [record for record in caplog.records if "outbound" in record.getMessage()]
    assert vars(record)["host"] == "agent.example"
    assert vars(record)["reason"] == "unavailable"
    told = " ".join(map(str, vars(record).values()))
    assert not any(word in told for word in ("secret", "/in", "number", ALICE))
