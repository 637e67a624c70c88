from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from actors.core.commands import (
    DeliverMessages,
    QueryConnection,
    QueryQueue,
    ReleaseLeases,
    RemoveMessages,
)
from actors.core.refusals import Refusal
from http_edge.didcomm.outbound.pool import DeliveryWorkers
from http_edge.didcomm.outbound.worker import BATCH_MESSAGES_MAX
from tests.unit.outbound.agent_host import WAIT_S, AgentHost, Gate, agent_host, status
from tests.unit.outbound.delivery_network import (
    ALICE,
    BOB,
    DeliveryNetwork,
    envelopes,
    idle,
    sleeps,
)
from tests.unit.test_hang_watch import clock_set_ahead

DAY_MS = 86_400_000


async def test_what_waits_is_delivered_in_order_and_then_gone(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    await network.connect(ALICE, agents.url())
    sent = envelopes(2 * BATCH_MESSAGES_MAX + 1)
    await network.queue(ALICE, *sent)
    workers = network.workers(agents.lookup, wakes=ALICE)
    await idle(workers)
    assert agents.received == sent
    assert agents.under_way_most == 1
    assert await network.waiting(ALICE) == 0
    assert workers.figures() == {"delivered": len(sent), "failed": 0, "agents": 0}


async def test_a_message_is_removed_only_after_it_was_accepted(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    await network.connect(ALICE, agents.url(), queued=envelopes(2))
    agents.answer = gate = Gate()
    workers = network.workers(agents.lookup, wakes=ALICE)
    await agents.has(1)
    assert RemoveMessages not in network.identities().counts
    assert await network.waiting(ALICE) == 2
    gate.released.set()
    await idle(workers)
    assert await network.waiting(ALICE) == 0


async def test_what_was_accepted_is_removed_while_the_next_message_is_on_its_way(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    gate = Gate()

    async def hold_the_second(envelope: bytes) -> web.StreamResponse:
        return await gate(envelope) if envelope == envelopes(2)[1] else web.Response(status=202)

    agents.answer = hold_the_second
    await network.connect(ALICE, agents.url(), queued=envelopes(2))
    workers = network.workers(agents.lookup, wakes=ALICE)
    await agents.has(2)
    await network.identities().answered(RemoveMessages)
    assert await network.waiting(ALICE) == 1
    gate.released.set()
    await idle(workers)


async def test_a_message_that_comes_during_a_delivery_is_delivered_too(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    await network.connect(ALICE, agents.url(), queued=envelopes(1))
    agents.answer = gate = Gate()
    workers = network.workers(agents.lookup, wakes=ALICE)
    await agents.has(1)
    await network.queue(ALICE, *envelopes(1, first=1))
    workers.wake(ALICE)
    gate.released.set()
    await idle(workers)
    assert agents.received == envelopes(2)


async def test_a_message_that_comes_just_as_nothing_was_found_is_not_overlooked(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    await network.connect(ALICE, agents.url())
    workers = network.workers(agents.lookup)

    async def queue_one() -> None:
        await network.queue(ALICE, *envelopes(1))
        workers.wake(ALICE)

    network.identities().before_answer[QueryQueue] = queue_one
    workers.wake(ALICE)
    await idle(workers)
    assert agents.received == envelopes(1)


async def test_an_endpoint_that_is_down_keeps_its_messages_until_it_is_back(
    network: DeliveryNetwork,
) -> None:
    async with agent_host(running=False) as agents:
        await network.connect(ALICE, agents.url(), queued=envelopes(3))
        workers = network.workers(agents.lookup, wakes=ALICE)
        await network.identities().answered(ReleaseLeases)
        state = await network.state(ALICE)
        assert (state.messages, state.available) == (3, 3)
        assert workers.figures() == {"delivered": 0, "failed": 1, "agents": 1}
        await agents.start()
        workers.sender_seen(ALICE)
        await idle(workers)
        assert agents.received == envelopes(3)
        assert await network.waiting(ALICE) == 0


async def test_an_endpoint_without_a_permitted_address_is_tried_again_and_takes_no_message(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    await network.connect(ALICE, agents.url(), queued=envelopes(1))
    reachable: set[str] = set()
    workers = network.workers(
        agents.lookup, permitted=lambda address, _: address in reachable, wakes=ALICE
    )
    async with asyncio.timeout(WAIT_S):
        while not workers.figures()["failed"] or not workers._queue.waiting:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert agents.looked_up
    assert workers.figures() == {"delivered": 0, "failed": 1, "agents": 1}
    assert DeliverMessages not in network.identities().counts
    reachable.add(agents.addresses[0])
    workers.sender_seen(ALICE)
    await idle(workers)
    assert agents.received == envelopes(1)


async def test_an_endpoint_that_is_down_is_tried_again_by_itself(network: DeliveryNetwork) -> None:
    async with agent_host(running=False) as agents:
        await network.connect(ALICE, agents.url(), queued=envelopes(1))
        workers = network.workers(agents.lookup, retry_s_min=0.01, retry_s_max=0.02, wakes=ALICE)
        await network.identities().answered(ReleaseLeases, 3)
        await agents.start()
        await idle(workers)
        assert agents.received == envelopes(1)


async def test_a_new_message_does_not_shorten_the_wait_for_a_failed_endpoint(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    await network.connect(ALICE, agents.url(), queued=envelopes(1))
    agents.answer = status(503)
    workers = network.workers(agents.lookup, wakes=ALICE)
    await network.identities().answered(ReleaseLeases)
    workers.wake(ALICE)
    workers.found_waiting([ALICE])
    await network.state(ALICE)
    assert len(agents.received) == 1


async def test_a_failed_endpoint_is_tried_with_one_message_alone(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    await network.connect(ALICE, agents.url(), queued=envelopes(3))
    agents.answer = status(503)
    workers = network.workers(agents.lookup, retry_s_min=0.01, retry_s_max=0.01, wakes=ALICE)
    await network.identities().answered(ReleaseLeases, 2)
    agents.answer = status(202)
    await idle(workers)
    assert agents.accepted == envelopes(3)
    limits = [c.limit for c in network.identities().seen if isinstance(c, DeliverMessages)]
    assert limits[:2] == [BATCH_MESSAGES_MAX, 1]
    assert limits[-1] == BATCH_MESSAGES_MAX


async def test_a_live_socket_gets_the_messages_instead(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    await network.connect(ALICE, agents.url(), queued=envelopes(1))
    await network.go_live(ALICE)
    workers = network.workers(agents.lookup, wakes=ALICE)
    await idle(workers)
    assert agents.received == []
    assert await network.waiting(ALICE) == 1


async def test_an_agent_without_an_endpoint_is_left_alone(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    await network.connect(ALICE, "")
    await network.queue(ALICE, *envelopes(1))
    workers = network.workers(agents.lookup)
    for did in (ALICE, BOB):
        workers.wake(did)
    await idle(workers)
    assert await network.waiting(ALICE) == 1
    assert DeliverMessages not in network.identities().counts


async def test_a_did_that_speaks_for_another_account_is_left_alone(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    await network.connect(ALICE, agents.url(), queued=envelopes(1))
    await network.begin_to_speak(ALICE, BOB)
    await idle(network.workers(agents.lookup, wakes=ALICE))
    assert agents.received == []


async def test_an_endpoint_that_is_named_just_as_none_was_found_is_not_overlooked(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    await network.connect(ALICE, "")
    workers = network.workers(agents.lookup)

    async def name_it() -> None:
        await network.connect(ALICE, agents.url(), queued=envelopes(1))
        workers.wake(ALICE)

    network.identities().before_answer[QueryConnection] = name_it
    workers.wake(ALICE)
    await idle(workers)
    assert agents.received == envelopes(1)


async def test_an_agent_that_names_another_endpoint_is_reached_there(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    await network.connect(ALICE, f"http://gone.example:{agents.port}/ with a blank")
    await network.queue(ALICE, *envelopes(1))
    workers = network.workers(agents.lookup, wakes=ALICE)
    await network.identities().answered(QueryQueue)
    await network.connect(ALICE, agents.url())
    workers.sender_seen(ALICE)
    await idle(workers)
    assert agents.received == envelopes(1)


async def test_a_slow_endpoint_is_given_up_and_its_message_stays(
    network: DeliveryNetwork, agents: AgentHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    await network.connect(ALICE, agents.url(), queued=envelopes(2))
    agents.answer = gate = Gate()
    goes_on = clock_set_ahead(asyncio.get_running_loop(), monkeypatch)
    network.workers(agents.lookup, timeout_s=60, slow_s=60, wakes=ALICE)
    await agents.has(1)
    goes_on(120)
    await network.identities().answered(ReleaseLeases)
    assert len(agents.received) == 1
    state = await network.state(ALICE)
    assert (state.messages, state.available) == (2, 2)
    gate.released.set()


@pytest.mark.parametrize("step_ms", [6_000, -DAY_MS])
@pytest.mark.parametrize("slow_s", [10, 60])
async def test_a_batch_that_takes_too_long_makes_room_for_others(
    network: DeliveryNetwork,
    agents: AgentHost,
    monkeypatch: pytest.MonkeyPatch,
    slow_s: int,
    step_ms: int,
) -> None:
    """Also if the machine's clock is set back; and what was accepted is never on offer again."""
    goes_on = clock_set_ahead(asyncio.get_running_loop(), monkeypatch)

    async def slowly(_: bytes) -> web.StreamResponse:
        goes_on(6)
        network.now_ms += step_ms
        return web.Response()

    agents.answer = slowly
    await network.connect(ALICE, agents.url(), queued=envelopes(5))
    workers = network.workers(agents.lookup, timeout_s=10, slow_s=slow_s, wakes=ALICE)
    while workers._tasks:
        await asyncio.wait(workers._tasks)
    await idle(workers)
    assert agents.received == envelopes(5)
    assert network.identities().counts[ReleaseLeases] == 2
    assert _removed_before_releases(network) == [2, 4]


@pytest.mark.parametrize("lease_s", [2, 5])
async def test_a_lease_that_takes_longer_than_a_batch_may_is_delivered_all_the_same(
    network: DeliveryNetwork, agents: AgentHost, monkeypatch: pytest.MonkeyPatch, lease_s: int
) -> None:
    goes_on = clock_set_ahead(asyncio.get_running_loop(), monkeypatch)

    async def slowly() -> None:
        goes_on(lease_s)

    network.identities().before_answer[DeliverMessages] = slowly
    await network.connect(ALICE, agents.url(), queued=envelopes(1))
    await idle(network.workers(agents.lookup, timeout_s=10, slow_s=1, wakes=ALICE))
    assert agents.received == envelopes(1)
    assert network.identities().counts[DeliverMessages] == 1
    assert ReleaseLeases not in network.identities().counts


async def test_a_lease_that_may_end_before_its_messages_are_sent_is_given_back(
    network: DeliveryNetwork, agents: AgentHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next try comes after the usual pause, since the host is slow."""
    goes_on = clock_set_ahead(asyncio.get_running_loop(), monkeypatch)
    leased = asyncio.Event()

    async def too_slowly() -> None:
        goes_on(11)
        leased.set()

    network.identities().before_answer[DeliverMessages] = too_slowly
    await network.connect(ALICE, agents.url(), queued=envelopes(1))
    workers = network.workers(agents.lookup, timeout_s=10, slow_s=1, wakes=ALICE)
    await leased.wait()
    await network.identities().answered(ReleaseLeases)
    await sleeps(workers)
    assert network.identities().counts[QueryConnection] == 1
    assert agents.received == []
    workers.sender_seen(ALICE)
    await idle(workers)
    assert agents.received == envelopes(1)


def _removed_before_releases(network: DeliveryNetwork) -> list[int]:
    """How many messages had been removed whenever leases were ended."""
    removed, counts = 0, []
    for command in network.identities().seen:
        if isinstance(command, RemoveMessages):
            removed += len(command.message_ids)
        elif isinstance(command, ReleaseLeases):
            counts.append(removed)
    return counts


async def _behind_a_wallet(network: DeliveryNetwork, agents: AgentHost) -> DeliveryWorkers:
    """Let the deliverer wait for the first of two messages, which another session has leased."""
    await network.connect(ALICE, agents.url(), queued=envelopes(2))
    await network.lease(ALICE, "a wallet", 1)
    workers = network.workers(agents.lookup, retry_s_min=0.01, timeout_s=4, slow_s=4, wakes=ALICE)
    await network.identities().answered(QueryQueue, 3)
    return workers


async def test_an_agent_whose_messages_are_all_leased_elsewhere_takes_up_no_worker(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    await network.connect(ALICE, agents.url(), queued=envelopes(2))
    await network.lease(ALICE, "a wallet", 2)
    workers = network.workers(agents.lookup, wakes=ALICE)
    await idle(workers)
    assert agents.received == []
    assert await network.waiting(ALICE) == 2


async def test_messages_that_are_leased_for_long_do_not_stop_those_behind_them(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    workers = await _behind_a_wallet(network, agents)
    network.now_ms += 20_000
    await idle(workers)
    assert agents.received == envelopes(1, first=1)


async def test_patience_with_another_session_ends_though_the_clock_is_set_back(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    workers = await _behind_a_wallet(network, agents)
    network.now_ms -= DAY_MS
    looked = network.identities().counts[QueryQueue]
    await network.identities().answered(QueryQueue, looked + 3)
    network.now_ms += 20_000
    await idle(workers)
    assert agents.received == envelopes(1, first=1)


async def test_each_lease_of_another_session_is_waited_for_anew(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    agents.answer = gate = Gate()
    workers = await _behind_a_wallet(network, agents)
    network.now_ms += 10_000
    await network.give_back(ALICE, "a wallet")
    await agents.has(1)
    network.now_ms += 10_000
    await network.queue(ALICE, *envelopes(2, first=2))
    await network.lease(ALICE, "a wallet", 1)
    gate.released.set()
    await agents.has(2)
    looked = network.identities().counts[QueryQueue]
    await network.identities().answered(QueryQueue, looked + 3)
    assert agents.received == envelopes(2)
    network.now_ms += 20_000
    await idle(workers)
    assert agents.received == [*envelopes(2), *envelopes(1, first=3)]


class Patience:
    """A worker that waits for the first of two messages, leased elsewhere, as time is let pass."""

    def __init__(
        self, network: DeliveryNetwork, agents: AgentHost, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self._network = network
        self._goes_on = clock_set_ahead(asyncio.get_running_loop(), monkeypatch)
        self.workers = network.workers(agents.lookup, retry_s_min=0.5, timeout_s=10, wakes=ALICE)

    async def passes(self, seconds: float) -> int:
        """Let time pass, half a second after the other; return how often queues were queried."""
        for _ in range(round(2 * seconds)):
            await self._at_rest()
            self._goes_on(0.5)
            self._network.now_ms += 500
        await self._at_rest()
        return self._network.identities().counts[QueryQueue]

    async def _at_rest(self) -> None:
        for _ in range(10):  # it goes on if its time has come
            await asyncio.sleep(0)
        async with asyncio.timeout(WAIT_S):
            while self.workers._tasks and not self.workers._queue.waiting:  # noqa: ASYNC110
                await asyncio.sleep(0)


async def test_patience_with_another_session_takes_few_queries(
    network: DeliveryNetwork, agents: AgentHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    await network.connect(ALICE, agents.url(), queued=envelopes(2))
    await network.lease(ALICE, "a wallet", 1)
    patience = Patience(network, agents, monkeypatch)
    assert 5 <= await patience.passes(29.5) <= 12
    assert agents.received == []
    await patience.passes(3)
    await idle(patience.workers)
    assert envelopes(2)[1] in agents.received


async def test_patience_that_begins_anew_looks_soon_again(
    network: DeliveryNetwork, agents: AgentHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    await network.connect(ALICE, agents.url(), queued=envelopes(2))
    await network.lease(ALICE, "a wallet", 1)
    patience = Patience(network, agents, monkeypatch)
    await patience.passes(8)
    network.identities().refused[QueryQueue] = Refusal.TEMPORARILY_UNAVAILABLE
    looked = await patience.passes(4.5)
    network.identities().refused.clear()
    assert await patience.passes(3) >= looked + 3
    await patience.workers.close(WAIT_S)


async def test_a_message_that_is_delayed_by_its_sender_holds_up_no_other(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    await network.connect(ALICE, agents.url())
    later, *now = envelopes(2)
    await network.delay(ALICE, later, 60_000)
    await network.queue(ALICE, *now)
    workers = network.workers(agents.lookup, wakes=ALICE)
    await idle(workers)
    assert agents.received == now
    network.now_ms += 60_000
    await network.offers(ALICE)
    workers.found_waiting([ALICE])
    await idle(workers)
    assert agents.received == [*now, later]


async def test_an_outcome_that_is_unknown_to_the_queue_is_reported_again_and_not_delivered_again(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    await network.connect(ALICE, agents.url(), queued=envelopes(2))
    identities = network.identities()
    identities.refused[RemoveMessages] = Refusal.TEMPORARILY_UNAVAILABLE
    workers = network.workers(agents.lookup, retry_s_min=0.01, retry_s_max=0.01, wakes=ALICE)
    await identities.answered(RemoveMessages, 5)
    identities.refused.clear()
    await idle(workers)
    assert agents.received == envelopes(2)
    assert await network.waiting(ALICE) == 0


@pytest.mark.parametrize("lost", [QueryQueue, DeliverMessages])
async def test_queues_out_of_reach_are_asked_again(
    network: DeliveryNetwork, agents: AgentHost, lost: type[QueryQueue | DeliverMessages]
) -> None:
    await network.connect(ALICE, agents.url(), queued=envelopes(1))
    identities = network.identities()
    identities.refused[lost] = Refusal.TEMPORARILY_UNAVAILABLE
    workers = network.workers(agents.lookup, retry_s_min=0.01, retry_s_max=0.01, wakes=ALICE)
    await identities.answered(lost, 3)
    identities.refused.clear()
    await idle(workers)
    assert agents.received == envelopes(1)
