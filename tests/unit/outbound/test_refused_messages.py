"""Messages that an endpoint does not accept while it accepts others."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from aiohttp import web

from actors.core.commands import DeliverMessages, QueryQueue, ReleaseLeases, RemoveMessages
from http_edge.didcomm.outbound.pool import DeliveryWorkers
from http_edge.didcomm.outbound.worker import (
    _REFUSALS_MAX,
    _TRIES_MAX,
    ASIDE_MS,
    BATCH_MESSAGES_MAX,
)
from tests.unit.outbound.agent_host import (
    WAIT_S,
    AgentHost,
    Answer,
    accept,
    agent_host,
    in_turn,
    status,
)
from tests.unit.outbound.delivery_network import ALICE, DeliveryNetwork, envelopes, idle, sleeps
from tests.unit.test_hang_watch import clock_set_ahead

DAY_MS = 86_400_000
TRIES = _REFUSALS_MAX + 1
"""How often an endpoint that takes nothing is tried before a message is set aside."""
CLOSED = 0
"""In place of a status: the connection ends without an answer."""


def answers(agents: AgentHost, code: int, *envelopes: bytes) -> Answer:
    """A status, or the end of the connection, for these envelopes; the others are accepted."""

    async def answer(envelope: bytes) -> web.StreamResponse:
        if envelope not in envelopes:
            return await accept(envelope)
        transport = agents.requests[-1].transport
        if code == CLOSED and transport is not None:
            transport.abort()
        return web.Response(status=code or 500)

    return answer


@pytest.mark.parametrize("code", [400, 404, 410, 413, 415, 422, 500])
async def test_a_message_that_the_agent_refuses_holds_up_no_other_and_is_kept(
    network: DeliveryNetwork, agents: AgentHost, code: int
) -> None:
    bad, *good = envelopes(3)
    agents.answer = answers(agents, code, bad)
    await network.connect(ALICE, agents.url())
    await network.queue(ALICE, bad, *good)
    workers = network.workers(agents.lookup, wakes=ALICE)
    await network.identities().answered(QueryQueue, 2)
    assert agents.accepted == good
    assert await network.waiting(ALICE) == 1
    # It is out of the way of what comes later.
    (later,) = envelopes(1, first=3)
    await network.queue(ALICE, later)
    workers.wake(ALICE)
    # After 404 and 410 it is sent once more as soon as the endpoint has accepted another.
    sent = [bad, good[0], *[bad] * (code in {404, 410}), good[1], later]
    await agents.has(len(sent))
    assert agents.received == sent


async def _refused(network: DeliveryNetwork, agents: AgentHost) -> DeliveryWorkers:
    """Let Alice's agent refuse her one message until it is out of the way."""
    await network.connect(ALICE, agents.url(), queued=envelopes(1))
    agents.answer = status(400)
    workers = network.workers(agents.lookup, retry_s_min=0.01, retry_s_max=0.01, wakes=ALICE)
    await network.identities().answered(DeliverMessages, TRIES + 1)
    return workers


