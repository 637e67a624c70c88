"""Hosts that hang, however many, leave places to reads and commands for other hosts."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from actors.core.commands import OpenSession
from actors.core.refusals import Refusal
from actors.core.replies import Done, Refused, Reply
from actors.host.port import HostUnavailable
from eventstore.log.event_log import SavedEventsPage
from http_edge.dispatch import gateway, outbox
from http_edge.telemetry.edge_measures import EdgeMeasures
from tests.unit.dispatch.test_gateway import LIMITS, Setting, read_of, sender_and_target


async def test_a_host_that_hangs_takes_no_place_of_reads_at_other_hosts() -> None:
    setting = Setting(hosts=2, limits=LIMITS.model_copy(update={"reads_in_flight_max": 8}))
    hanging, other = setting.hosts.values()
    other.page = msgspec.msgpack.encode(SavedEventsPage([], 0))
    hanging.hold()
    theirs, did = sender_and_target(setting)
    stuck = [read_of(setting, theirs) for _ in range(8)]
    await hanging.called.wait()
    assert await asyncio.wait_for(read_of(setting, did), 10) == memoryview(other.page)
    assert hanging.reading == [theirs] * 2, "as many as it serves at once"
    hanging.fails = HostUnavailable
    hanging.answer_all()
    assert await asyncio.gather(*stuck) == [Refused(Refusal.TEMPORARILY_UNAVAILABLE)] * 8


async def test_hosts_that_hang_leave_places_of_reads_to_others_however_many_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateway, "_SLOT_S_MAX", 0)
    setting = Setting(hosts=4)
    *hanging, other = setting.hosts.values()
    other.page = msgspec.msgpack.encode(SavedEventsPage([], 0))
    placement = setting.gateway.routes.placement
    dids = {placement.host_of(placement.partition_of(did)): did for did in map(str, range(99))}
    stuck = []
    for host, name in zip(hanging, setting.hosts, strict=False):
        host.hold()
        stuck += [read_of(setting, dids[name]) for _ in range(2)]
    assert await asyncio.wait_for(read_of(setting, dids["host-3"]), 10) == memoryview(other.page)
    assert [len(host.reading) for host in hanging] == [2] * 3
    for host in hanging:
        host.answer_all()
    await asyncio.gather(*stuck)
    # Each place was given back once: as many reads as before are under way together.
    other.hold()
    hanging[0].hold()
    reads = [read_of(setting, dids[name]) for name in ("host-0", "host-3") for _ in range(2)]
    monkeypatch.setattr(gateway, "_SLOT_S_MAX", 60)
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(hanging[0].held + other.held) == LIMITS.reads_in_flight_max
    hanging[0].answer_all()
    other.answer_all()
    await asyncio.gather(*reads)


@pytest.mark.parametrize("hosts", [1, 2])
async def test_reads_that_wait_for_one_of_several_hosts_take_a_quarter_of_the_places(
    hosts: int,
) -> None:
    limits = LIMITS.model_copy(update={"commands_in_flight_max": 16, "reads_in_flight_max": 8})
    setting = Setting(hosts, limits=limits)
    dids = sender_and_target(Setting(hosts=2))
    for host in setting.hosts.values():
        host.page = msgspec.msgpack.encode(SavedEventsPage([], 0))
    page = memoryview(setting.host.page)
    assert await asyncio.gather(*[read_of(setting, did) for did in dids]) == [page] * 2
    setting.host.hold()
    waiting = [read_of(setting, dids[0]) for _ in range(4)]
    await asyncio.sleep(0)
    beyond, other = read_of(setting, dids[0]), read_of(setting, dids[1])
    if hosts == 2:
        assert await asyncio.wait_for(beyond, 10) == Refused(Refusal.TEMPORARILY_UNAVAILABLE)
        assert await asyncio.wait_for(other, 10) == page
    setting.host.answer_all()
    assert await asyncio.gather(*waiting) == [page] * 4
    if hosts == 1:
        assert await asyncio.gather(*[beyond, other]) == [page] * 2
    assert await read_of(setting, dids[0]) == page


async def until_slow(setting: Setting, host: str = "host-0") -> None:
    async with asyncio.timeout(10):
        while not setting.gateway._outbox(host).is_slow:  # noqa: ASYNC110 - a timer says so
            await asyncio.sleep(0)


def commands_for(setting: Setting, did: str, count: int) -> list[asyncio.Task[Reply]]:
    return [
        asyncio.create_task(setting.gateway.submit(setting.submission(did))) for _ in range(count)
    ]


@pytest.mark.parametrize("waiting", [2, 3])
async def test_commands_for_a_host_that_hangs_take_less_than_half_of_the_places(
    monkeypatch: pytest.MonkeyPatch, waiting: int
) -> None:
    monkeypatch.setattr(outbox, "_SLOW_S", 0)
    limits = LIMITS.model_copy(update={"commands_in_flight_max": 8, "batch_items_max": 1})
    setting = Setting(hosts=2, limits=limits)
    did, other = sender_and_target(setting)
    assert await setting.gateway.submit(setting.submission(other)) == Done()
    setting.host.hold()
    sent = commands_for(setting, did, 1 + waiting)
    await until_slow(setting)
    more = commands_for(setting, did, 2)
    for _ in range(3):
        await asyncio.sleep(0)
    assert await setting.gateway.submit(setting.submission(other)) == Done()
    setting.host.answer_all()
    # What had come before the host was slow is refused if it is half of all, or else the rest.
    refused = [0] * 3 + [0, 1] if waiting == 2 else [0] + [1] * 3 + [0, 0]
    expected = [Refused(Refusal.TEMPORARILY_UNAVAILABLE) if each else Done() for each in refused]
    assert await asyncio.gather(*sent, *more) == expected
    setting.host.hold()
    again = commands_for(setting, did, 1 + 2)
    setting.host.answer_all()
    assert await asyncio.gather(*again) == [Done()] * 3


async def test_sessions_of_sockets_at_a_slow_host_take_no_place_of_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox, "_SLOW_S", 0)
    limits = LIMITS.model_copy(update={"commands_in_flight_max": 8, "batch_items_max": 1})
    setting = Setting(hosts=2, limits=limits)
    did, _ = sender_and_target(setting)
    setting.host.hold()
    sent = commands_for(setting, did, 1)
    await until_slow(setting)
    opening = msgspec.structs.replace(setting.submission(did), command=OpenSession("edge/1/1"))
    sent += [asyncio.create_task(setting.gateway.submit(opening)) for _ in range(4)]
    sent += commands_for(setting, did, 1)
    for _ in range(3):
        await asyncio.sleep(0)
    setting.host.answer_all()
    assert await asyncio.gather(*sent) == [Done()] * 6


async def test_several_hosts_that_hang_share_half_of_the_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox, "_SLOW_S", 0)
    limits = LIMITS.model_copy(update={"commands_in_flight_max": 8, "batch_items_max": 1})
    setting = Setting(hosts=2, limits=limits)
    sent: list[asyncio.Task[Reply]] = []
    first, second = sender_and_target(setting)
    for name, did, waiting in (("host-0", first, 1), ("host-1", second, 0)):
        setting.hosts[name].hold()
        sent += commands_for(setting, did, 1 + waiting)
        await until_slow(setting, name)
    sent += commands_for(setting, first, 1)
    beyond = commands_for(setting, second, 1)
    refused = Refused(Refusal.TEMPORARILY_UNAVAILABLE)
    assert await asyncio.wait_for(beyond[0], 10) == refused
    for host in setting.hosts.values():
        host.answer_all()
    assert await asyncio.gather(*sent) == [Done()] * 4


async def test_all_places_may_wait_for_the_only_host_however_slow_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox, "_SLOW_S", 0)
    limits = LIMITS.model_copy(update={"commands_in_flight_max": 8, "batch_items_max": 1})
    setting = Setting(limits=limits)
    ended = outbox.Outbox("ended", setting.host, limits, EdgeMeasures(), on_result=print)
    setting.gateway._outboxes["ended"] = ended  # of a dedicated host
    setting.host.hold()
    sent = commands_for(setting, "did:a:0", 1)
    await until_slow(setting)
    sent += commands_for(setting, "did:a:0", 7)
    for _ in range(3):
        await asyncio.sleep(0)
    setting.host.answer_all()
    assert await asyncio.gather(*sent) == [Done()] * 8


async def test_a_host_that_is_back_after_a_slow_call_that_failed_serves_while_another_one_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox, "_SLOW_S", 0)
    limits = LIMITS.model_copy(update={"commands_in_flight_max": 8, "batch_items_max": 1})
    setting = Setting(hosts=2, limits=limits)
    hanging, back = setting.hosts.values()
    theirs, did = sender_and_target(setting)
    back.hold()
    lost = commands_for(setting, did, 1)
    await until_slow(setting, "host-1")
    back.fails = HostUnavailable
    back.answer_all()
    assert await asyncio.gather(*lost) == [Refused(Refusal.TEMPORARILY_UNAVAILABLE)]
    back.fails = None
    hanging.hold()
    stuck = commands_for(setting, theirs, 1)
    await until_slow(setting)
    stuck += commands_for(setting, theirs, 4)
    for _ in range(3):
        await asyncio.sleep(0)
    assert setting.gateway._is_crowded()
    assert await setting.gateway.submit(setting.submission(did)) == Done()
    hanging.answer_all()
    await asyncio.gather(*stuck)
