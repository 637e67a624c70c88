from __future__ import annotations

import pytest
from aiohttp import web

from actors.commands import (
    DeliverMessages,
    QueryQueue,
    ReleaseLeases,
    RemoveMessages,
)
from http_edge.didcomm.keys import KeyPair, base58, did_key_reference
from http_edge.outbound.rounds import _REFUSALS_MAX, ASIDE_MS, BATCH_MESSAGES_MAX
from tests.unit.outbound.agent_host import AgentHost, Gate, agent_host, status
from tests.unit.outbound.office import ALICE, BOB, PostOffice, envelopes, idle

TRIES = _REFUSALS_MAX + 1
"""How often an endpoint that takes nothing is tried before a message is set aside."""


async def test_what_waits_is_delivered_in_order_and_then_gone(
    office: PostOffice, agents: AgentHost
) -> None:
    await office.connect(ALICE, agents.url())
    sent = envelopes(2 * BATCH_MESSAGES_MAX + 1)
    await office.queue(ALICE, *sent)
    courier = office.courier(agents.lookup)
    courier.wake(ALICE)
    await idle(courier)
    assert agents.received == sent
    assert agents.under_way_most == 1
    assert await office.waiting(ALICE) == 0
    assert courier.figures() == {"delivered": len(sent), "failed": 0, "agents": 0}


async def test_a_message_is_removed_only_after_it_was_accepted(
    office: PostOffice, agents: AgentHost
) -> None:
    await office.connect(ALICE, agents.url())
    await office.queue(ALICE, *envelopes(2))
    agents.answer = gate = Gate()
    courier = office.courier(agents.lookup)
    courier.wake(ALICE)
    await agents.has(1)
    assert RemoveMessages not in office.identities().counts
    assert await office.waiting(ALICE) == 2
    gate.released.set()
    await idle(courier)
    assert await office.waiting(ALICE) == 0


async def test_what_was_accepted_is_removed_while_the_next_message_is_on_its_way(
    office: PostOffice, agents: AgentHost
) -> None:
    gate = Gate()

    async def hold_the_second(envelope: bytes) -> web.StreamResponse:
        return await gate(envelope) if envelope == envelopes(2)[1] else web.Response(status=202)

    agents.answer = hold_the_second
    await office.connect(ALICE, agents.url())
    await office.queue(ALICE, *envelopes(2))
    courier = office.courier(agents.lookup)
    courier.wake(ALICE)
    await agents.has(2)
    await office.identities().answered(RemoveMessages)
    assert await office.waiting(ALICE) == 1
    gate.released.set()
    await idle(courier)


async def test_a_message_that_comes_during_a_delivery_is_delivered_too(
    office: PostOffice, agents: AgentHost
) -> None:
    await office.connect(ALICE, agents.url())
    await office.queue(ALICE, *envelopes(1))
    agents.answer = gate = Gate()
    courier = office.courier(agents.lookup)
    courier.wake(ALICE)
    await agents.has(1)
    await office.queue(ALICE, *envelopes(1, first=1))
    courier.wake(ALICE)
    gate.released.set()
    await idle(courier)
    assert agents.received == envelopes(2)


async def test_a_message_that_comes_just_as_nothing_was_found_is_not_overlooked(
    office: PostOffice, agents: AgentHost
) -> None:
    await office.connect(ALICE, agents.url())
    courier = office.courier(agents.lookup)

    async def queue_one() -> None:
        await office.queue(ALICE, *envelopes(1))
        courier.wake(ALICE)

    office.identities().before_answer[QueryQueue] = queue_one
    courier.wake(ALICE)
    await idle(courier)
    assert agents.received == envelopes(1)


async def test_an_endpoint_that_is_down_keeps_its_messages_until_it_is_back(
    office: PostOffice,
) -> None:
    async with agent_host(running=False) as agents:
        await office.connect(ALICE, agents.url())
        await office.queue(ALICE, *envelopes(3))
        courier = office.courier(agents.lookup)
        courier.wake(ALICE)
        await office.identities().answered(ReleaseLeases)
        state = await office.state(ALICE)
        assert (state.messages, state.available) == (3, 3)
        assert courier.figures() == {"delivered": 0, "failed": 1, "agents": 1}
        await agents.start()
        courier.heard_from(ALICE)
        await idle(courier)
        assert agents.received == envelopes(3)
        assert await office.waiting(ALICE) == 0


async def test_an_endpoint_that_is_down_is_tried_again_by_itself(office: PostOffice) -> None:
    async with agent_host(running=False) as agents:
        await office.connect(ALICE, agents.url())
        await office.queue(ALICE, *envelopes(1))
        courier = office.courier(agents.lookup, retry_s_min=0.01, retry_s_max=0.02)
        courier.wake(ALICE)
        await office.identities().answered(ReleaseLeases, 3)
        await agents.start()
        await idle(courier)
        assert agents.received == envelopes(1)