async def test_a_refused_message_is_tried_again_after_a_while(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    workers = await _refused(network, agents)
    agents.answer = status(200)
    network.now_ms += ASIDE_MS
    await network.offers(ALICE)
    workers.sender_seen(ALICE)
    await idle(workers)
    assert agents.received == envelopes(1) * (TRIES + 1)
    assert await network.waiting(ALICE) == 0


async def test_a_refused_message_that_is_gone_is_waited_for_no_longer(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    workers = await _refused(network, agents)
    await network.purge(ALICE)
    network.now_ms += ASIDE_MS
    workers.sender_seen(ALICE)
    await idle(workers)
    assert agents.received == envelopes(1) * TRIES


async def test_a_message_that_is_gone_before_it_is_set_aside_is_waited_for_no_longer(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    async def purge_at_last(_: bytes) -> web.StreamResponse:
        if len(agents.received) == TRIES:
            await network.purge(ALICE)
        return web.Response(status=400)

    agents.answer = purge_at_last
    await network.connect(ALICE, agents.url(), queued=envelopes(1))
    await idle(network.workers(agents.lookup, retry_s_min=0.01, retry_s_max=0.01, wakes=ALICE))
    assert agents.received == envelopes(1) * TRIES


async def test_a_refused_message_holds_up_no_other_when_the_clock_is_set_back(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    workers = await _refused(network, agents)
    network.now_ms -= DAY_MS
    agents.answer = status(200)
    await network.queue(ALICE, *envelopes(1, first=1))
    workers.wake(ALICE)
    await agents.has(TRIES + 1)
    assert agents.accepted == envelopes(1, first=1)
    # It is waited for no longer than without that.
    await network.purge(ALICE)
    network.now_ms += ASIDE_MS
    workers.sender_seen(ALICE)
    await idle(workers)


async def test_an_endpoint_that_is_out_of_order_for_a_moment_gets_everything_in_order(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    await network.connect(ALICE, agents.url(), queued=envelopes(3))
    agents.answer = status(500)
    workers = network.workers(agents.lookup, wakes=ALICE)
    await network.identities().answered(DeliverMessages, 1)
    agents.received.clear()
    agents.answer = status(200)
    workers.sender_seen(ALICE)
    await idle(workers)
    assert agents.received[-3:] == envelopes(3)
    assert await network.waiting(ALICE) == 0


@pytest.mark.thorough
@pytest.mark.parametrize("code", [CLOSED, 403, 429, 502, 503])
async def test_a_message_that_alone_fails_holds_up_others_for_a_bounded_number_of_tries(
    network: DeliveryNetwork, agents: AgentHost, code: int
) -> None:
    bad, *good = envelopes(4)
    agents.answer = answers(agents, code, bad)
    await network.connect(ALICE, agents.url(), queued=[bad, *good])
    workers = network.workers(agents.lookup, retry_s_min=0.01, retry_s_max=0.01, wakes=ALICE)
    await agents.has(_TRIES_MAX + 1 + len(good))
    assert agents.received == [*[bad] * (_TRIES_MAX + 1), *good]
    assert await network.waiting(ALICE) > 0
    # It comes back, holds up nothing any more, and is delivered once the endpoint takes it.
    for number, then in ((4, answers(agents, code, bad)), (5, accept)):
        await sleeps(workers)
        network.now_ms += ASIDE_MS
        await network.offers(ALICE)
        agents.answer = then
        agents.received.clear()
        (later,) = envelopes(1, first=number)
        await network.queue(ALICE, later)
        workers.wake(ALICE)
        await agents.has(2)
        assert agents.received == [bad, later]
    await idle(workers)
    assert await network.waiting(ALICE) == 0
    assert sorted(agents.accepted) == envelopes(6)


@pytest.mark.thorough
@pytest.mark.parametrize("code", [400, 404, 410])
async def test_any_number_of_messages_that_an_endpoint_refuses_hold_up_others_for_a_while_only(
    network: DeliveryNetwork, agents: AgentHost, code: int
) -> None:
    bad, good = envelopes(2 * BATCH_MESSAGES_MAX), envelopes(1, first=100)
    agents.answer = answers(agents, code, *bad)
    await network.connect(ALICE, agents.url(), queued=[*bad, *good])
    workers = network.workers(agents.lookup, retry_s_min=0.01, retry_s_max=0.01, wakes=ALICE)
    await network.identities().answered(RemoveMessages)
    await sleeps(workers)
    assert agents.accepted == good
    tried = Counter(agents.received)
    assert max(tried.values()) <= _TRIES_MAX + TRIES
    assert network.identities().counts[DeliverMessages] < BATCH_MESSAGES_MAX, "one each"
    assert await network.waiting(ALICE) == len(bad)


@pytest.mark.parametrize("code", [404, 410])
async def test_an_endpoint_that_is_missing_for_a_moment_gets_everything_without_a_long_pause(
    network: DeliveryNetwork, agents: AgentHost, code: int
) -> None:
    sent = envelopes(4)
    agents.answer = in_turn(code, code)
    await network.connect(ALICE, agents.url(), queued=sent)
    workers = network.workers(agents.lookup, wakes=ALICE)
    await idle(workers)
    assert agents.accepted == [sent[2], sent[0], sent[1], sent[3]]
    assert await network.waiting(ALICE) == 0
    assert ReleaseLeases not in network.identities().counts


async def test_what_failed_for_a_moment_is_not_sent_again_by_an_edge_that_ends(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    *bad, good = envelopes(3)
    await network.connect(ALICE, agents.url(), queued=[*bad, good])
    workers = network.workers(agents.lookup)

    async def ends(envelope: bytes) -> web.StreamResponse:
        if envelope == good:
            ending.append(asyncio.create_task(workers.close(WAIT_S)))
            await asyncio.sleep(0)
        return web.Response(status=200 if envelope == good else 404)

    ending = list[asyncio.Task[None]]()
    agents.answer = ends
    workers.wake(ALICE)
    await agents.has(3)
    await asyncio.gather(*ending)
    assert agents.received == [*bad, good]
    assert (await network.state(ALICE)).available == 2


@pytest.mark.thorough
@pytest.mark.parametrize("code", [CLOSED, 403, 404, 410, 429, 502, 503])
async def test_an_endpoint_that_takes_nothing_for_a_while_gets_everything_in_order(
    network: DeliveryNetwork, agents: AgentHost, code: int
) -> None:
    sent = envelopes(2 * BATCH_MESSAGES_MAX)
    agents.answer = answers(agents, code, *sent)
    await network.connect(ALICE, agents.url(), queued=sent)
    workers = network.workers(agents.lookup, retry_s_min=0.01, retry_s_max=0.01, wakes=ALICE)
    await network.identities().answered(ReleaseLeases, _TRIES_MAX + _REFUSALS_MAX)
    agents.answer = accept
    await idle(workers)
    assert agents.accepted == sent
    assert await network.waiting(ALICE) == 0


async def test_an_endpoint_that_has_accepted_a_message_has_all_its_tries_again(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    (bad, good), later = envelopes(2), envelopes(3, first=2)
    agents.answer = answers(agents, 502, bad)
    await network.connect(ALICE, agents.url(), queued=[bad, good])
    workers = network.workers(agents.lookup, retry_s_min=0.01, retry_s_max=0.01, wakes=ALICE)
    await agents.has(_TRIES_MAX + 2)
    await network.identities().answered(RemoveMessages)
    await sleeps(workers)
    agents.received.clear()
    agents.answer = status(503)
    await network.queue(ALICE, *later)
    workers.wake(ALICE)
    await agents.has(_TRIES_MAX)
    assert agents.received == later[:1] * _TRIES_MAX


async def test_an_endpoint_that_stops_in_the_middle_gets_the_rest_in_order(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    sent = envelopes(3)
    agents.answer = in_turn(200, 404, 404)
    await network.connect(ALICE, agents.url(), queued=sent)
    workers = network.workers(agents.lookup, retry_s_min=0.01, wakes=ALICE)
    await idle(workers)
    assert agents.accepted == sent
    assert agents.received == [*sent, *sent[1:]]


async def test_a_message_that_is_refused_at_last_after_other_failures_holds_up_no_other(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    bad, good = envelopes(2)

    async def refuse_at_last(envelope: bytes) -> web.StreamResponse:
        code = 503 if len(agents.received) <= _TRIES_MAX else 400
        return web.Response(status=code if envelope == bad else 200)

    agents.answer = refuse_at_last
    await network.connect(ALICE, agents.url(), queued=[bad, good])
    network.workers(agents.lookup, retry_s_min=0.01, retry_s_max=0.01, wakes=ALICE)
    await agents.has(_TRIES_MAX + 2)
    assert agents.received == [*[bad] * (_TRIES_MAX + 1), good]


async def test_a_refused_message_is_out_of_the_way_though_a_later_one_fails(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    sent = envelopes(3)
    agents.answer = in_turn(400, 200, 503)
    await network.connect(ALICE, agents.url(), queued=sent)
    network.workers(agents.lookup, retry_s_min=0.01, wakes=ALICE)
    await agents.has(4)
    assert agents.received == [*sent, sent[2]]


async def test_an_endpoint_that_is_not_reached_is_tried_with_one_message_alone_however_long(
    network: DeliveryNetwork,
) -> None:
    async with agent_host(running=False) as agents:
        await network.connect(ALICE, agents.url(), queued=envelopes(3))
        workers = network.workers(agents.lookup, retry_s_min=0.01, retry_s_max=0.01, wakes=ALICE)
        await network.identities().answered(ReleaseLeases, 2 * _TRIES_MAX)
        assert workers.figures()["failed"] == 2 * _TRIES_MAX
        await agents.start()
        await idle(workers)
        assert agents.received == envelopes(3)


async def test_a_message_behind_one_that_fails_slowly_is_tried_as_well(
    network: DeliveryNetwork, agents: AgentHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = clock_set_ahead(asyncio.get_running_loop(), monkeypatch)
    bad, good = envelopes(2)

    async def slowly(envelope: bytes) -> web.StreamResponse:
        goes_on(6 if envelope == bad else 0)
        return web.Response(status=404 if envelope == bad else 200)

    agents.answer = slowly
    await network.connect(ALICE, agents.url(), queued=[bad, good])
    network.workers(agents.lookup, timeout_s=10, slow_s=5, wakes=ALICE)
    await network.identities().answered(RemoveMessages)
    assert agents.received == [bad, good]
