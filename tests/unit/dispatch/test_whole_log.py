"""Queries of the whole log while one of its databases is away."""

from __future__ import annotations

from uuid import UUID

import pytest

from actors.core.partitioning import Placement
from actors.host.measures import HostStats
from actors.host.port import HostNotReached, HostUnavailable
from eventstore.log import event_log
from eventstore.log.event_log import StorageFigures, WaitingQueue
from eventstore.log.streams import identity_stream
from http_edge.dispatch.gateway import Gateway
from http_edge.dispatch.routes import Routes
from http_edge.dispatch.whole_log import outbound_queues, storage, waiting_queues
from tests.unit.dispatch.recording_host import RecordingHost
from tests.unit.dispatch.test_gateway import LIMITS

LATER, EARLIER = (WaitingQueue(f"did:example:{n}", 1, 1, 9 - n, outbound=True) for n in (1, 2))


def two_databases() -> tuple[Gateway, RecordingHost, RecordingHost]:
    """A gateway to one host of each."""
    placement = Placement(shards=4, hosts=1, databases=2)
    first, second = RecordingHost(), RecordingHost()
    hosts = dict(zip(placement.host_names, (first, second), strict=True))
    gateway = Gateway(
        Routes.fixed(placement),
        lambda name: hosts[name],
        LIMITS,
        on_push=lambda _: None,
        on_new_incarnation=lambda _: None,
    )
    return gateway, first, second


async def test_deliveries_of_the_other_databases_go_on_while_one_is_away() -> None:
    gateway, first, second = two_databases()
    first.queues, second.queues = [LATER], [EARLIER]
    assert await waiting_queues(gateway, 9) == [EARLIER, LATER]
    assert await outbound_queues(gateway, 9) == [EARLIER, LATER]
    assert await outbound_queues(gateway, 1) == [EARLIER]
    second.fails = HostNotReached
    assert await outbound_queues(gateway, 9) == [LATER]
    with pytest.raises(HostUnavailable):
        await waiting_queues(gateway, 9)  # operators would take the rest for all


async def test_each_queue_of_several_databases_is_found_once_after_those_before_it() -> None:
    gateway, *hosts = two_databases()
    same_age = [WaitingQueue(f"did:example:{n}", 1, 1, 7, outbound=True) for n in range(6)]
    for host, queues in zip(hosts, (same_age[:3], same_age[3:]), strict=True):
        host.queues = sorted(queues, key=lambda queue: queue.place)
    found: list[WaitingQueue] = []
    while some := await outbound_queues(gateway, 1, found[-1] if found else None):
        found += some
    assert found == sorted(same_age, key=lambda queue: queue.place)


async def test_the_stream_of_a_queue_is_computed_only_to_compare_equally_old_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each takes microseconds on the loop, and there may be tens of thousands of queues."""
    gateway, first, second = two_databases()
    computed: list[str] = []

    def noted(did: str) -> UUID:
        computed.append(did)
        return identity_stream(did)

    def queue(name: str, age: int) -> WaitingQueue:
        return WaitingQueue(name, 1, 1, age, outbound=True)

    first.queues = [queue(f"did:example:a{age}", age) for age in (1, 3, 5, 7)]
    second.queues = [queue(f"did:example:b{age}", age) for age in (2, 4, 5, 8)]
    monkeypatch.setattr(event_log, "identity_stream", noted)
    found = await waiting_queues(gateway, 9)
    assert sorted(computed) == ["did:example:a5", "did:example:b5"]
    assert found == sorted(first.queues + second.queues, key=lambda queue: queue.place)


def figures(used_bytes: int, free_bytes: int | None, facts_bytes: int | None) -> StorageFigures:
    return StorageFigures(
        facts_bytes=facts_bytes,
        contents_bytes=None,
        read_models_bytes=None,
        wal_bytes=None,
        free_bytes=free_bytes,
        used_bytes=used_bytes,
    )


@pytest.mark.parametrize(
    ("growth", "free_disk", "free_inside", "days"),
    [
        ((3.0, 1.0), 40, 20, 15.0),
        ((3.0, 1.0), 40, None, 10.0),
        ((0.0, 0.0), 40, 20, None),
        ((3.0, None), 40, 20, None),
        ((3.0, 1.0), None, 20, None),
    ],
)
def test_a_log_is_full_when_its_growth_has_taken_the_free_disk_and_what_is_free_inside(
    growth: tuple[float | None, ...],
    free_disk: int | None,
    free_inside: int | None,
    days: float | None,
) -> None:
    """Known only where every database says its part."""
    placement = Placement(shards=4, hosts=1, databases=2)
    hosts = [
        HostStats(
            name,
            free_bytes=None if free_disk is None else free_disk // 2,
            storage=figures(100, None if free_inside is None else free_inside // 2, number or None),
            growth_bytes_per_day=growth[number],
        )
        for number, name in enumerate(placement.host_names)
    ]
    found = storage(placement, hosts)
    assert found is not None
    assert (found.used_bytes, found.facts_bytes, found.days_until_full) == (200, None, days)
    assert storage(placement, hosts[:1]) is None