async def test_a_new_message_does_not_shorten_the_wait_for_a_failed_endpoint(
    office: PostOffice, agents: AgentHost
) -> None:
    await office.connect(ALICE, agents.url())
    await office.queue(ALICE, *envelopes(1))
    agents.answer = status(503)
    courier = office.courier(agents.lookup)
    courier.wake(ALICE)
    await office.identities().answered(ReleaseLeases)
    courier.wake(ALICE)
    courier.found_waiting([ALICE])
    await office.state(ALICE)
    assert len(agents.received) == 1


async def test_a_failed_endpoint_is_tried_with_one_message_alone(
    office: PostOffice, agents: AgentHost
) -> None:
    await office.connect(ALICE, agents.url())
    await office.queue(ALICE, *envelopes(3))
    agents.answer = status(503)
    courier = office.courier(agents.lookup, retry_s_min=0.01, retry_s_max=0.01)
    courier.wake(ALICE)
    await office.identities().answered(ReleaseLeases, 2)
    agents.answer = status(202)
    await idle(courier)
    assert agents.accepted == envelopes(3)
    limits = [c.limit for c in office.identities().seen if isinstance(c, DeliverMessages)]
    assert limits[:2] == [BATCH_MESSAGES_MAX, 1]
    assert limits[-1] == BATCH_MESSAGES_MAX


@pytest.mark.parametrize("code", [400, 413, 415, 422, 500])
async def test_a_message_that_the_agent_refuses_holds_up_no_other_and_is_kept(
    office: PostOffice, agents: AgentHost, code: int
) -> None:
    bad, *good = envelopes(3)

    async def refuse(envelope: bytes) -> web.StreamResponse:
        return web.Response(status=code if envelope == bad else 200)

    agents.answer = refuse
    await office.connect(ALICE, agents.url())
    await office.queue(ALICE, bad, *good)
    courier = office.courier(agents.lookup)
    courier.wake(ALICE)
    await office.identities().answered(QueryQueue, 2)
    assert agents.accepted == good
    assert await office.waiting(ALICE) == 1
    # It is out of the way of what comes later.
    await office.queue(ALICE, *envelopes(1, first=3))
    courier.wake(ALICE)
    await agents.has(4)
    assert agents.received == [bad, *good, *envelopes(1, first=3)]


async def test_a_refused_message_is_tried_again_after_a_while(
    office: PostOffice, agents: AgentHost
) -> None:
    await office.connect(ALICE, agents.url())
    await office.queue(ALICE, *envelopes(1))
    agents.answer = status(400)
    courier = office.courier(agents.lookup, retry_s_min=0.01, retry_s_max=0.01)
    courier.wake(ALICE)
    await office.identities().answered(DeliverMessages, TRIES + 1)
    agents.answer = status(200)
    office.now_ms += ASIDE_MS
    await office.offers(ALICE)
    courier.heard_from(ALICE)
    await idle(courier)
    assert agents.received == envelopes(1) * (TRIES + 1)
    assert await office.waiting(ALICE) == 0


async def test_a_refused_message_that_is_gone_is_waited_for_no_longer(
    office: PostOffice, agents: AgentHost
) -> None:
    await office.connect(ALICE, agents.url())
    await office.queue(ALICE, *envelopes(1))
    agents.answer = status(400)
    courier = office.courier(agents.lookup, retry_s_min=0.01, retry_s_max=0.01)
    courier.wake(ALICE)
    await office.identities().answered(DeliverMessages, TRIES + 1)
    await office.purge(ALICE)
    office.now_ms += ASIDE_MS
    courier.heard_from(ALICE)
    await idle(courier)
    assert agents.received == envelopes(1) * TRIES


async def test_an_endpoint_that_is_out_of_order_for_a_moment_gets_everything_in_order(
    office: PostOffice, agents: AgentHost
) -> None:
    await office.connect(ALICE, agents.url())
    await office.queue(ALICE, *envelopes(3))
    agents.answer = status(500)
    courier = office.courier(agents.lookup)
    courier.wake(ALICE)
    await office.identities().answered(DeliverMessages, 1)
    agents.received.clear()
    agents.answer = status(200)
    courier.heard_from(ALICE)
    await idle(courier)
    assert agents.received[-3:] == envelopes(3)
    assert await office.waiting(ALICE) == 0


async def test_a_live_socket_gets_the_messages_instead(
    office: PostOffice, agents: AgentHost
) -> None:
    await office.connect(ALICE, agents.url())
    await office.queue(ALICE, *envelopes(1))
    await office.go_live(ALICE)
    courier = office.courier(agents.lookup)
    courier.wake(ALICE)
    await idle(courier)
    assert agents.received == []
    assert await office.waiting(ALICE) == 1


