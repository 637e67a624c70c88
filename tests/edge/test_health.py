"""What an edge says of the health of its hosts."""

from __future__ import annotations

import asyncio

from actors.core.partitioning import host_name
from http_edge.server.hosts import host_options
from tests.edge.identities import Identity
from tests.edge.mediator import HandClock, Mediator
from tests.log.faulty_log import FailNext, FaultyLog


async def test_health_recovers_with_the_log_although_no_command_comes(
    mediator: Mediator, clock: HandClock, alice: Identity
) -> None:
    await mediator.register(alice)
    options = host_options(mediator.settings, 0)
    await asyncio.to_thread(mediator.hosts.running[host_name(0)].stop)
    faulty = FaultyLog(options.open_log())
    mediator.hosts.run(options, faulty)
    faulty.plan(FailNext(2))
    assert (await mediator.send(alice, {"type": "QUERY_PENDING_EVENTS"})).status == 503
    for status in (503, 200):
        clock.advance(2)
        assert (await mediator.get("/health")).status == status
