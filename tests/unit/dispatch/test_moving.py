"""While a shard has no owner its commands wait, bounded in time and number, and go to the next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec
import pytest
from typing_extensions import override

from actors.core.commands import CheckRegistered, Command, OpenSession, Page
from actors.core.partitioning import Placement, shard_name
from actors.core.placement_table import PartitionOwner, PlacementTable
from actors.core.refusals import Refusal
from actors.core.replies import Done, Refused, Reply
from actors.core.submissions import Read, Submission
from actors.host.port import HostNotReached, HostUnavailable
from eventstore.log.event_log import PublicEventsFilter
from http_edge.dispatch import gateway
from http_edge.dispatch.gateway import _ASK_AGAIN_S
from http_edge.dispatch.routes import Routes
from tests.unit.dispatch.recording_host import RecordingHost
from tests.unit.dispatch.test_gateway import LIMITS, Setting

HOSTS = ["host-0", "host-1"]
SHARDS = [shard_name(index) for index in range(16)]
SESSION = OpenSession("edge-0")
NOT_OWNER = Refused(Refusal.NOT_OWNER)
UNAVAILABLE = Refused(Refusal.TEMPORARILY_UNAVAILABLE)


def table(version: int, host: str | None, sessions: str = "1", **others: str) -> PlacementTable:
    """A table in which one host owns all shards but those of others; without a host none."""
    owners = {s: PartitionOwner(host, sessions) for s in SHARDS if host is not None}
    owners |= {s.replace("_", "-"): PartitionOwner(other, sessions) for s, other in others.items()}
    return PlacementTable(version, owners, dict.fromkeys(HOSTS, "node"))


def live(
    *, refusing: Callable[[str], bool] = lambda _: False, routes: Routes | None = None
) -> tuple[Setting, Routes]:
    """A gateway with live routes to two hosts, of which those that are ``refusing`` own nothing."""
    routes = routes or Routes(Placement(shards=16, hosts=1))
    setting = Setting(2, routes)

    def reply_of(name: str) -> Callable[[Submission], Reply]:
        return lambda _: NOT_OWNER if refusing(name) else Done()

    setting.hosts |= {name: RecordingHost(reply_of(name)) for name in HOSTS}
    setting.gateway._ports = setting.hosts.__getitem__
    return setting, routes


def submitted(setting: Setting, number: int = 0, sender: str | None = None) -> asyncio.Task[Reply]:
    submission = setting.submission(f"did:a:{number}", sender=sender)
    return asyncio.create_task(setting.gateway.submit(submission))


async def test_who_gives_up_waiting_for_a_table_is_forgotten_and_fails_no_table() -> None:
    _, routes = live()
    waiting = asyncio.create_task(routes.wait_until(lambda: False, seconds_max=60))
    await asyncio.sleep(0)
    routes.update(table(1, "host-0"))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not waiting.done(), "the table is not the one"
    waiting.cancel()
    routes.update(table(2, "host-0"))
    await asyncio.wait([waiting])
    assert not routes._waiting


async def test_before_the_first_table_commands_wait_for_it_and_keep_their_order() -> None:
    setting, routes = live()
    waiting = [submitted(setting, number) for number in range(3)]
    await asyncio.sleep(0)
    routes.update(table(1, "host-0"))
    assert await asyncio.gather(*waiting) == [Done()] * 3
    (batch,) = setting.hosts["host-0"].batches
    assert [item.target_did for item in batch] == [f"did:a:{number}" for number in range(3)]


async def test_what_a_former_owner_refuses_goes_to_the_next_as_it_was() -> None:
    setting, routes = live(refusing=lambda name: name == "host-0")
    routes.update(table(1, "host-0"))
    waiting = submitted(setting, sender="did:a:1")
    await setting.hosts["host-0"].called.wait()
    routes.update(table(2, "host-1"))
    assert await waiting == Done()
    assert setting.hosts["host-1"].batches == setting.hosts["host-0"].batches


async def test_what_cannot_be_sent_to_a_host_that_is_gone_goes_to_the_next_as_it_was() -> None:
    setting, routes = live()
    setting.hosts["host-0"].fails = HostNotReached
    routes.update(table(1, "host-0"))
    read = Read("did:a:0", Page(0, 1), PublicEventsFilter())
    waiting = submitted(setting, sender="did:a:1")
    reading = asyncio.create_task(setting.gateway.read(read))
    await setting.hosts["host-0"].called.wait()
    setting.hosts["host-1"].page = b"page"
    routes.update(table(2, "host-1"))
    assert await waiting == Done()
    assert setting.hosts["host-1"].batches[0] == setting.hosts["host-0"].batches[0]
    assert await reading == memoryview(b"page")


async def test_what_was_sent_to_a_host_that_did_not_answer_is_unknown_and_not_sent_again() -> None:
    setting, routes = live()
    setting.hosts["host-0"].fails = HostUnavailable
    routes.update(table(1, "host-0"))
    assert await submitted(setting) == UNAVAILABLE
    assert len(setting.hosts["host-0"].batches) == 1


async def test_an_owner_that_changes_its_mind_is_asked_again_without_a_new_table() -> None:
    is_refusing = True
    setting, routes = live(refusing=lambda _: is_refusing)
    routes.update(table(1, "host-0"))
    waiting = submitted(setting)
    await setting.hosts["host-0"].called.wait()
    is_refusing = False
    assert await waiting == Done()


@pytest.mark.thorough
async def test_no_command_and_no_reading_waits_longer_than_the_limit() -> None:
    setting, routes = live(refusing=lambda _: True)
    reading = setting.gateway.read(Read("did:a:0", Page(0, 1), PublicEventsFilter()))
    assert {*await asyncio.gather(submitted(setting), reading)} == {UNAVAILABLE}
    routes.update(table(1, "host-0"))
    assert await submitted(setting) == UNAVAILABLE
    assert 1 < len(setting.hosts["host-0"].batches) < 9


async def test_no_more_wait_than_the_limit() -> None:
    setting, routes = live()
    for version in (1, 3):
        waiting = [submitted(setting, number) for number in range(9)]
        replies = asyncio.gather(*waiting)
        await asyncio.sleep(0)
        assert await waiting[-1] == UNAVAILABLE
        routes.update(table(version, "host-0"))
        assert (await replies)[:8] == [Done()] * 8
        routes.update(table(version + 1, None))


@pytest.mark.parametrize("commands", [(CheckRegistered(), SESSION), (SESSION, CheckRegistered())])
async def test_requests_that_wait_for_an_owner_take_half_of_the_places_and_sessions_none_of_these(
    commands: tuple[Command, Command],
) -> None:
    setting, routes = live()
    limits = {"commands_in_flight_max": 8, "outbox_items_max": 16}
    setting.gateway._limits = LIMITS.model_copy(update=limits)
    sent: list[asyncio.Task[Reply]] = []
    for command in commands:
        submission = msgspec.structs.replace(setting.submission("did:a:0"), command=command)
        sent += [asyncio.create_task(setting.gateway.submit(submission)) for _ in range(9)]
        await asyncio.sleep(0)
    replies = asyncio.gather(*sent)
    routes.update(table(1, "host-0"))
    waited = [4, 9] if commands[1] is SESSION else [9, 4]
    assert await replies == [
        reply for each in waited for reply in [Done()] * each + [UNAVAILABLE] * (9 - each)
    ]


class WatchedRoutes(Routes):
    """Routes that get their next table as soon as something waits for it."""

    def __init__(self) -> None:
        super().__init__(Placement(shards=16, hosts=1))
        self.waits_s: list[float] = []
        self.is_so: list[bool] = []
        """Before the table and after it."""
        self.next = table(2, "host-1")

    @override
    async def wait_until(self, is_so: Callable[[], bool], *, seconds_max: float) -> bool:
        self.waits_s.append(seconds_max)
        self.is_so.append(is_so())
        self.update(self.next)
        self.is_so.append(is_so())
        return True


@pytest.mark.parametrize("owner", [None, "host-0"])
async def test_without_an_owner_a_table_is_waited_for_and_a_former_owner_is_soon_tried_again(
    owner: str | None,
) -> None:
    routes = WatchedRoutes()
    setting, _ = live(refusing=lambda name: name == "host-0", routes=routes)
    setting.hosts["host-1"].page = b"page"
    read = Read("did:a:0", Page(0, 1), PublicEventsFilter())
    routes.update(table(1, owner))
    assert await submitted(setting) == Done()
    setting.hosts["host-0"].fails = HostNotReached
    routes.update(table(1, owner))
    assert await setting.gateway.read(read) == memoryview(b"page")
    assert [wait_s > _ASK_AGAIN_S for wait_s in routes.waits_s] == [owner is None] * 2


@pytest.mark.parametrize("moves", ["both shards", "the target's shard", "the target alone"])
async def test_a_command_goes_on_as_soon_as_a_table_names_another_owner(moves: str) -> None:
    routes = WatchedRoutes()
    setting, _ = live(refusing=lambda _: not routes.waits_s, routes=routes)
    shard = routes.placement.partition_of(DID)
    if moves == "the target's shard":
        routes.next = table(2, "host-0", **{shard.replace("-", "_"): "host-1"})
    if moves == "the target alone":
        routes.next = with_own(2, {DID: PartitionOwner("host-1", "1/a")})
    routes.update(table(1, "host-0"))
    submission = setting.submission(DID, sender="did:a:1")
    claim = submission.claim
    assert claim is not None
    assert claim.partition != shard
    assert await setting.gateway.submit(submission) == Done()
    assert routes.is_so == [False, True]


async def test_no_nonce_is_claimed_as_long_as_the_owner_of_the_target_is_unknown() -> None:
    setting, routes = live()
    placement = routes.placement
    target, sender = "did:a:0", "did:a:1"
    assert placement.partition_of(target) != placement.partition_of(sender)
    shard = placement.partition_of(sender).replace("-", "_")
    routes.update(table(1, None, **{shard: "host-0"}))
    waiting = submitted(setting, sender=sender)
    async with asyncio.timeout(10):
        while not any(setting.gateway._unrouted.values()):  # noqa: ASYNC110 - no event says that it waits
            await asyncio.sleep(0)
    assert setting.hosts["host-0"].batches == []
    routes.update(table(2, "host-1", **{shard: "host-0"}))
    assert await waiting == Done()
    ((claiming,),), ((acting,),) = setting.hosts["host-0"].batches, setting.hosts["host-1"].batches
    assert (claiming.command, acting.claim) == (None, None)


async def test_where_owners_are_fixed_who_is_none_is_unavailable_at_once() -> None:
    setting = Setting()
    setting.hosts["host-0"] = RecordingHost(lambda _: NOT_OWNER)
    assert await setting.gateway.submit(setting.submission("did:a:0")) == UNAVAILABLE
    assert len(setting.hosts["host-0"].batches) == 1


async def test_drained_waits_for_those_who_wait_for_an_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateway, "_DRAIN_POLL_S", 0)
    setting, routes = live()
    waiting = submitted(setting)
    await asyncio.sleep(0)
    draining = asyncio.create_task(setting.gateway.drained())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not draining.done()
    routes.update(table(1, "host-0"))
    await draining
    assert waiting.done()


def test_sessions_are_lost_with_a_new_id_also_when_they_had_no_owner_between() -> None:
    routes = Routes(Placement(shards=16, hosts=1))
    assert not routes.update(table(1, "host-0", "1"))
    assert not routes.update(table(2, "host-1", "1"))
    assert not routes.update(table(3, None))
    assert not routes.update(table(4, "host-0", "1"))
    assert not routes.update(table(5, None))
    assert set(routes.update(table(6, "host-1", "2"))) == set(SHARDS)


def without(table: PlacementTable, host: str) -> PlacementTable:
    """The same as if this host lived no more."""
    hosts = {name: node for name, node in table.hosts.items() if name != host}
    return msgspec.structs.replace(table, hosts=hosts)


def test_a_host_is_lost_when_others_own_what_it_had_and_did_not_hand_over() -> None:
    routes = Routes(Placement(shards=16, hosts=1))
    routes.update(table(1, "host-0", "1"))
    routes.update(without(table(2, None), "host-0"))
    assert routes.lost_hosts == set()  # it may still hand over
    routes.update(without(table(3, "host-1", "2"), "host-0"))
    assert routes.lost_hosts == {"host-0"}
    assert list(routes.just_left("host-0")) == []
    routes.update(table(4, "host-1", "2"))
    assert routes.lost_hosts == set()
    routes.update(without(table(5, "host-0", "2"), "host-1"))
    assert routes.lost_hosts == set()  # handed over
    routes.update(table(6, "host-1", "3"))
    assert routes.lost_hosts == set()  # it lives


def test_a_dedicated_host_that_lives_is_not_lost_with_the_sessions_of_its_identity() -> None:
    routes = Routes(Placement(shards=16, hosts=1))
    for sessions, living in (("own-1", [OWN]), ("own-2", [OWN]), ("own-3", [])):
        own = with_own(1, {DID: PartitionOwner(OWN, sessions)})
        hosts = dict.fromkeys(living, "node")
        routes.update(msgspec.structs.replace(own, dedicated_hosts=hosts))
        assert list(routes.dedicated_hosts()) == living
        assert routes.lost_hosts == ({OWN} - {*living})


def test_a_placer_is_silent_since_its_last_table_or_answer() -> None:
    now_s = 5.0
    routes = Routes(Placement(shards=16, hosts=1), clock_s=lambda: now_s)
    now_s = 7.0
    assert routes.silent_s() == 2
    routes.update(table(1, "host-0"))
    assert routes.silent_s() == 0
    now_s = 8.0
    routes.placer_answered()
    now_s = 8.5
    assert routes.silent_s() == 0.5


async def test_who_waits_for_a_host_that_was_lost_is_answered_or_goes_to_the_next_owner() -> None:
    setting, routes = live()
    stands_still = setting.hosts["host-0"]
    stands_still.hold()
    routes.update(table(1, "host-0"))
    sent = submitted(setting)
    await stands_still.called.wait()
    waiting = submitted(setting, 1)
    await asyncio.sleep(0)
    stands_still.fails = HostNotReached
    routes.update(without(table(2, "host-1", "2"), "host-0"))
    setting.gateway.give_up("host-0")
    setting.gateway.give_up("a host without a connection")
    assert await sent == UNAVAILABLE  # it may have come about
    assert await waiting == Done()
    assert len(setting.hosts["host-1"].batches) == 1


def test_shards_that_left_a_host_are_remembered_until_a_broken_line_to_it_is_noticed() -> None:
    now_s = 0.0
    routes = Routes(Placement(shards=16, hosts=1), clock_s=lambda: now_s)
    routes.update(table(1, "host-0"))
    routes.update(table(2, "host-0", shard_3="host-1"))
    assert list(routes.just_left("host-0")) == ["shard-3"]
    assert list(routes.just_left("host-1")) == []
    now_s = 8
    routes.update(table(3, "host-0", shard_3="host-1"))
    assert list(routes.just_left("host-0")) == ["shard-3"]
    now_s = 60
    assert list(routes.just_left("host-0")) == []
    routes.update(table(4, "host-0", shard_3="host-1"))
    assert not routes._left


NONE_DEDICATED: Mapping[str, PartitionOwner | None] = {}


def with_own(
    version: int,
    dedicated: Mapping[str, PartitionOwner | None] | None = NONE_DEDICATED,
    sessions: str = "1",
    *,
    returned: str | None = None,
) -> PlacementTable:
    """A table in which one host owns all shards, and what it says of one identity."""
    found = table(version, "host-0", sessions)
    return msgspec.structs.replace(
        found,
        dedicated=None if dedicated is None else dict(dedicated),
        returned={} if returned is None else {DID: returned},
    )


DID = "did:a:b"
OWN = "identity@node:did:a:b"


async def test_what_is_on_its_way_to_a_shard_goes_after_the_identity_that_has_left_it() -> None:
    setting, routes = live(refusing=lambda name: name == "host-0")
    setting.hosts[OWN] = RecordingHost(lambda _: Done())
    routes.update(table(1, "host-0"))
    waiting = asyncio.create_task(setting.gateway.submit(setting.submission(DID)))
    await setting.hosts["host-0"].called.wait()
    routes.update(with_own(2, {DID: None}))
    await asyncio.sleep(0)
    assert not waiting.done()
    routes.update(with_own(3, {DID: PartitionOwner(OWN, "1/a")}))
    assert await waiting == Done()
    ((moved,),) = setting.hosts[OWN].batches
    assert moved.partition == DID
    assert routes.partition_of(DID) == DID
    assert routes.unowned() == 0


async def test_the_nonce_of_an_identity_on_its_own_stays_with_its_shard() -> None:
    setting, routes = live()
    setting.hosts[OWN] = RecordingHost(lambda _: Done())
    routes.update(with_own(1, {DID: PartitionOwner(OWN, "1/a")}))
    submission = msgspec.structs.replace(setting.submission(DID, sender=DID), partition=DID)
    assert await setting.gateway.submit(submission) == Done()
    ((claiming,),), ((acting,),) = setting.hosts["host-0"].batches, setting.hosts[OWN].batches
    assert (claiming.command, acting.claim) == (None, None)
    shard = routes.placement.partition_of(DID)
    assert claiming.claim is not None
    assert (claiming.claim.partition, acting.partition) == (shard, DID)


async def test_a_nonce_alone_stays_with_its_shard_whatever_becomes_of_the_identity() -> None:
    setting, routes = live(refusing=lambda name: name == "host-0")
    setting.hosts[OWN] = RecordingHost(lambda _: Done())
    routes.update(table(1, "host-0"))
    submission = msgspec.structs.replace(setting.submission(DID, sender=DID), command=None)
    waiting = asyncio.create_task(setting.gateway.submit(submission))
    await setting.hosts["host-0"].called.wait()
    own = with_own(2, {DID: PartitionOwner(OWN, "1/a")})
    routes.update(msgspec.structs.replace(own, owners=table(2, "host-1").owners))
    assert await waiting == Done()
    assert setting.hosts["host-1"].batches == [[submission]]
    assert setting.hosts[OWN].batches == []


def test_sessions_go_with_an_identity_and_come_back_with_it() -> None:
    routes = Routes(Placement(shards=16, hosts=1))
    assert not routes.update(with_own(1))
    assert not routes.update(with_own(2, {DID: PartitionOwner(OWN, "1/a")}))
    assert list(routes.just_left("host-0")) == [DID]
    assert not routes.update(with_own(3, {DID: PartitionOwner("identity@other:" + DID, "1/a")}))
    assert not routes.update(with_own(4, {}, returned="1/a"))
    assert list(routes.just_left("identity@other:" + DID)) == [DID]
    assert routes.partition_of(DID) != DID
    assert not routes.update(with_own(5, {}, returned="1/a"))
    assert not routes.update(with_own(6, {DID: PartitionOwner(OWN, "1/b")}))


def test_sessions_that_an_identity_lost_on_its_way_are_reported() -> None:
    routes = Routes(Placement(shards=16, hosts=1))
    routes.update(with_own(1))
    assert set(routes.update(with_own(2, {DID: PartitionOwner(OWN, "own-1")}))) == {DID}
    assert set(routes.update(with_own(3, {DID: PartitionOwner(OWN, "own-2")}))) == {DID}
    assert not routes.update(with_own(4, {DID: None}))
    assert set(routes.update(with_own(5, {}, returned=""))) == {DID}
    assert not routes.update(with_own(6, {}, returned=""))
    # There and back between two tables: with what it had, and without.
    assert not routes.update(with_own(7, {}, returned="1/c"))
    assert set(routes.update(with_own(8, {}, returned=""))) == {DID}


def test_a_placer_that_has_not_looked_yet_tells_nothing_of_identities() -> None:
    routes = Routes(Placement(shards=16, hosts=1))
    routes.update(with_own(1, {DID: PartitionOwner(OWN, "1/a")}))
    assert not routes.update(with_own(2, None))
    assert routes.host_of(DID) == OWN


def test_the_sessions_of_a_shard_are_lost_without_those_of_whom_has_left_it() -> None:
    routes = Routes(Placement(shards=16, hosts=1))
    routes.update(with_own(1, {DID: PartitionOwner(OWN, "1/a")}))
    lost = routes.update(with_own(2, {DID: PartitionOwner(OWN, "1/a")}, "2"))
    assert set(lost) == set(SHARDS)
    # It comes back with its sessions to a shard that has lost its own.
    assert not routes.update(with_own(3, {}, "2", returned="1/a"))


async def test_what_is_about_rows_of_another_database_stays_with_the_shard_it_names() -> None:
    routes = Routes(Placement(shards=16, hosts=1, databases=2))
    setting, _ = live(refusing=lambda name: name == "host-0", routes=routes)
    routes.update(table(1, "host-1", shard_1="host-0"))
    did = next(d for n in range(99) if routes.placement.database_of(d := f"did:a:{n}") == 0)
    there = msgspec.structs.replace(setting.submission(did), partition="shard-1")
    waiting = asyncio.create_task(setting.gateway.submit(there))
    await setting.hosts["host-0"].called.wait()
    routes.update(table(2, "host-1"))
    assert await waiting == Done()
    assert [[one.partition for one in b] for b in setting.hosts["host-1"].batches] == [["shard-1"]]