async def test_an_agent_without_an_endpoint_is_left_alone(
    office: PostOffice, agents: AgentHost
) -> None:
    await office.connect(ALICE, "")
    await office.queue(ALICE, *envelopes(1))
    courier = office.courier(agents.lookup)
    for did in (ALICE, BOB):
        courier.wake(did)
    await idle(courier)
    assert await office.waiting(ALICE) == 1
    assert DeliverMessages not in office.identities().counts


async def test_an_agent_that_names_another_endpoint_is_reached_there(
    office: PostOffice, agents: AgentHost
) -> None:
    await office.connect(ALICE, f"http://gone.example:{agents.port}/ with a blank")
    await office.queue(ALICE, *envelopes(1))
    courier = office.courier(agents.lookup)
    courier.wake(ALICE)
    await office.identities().answered(QueryQueue)
    await office.connect(ALICE, agents.url())
    courier.heard_from(ALICE)
    await idle(courier)
    assert agents.received == envelopes(1)


async def test_a_slow_endpoint_is_given_up_and_its_message_stays(
    office: PostOffice, agents: AgentHost
) -> None:
    await office.connect(ALICE, agents.url())
    await office.queue(ALICE, *envelopes(2))
    agents.answer = gate = Gate()
    courier = office.courier(agents.lookup, timeout_s=0.1)
    courier.wake(ALICE)
    await office.identities().answered(ReleaseLeases)
    assert len(agents.received) == 1
    state = await office.state(ALICE)
    assert (state.messages, state.available) == (2, 2)
    gate.released.set()


async def test_a_batch_that_takes_too_long_makes_room_for_others(
    office: PostOffice, agents: AgentHost
) -> None:
    async def slowly(_: bytes) -> web.StreamResponse:
        office.now_ms += 6_000
        return web.Response()

    agents.answer = slowly
    await office.connect(ALICE, agents.url())
    await office.queue(ALICE, *envelopes(5))
    courier = office.courier(agents.lookup, timeout_s=10)
    courier.wake(ALICE)
    await idle(courier)
    assert agents.received == envelopes(5)
    assert office.identities().counts[ReleaseLeases] == 2


async def test_messages_that_somebody_holds_for_long_do_not_stop_those_behind_them(
    office: PostOffice, agents: AgentHost
) -> None:
    await office.connect(ALICE, agents.url())
    await office.queue(ALICE, *envelopes(2))
    await office.lease(ALICE, "a wallet", 1)
    courier = office.courier(agents.lookup, retry_s_min=0.01, timeout_s=1)
    courier.wake(ALICE)
    await office.identities().answered(QueryQueue, 3)
    office.now_ms += 15_000
    await idle(courier)
    assert agents.received == envelopes(1, first=1)


async def test_an_outcome_that_is_unknown_to_the_queue_is_told_again_and_not_delivered_again(
    office: PostOffice, agents: AgentHost
) -> None:
    await office.connect(ALICE, agents.url())
    await office.queue(ALICE, *envelopes(2))
    identities = office.identities()
    identities.lost = {RemoveMessages}
    courier = office.courier(agents.lookup, retry_s_min=0.01, retry_s_max=0.01)
    courier.wake(ALICE)
    await identities.answered(RemoveMessages, 5)
    identities.lost = set()
    await idle(courier)
    assert agents.received == envelopes(2)
    assert await office.waiting(ALICE) == 0


@pytest.mark.parametrize("lost", [QueryQueue, DeliverMessages])
async def test_queues_out_of_reach_are_asked_again(
    office: PostOffice, agents: AgentHost, lost: type[QueryQueue | DeliverMessages]
) -> None:
    await office.connect(ALICE, agents.url())
    await office.queue(ALICE, *envelopes(1))
    identities = office.identities()
    identities.lost = {lost}
    courier = office.courier(agents.lookup, retry_s_min=0.01, retry_s_max=0.01)
    courier.wake(ALICE)
    await identities.answered(lost, 3)
    identities.lost = set()
    await idle(courier)
    assert agents.received == envelopes(1)


async def test_an_agent_behind_mediators_of_its_own_gets_forwards(
    office: PostOffice, agents: AgentHost
) -> None:
    near, far = (KeyPair.from_seed(bytes([number]) * 32) for number in (1, 2))
    keys = [base58(near.public), did_key_reference(far.public)]
    await office.connect(ALICE, agents.url(), keys)
    await office.queue(ALICE, *envelopes(1))
    courier = office.courier(agents.lookup)
    courier.wake(ALICE)
    await idle(courier)
    (received,) = agents.received
    assert received not in envelopes(1)
    assert await office.waiting(ALICE) == 0
