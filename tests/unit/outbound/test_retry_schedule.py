from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.core.commands import QueryConnection, ReleaseLeases
from http_edge.didcomm.outbound.retry_schedule import pause_s
from http_edge.didcomm.outbound.worker import HURRIES_MAX
from tests.unit.outbound.agent_host import AgentHost, status
from tests.unit.outbound.delivery_network import (
    ALICE,
    BOB,
    DeliveryNetwork,
    envelopes,
    idle,
    sleeps,
)
from tests.unit.test_hang_watch import clock_set_ahead


@given(st.integers(1, 10_000), st.text())
def test_a_pause_doubles_up_to_its_bound_and_is_never_less_than_half(
    attempt: int, name: str
) -> None:
    ceiling_s = min(60.0, 0.5 * 2.0 ** min(attempt - 1, 32))
    pause = pause_s(attempt, name, first_s=0.5, longest_s=60)
    assert ceiling_s / 2 <= pause <= ceiling_s


def test_agents_that_fail_together_do_not_come_back_together() -> None:
    pauses = {pause_s(3, f"agent {number}", first_s=0.5, longest_s=60) for number in range(100)}
    assert len(pauses) == 100
    assert max(pauses) - min(pauses) > 0.8


async def test_messages_of_an_agent_bring_a_bounded_number_of_tries_forward(
    network: DeliveryNetwork, agents: AgentHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    await network.connect(ALICE, agents.url(), queued=envelopes(1))
    agents.answer = status(503)
    goes_on = clock_set_ahead(asyncio.get_running_loop(), monkeypatch)
    workers = network.workers(agents.lookup, retry_s_min=60, retry_s_max=600, wakes=ALICE)
    for tries in range(1, HURRIES_MAX + 1):
        await network.identities().answered(ReleaseLeases, tries)
        workers.sender_seen(ALICE)
    await network.identities().answered(ReleaseLeases, HURRIES_MAX + 1)
    workers.sender_seen(ALICE)
    await idle(network.workers(agents.lookup, edge="edge-1", wakes=BOB))
    seen = network.identities().seen
    assert sum(isinstance(each, QueryConnection) for each in seen) == HURRIES_MAX + 1
    # The usual pauses end and grow as usual; after the longest one the messages count again.
    for seconds, tries in ((60, HURRIES_MAX + 2), (60, HURRIES_MAX + 2), (540, HURRIES_MAX + 3)):
        await sleeps(workers)
        goes_on(seconds)
        await network.state(ALICE)  # by the time of an answer a try that is due has begun
        await network.identities().answered(ReleaseLeases, tries)
    await sleeps(workers)
    assert network.identities().counts[ReleaseLeases] == HURRIES_MAX + 3
    workers.sender_seen(ALICE)
    await network.identities().answered(ReleaseLeases, HURRIES_MAX + 4)
