"""The hub: subscribers get notices of their identity, and sessions end with the last of them."""

from __future__ import annotations

import asyncio

import pytest

from actors.core.commands import CloseSession, ReleaseLeases
from actors.core.partitioning import Placement
from actors.core.placement_table import PartitionOwner
from actors.core.replies import ContractsUpdated, DeliveredMessage, EnvelopeDelivered, Notice
from http_edge.dispatch.hub import GOING_AWAY, SERVICE_RESTART, Hub
from http_edge.dispatch.routes import Routes
from tests.unit.dispatch.test_gateway import Setting, sender_and_target
from tests.unit.dispatch.test_moving import DID, OWN, with_own

EDGE = "edge-0"


class Recording:
    """A subscriber that keeps what it gets."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self.codes: list[int] = []

    def notify(self, notice: Notice) -> None:
        self.notices.append(notice)

    def close(self, code: int) -> None:
        self.codes.append(code)


def ended(setting: Setting, host: str = "host-0") -> list[str]:
    """Whose sessions the edge has ended at a host."""
    items = [item for batch in setting.hosts[host].batches for item in batch]
    assert [item.command for item in items] == [CloseSession(EDGE)] * len(items)
    return [item.target_did for item in items]


async def ended_all(setting: Setting) -> None:
    """Return when all that began to end at a host has ended."""
    await asyncio.sleep(0)
    await setting.gateway.drained()


async def test_each_subscriber_counts_until_it_is_removed_and_the_last_one_ends_the_session() -> (
    None
):
    setting = Setting()
    hub = Hub(EDGE, setting.gateway)
    first, second, other = Recording(), Recording(), Recording()
    for did, subscriber in (("a", first), ("a", second), ("b", other)):
        hub.add(did, subscriber)
    assert (len(hub), hub.subscribers_of("a"), hub.subscribers_of("c")) == (3, 2, 0)
    hub.push("a", ContractsUpdated())
    assert [len(each.notices) for each in (first, second, other)] == [1, 1, 0]
    hub.remove("a", first)
    hub.remove("a", first)
    hub.remove("c", first)
    assert (len(hub), hub.subscribers_of("a")) == (2, 1)
    hub.remove("a", second)
    await hub.session_ended("a")
    assert (len(hub), hub.subscribers_of("a")) == (1, 0)
    assert ended(setting) == ["a"]


async def test_a_push_for_no_subscriber_ends_the_session_once_at_a_time() -> None:
    setting = Setting()
    hub = Hub(EDGE, setting.gateway)
    for _ in range(3):
        hub.push("a", ContractsUpdated())
    await hub.session_ended("a")
    assert ended(setting) == ["a"]
    hub.push("a", ContractsUpdated())
    await hub.session_ended("a")
    assert ended(setting) == ["a"] * 2


@pytest.mark.parametrize("is_alone", [True, False])
async def test_what_is_delivered_to_a_session_that_is_gone_is_given_back_once_at_a_time(
    *, is_alone: bool
) -> None:
    """As its socket ended, the host was overloaded and refused to release what it held."""
    setting = Setting()
    hub = Hub(EDGE, setting.gateway)
    other = Recording()
    if not is_alone:
        hub.add("a", other, "laptop")
    message = DeliveredMessage("id", "key", b"sealed", 1)
    for _ in range(3):
        hub.push("a", EnvelopeDelivered("phone", message))
    await ended_all(setting)
    items = [item for batch in setting.host.batches for item in batch]
    closes = [CloseSession(EDGE)] if is_alone else []
    assert [item.command for item in items] == [*closes, ReleaseLeases("phone")]
    assert other.notices == []


async def test_what_is_delivered_to_a_socket_that_is_gone_is_given_back_for_each_agent() -> None:
    setting = Setting()
    hub = Hub(EDGE, setting.gateway)
    for did in ("a", "b"):
        hub.add(did, Recording())
        hub.push(did, EnvelopeDelivered("phone", DeliveredMessage("id", "key", b"sealed", 1)))
    await ended_all(setting)
    items = [item for batch in setting.host.batches for item in batch]
    assert [(item.target_did, item.command) for item in items] == [
        ("a", ReleaseLeases("phone")),
        ("b", ReleaseLeases("phone")),
    ]


async def test_what_is_delivered_to_a_session_goes_to_its_subscriber_alone() -> None:
    setting = Setting()
    hub = Hub(EDGE, setting.gateway)
    subscribers = {session: Recording() for session in ("", "phone", "laptop")}
    for session, subscriber in subscribers.items():
        hub.add("a", subscriber, session)
    hub.push("a", EnvelopeDelivered("laptop", DeliveredMessage("id", "key", b"sealed", 1)))
    assert [len(each.notices) for each in subscribers.values()] == [0, 0, 1]


async def test_a_session_that_a_new_subscriber_needs_goes_on() -> None:
    setting = Setting()
    hub = Hub(EDGE, setting.gateway)
    subscriber = Recording()
    hub.add("a", subscriber)
    hub.remove("a", subscriber)
    hub.add("a", subscriber)
    await hub.session_ended("a")
    assert ended(setting) == []


async def test_a_new_session_waits_for_the_end_of_the_last_one_which_no_one_can_call_off() -> None:
    setting = Setting()
    setting.host.hold()
    hub = Hub(EDGE, setting.gateway)
    hub.push("a", ContractsUpdated())
    await setting.host.called.wait()
    gone, stays = (asyncio.create_task(hub.session_ended("a")) for _ in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait([gone])
    assert not stays.done()
    setting.host.answer_all()
    await stays
    assert ended(setting) == ["a"]


async def test_a_host_that_lost_its_sessions_closes_its_subscribers_and_a_leaving_edge_all() -> (
    None
):
    setting = Setting(hosts=2)
    hub = Hub(EDGE, setting.gateway)
    dids = sender_and_target(setting)
    subscribers = [Recording(), Recording()]
    for did, subscriber in zip(dids, subscribers, strict=True):
        hub.add(did, subscriber)
    assert hub.hosts() == {"host-0", "host-1"}
    hub.close_sessions_on("host-1")
    assert [subscriber.codes for subscriber in subscribers] == [[], [SERVICE_RESTART]]
    hub.close_all()
    assert [subscriber.codes for subscriber in subscribers] == [
        [GOING_AWAY],
        [SERVICE_RESTART, GOING_AWAY],
    ]


async def test_subscribers_close_with_the_sessions_of_their_shard_or_their_identity() -> None:
    routes = Routes(Placement(shards=16, hosts=1))
    setting = Setting(1, routes)
    hub = Hub(EDGE, setting.gateway)
    in_shard, alone = Recording(), Recording()
    hub.add("did:a:1", in_shard)
    hub.add(DID, alone)
    assert hub.hosts() == set(), "no owner is known"
    routes.update(with_own(1, {DID: PartitionOwner(OWN, "1/a")}))
    hub.close_sessions_of([])
    hub.close_sessions_of([routes.placement.partition_of(DID)])
    assert (in_shard.codes, alone.codes) == ([], [])
    hub.close_sessions_of([DID])
    hub.close_sessions_of([routes.partition_of("did:a:1")])
    assert (in_shard.codes, alone.codes) == ([SERVICE_RESTART], [SERVICE_RESTART])
    # As it returns to its shard without its sessions.
    routes.update(with_own(2, {}, returned=""))
    hub.close_sessions_of([DID])
    assert alone.codes == [SERVICE_RESTART] * 2
