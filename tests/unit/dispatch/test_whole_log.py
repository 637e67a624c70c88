"""Queries of the whole log while one of its databases is away."""

from __future__ import annotations

import pytest

from actors.core.partitioning import Placement
from actors.host.port import HostNotReached, HostUnavailable
from eventstore.log.event_log import WaitingQueue
from http_edge.dispatch.gateway import Gateway
from http_edge.dispatch.routes import Routes
from http_edge.dispatch.whole_log import outbound_queues, waiting_queues
from tests.unit.dispatch.recording_host import RecordingHost
from tests.unit.dispatch.test_gateway import LIMITS

LATER, EARLIER = (WaitingQueue(f"did:example:{n}", 1, 1, 9 - n, outbound=True) for n in (1, 2))


async def test_deliveries_of_the_other_databases_go_on_while_one_is_away() -> None:
    placement = Placement(shards=4, hosts=1, databases=2)
    hosts = dict(zip(placement.host_names, (RecordingHost(), RecordingHost()), strict=True))
    gateway = Gateway(
        Routes.fixed(placement),
        lambda name: hosts[name],
        LIMITS,
        on_push=lambda _: None,
        on_new_incarnation=lambda _: None,
    )
    hosts["host-0-0"].queues, hosts["host-1-0"].queues = [LATER], [EARLIER]
    assert await waiting_queues(gateway, 9) == [EARLIER, LATER]
    assert await outbound_queues(gateway, 9) == [EARLIER, LATER]
    assert await outbound_queues(gateway, 1) == [EARLIER]
    hosts["host-1-0"].fails = HostNotReached
    assert await outbound_queues(gateway, 9) == [LATER]
    with pytest.raises(HostUnavailable):
        await waiting_queues(gateway, 9)  # operators would take the rest for all
