"""The gateway holds back what can linger alone; what a failed call carried is unknown."""

from __future__ import annotations

import asyncio
import logging
from contextvars import ContextVar

import msgspec
import pytest

from actors.core.commands import CheckRegistered, GrantMediation, Page
from actors.core.nonces import NonceClaim
from actors.core.partitioning import (
    Placement,
    dedicated_host_name,
    host_name,
    identity_of_host,
)
from actors.core.placement_table import PartitionOwner, PlacementTable
from actors.core.refusals import Refusal
from actors.core.replies import ContractsUpdated, Done, Push, Refused, Reply
from actors.core.submissions import PAID, Read, Submission
from actors.host.port import PAGE_TOO_LARGE, HostUnavailable
from eventstore.log.event_log import PublicEventsFilter, SavedEventsFilter, SavedEventsPage
from http_edge.dispatch import gateway, outbox
from http_edge.dispatch.gateway import Gateway
from http_edge.dispatch.routes import Routes
from http_edge.settings.settings import Limits
from tests.unit.dispatch.recording_host import RecordingHost

LIMITS = Limits(
    outbox_items_max=8,
    batch_items_max=4,
    batch_bytes_max=1_024,
    reads_in_flight_max=2,
    move_wait_s_max=1,
)
ADDRESS: ContextVar[str] = ContextVar("address", default="")
"""The address that pays for the current request."""


class Setting:
    """A gateway over recording hosts."""

    def __init__(
        self, hosts: int = 1, routes: Routes | None = None, *, limits: Limits = LIMITS
    ) -> None:
        self.hosts = {host_name(index): RecordingHost() for index in range(hosts)}
        self.pushed: list[Push] = []
        self.restarted: list[str] = []
        self.gateway = Gateway(
            routes or Routes.fixed(Placement(shards=16, hosts=hosts)),
            self.hosts.__getitem__,
            limits,
            on_push=self.pushed.append,
            on_new_incarnation=self.restarted.append,
            address_of=ADDRESS.get,
        )

    @property
    def host(self) -> RecordingHost:
        return self.hosts["host-0"]

    def submission(self, did: str, *, sender: str | None = None) -> Submission:
        placement = self.gateway.routes.placement
        claim = None
        if sender is not None:
            claim = NonceClaim(placement.partition_of(sender), b"k" * 16, 0)
        return Submission(
            placement.partition_of(did), did, b"k" * 16, claim, command=CheckRegistered()
        )


def sender_and_target(setting: Setting) -> tuple[str, str]:
    """An identity of the first host, and one of the second."""
    placement = setting.gateway.routes.placement
    dids = [f"did:a:{n}" for n in range(50)]
    owners = [placement.host_of(placement.partition_of(did)) for did in dids]
    return dids[owners.index("host-0")], dids[owners.index("host-1")]


async def test_what_waits_while_a_call_is_in_flight_leaves_together() -> None:
    setting = Setting()
    setting.host.hold()
    first = asyncio.create_task(setting.gateway.submit(setting.submission("did:a:0")))
    await setting.host.called.wait()
    rest = [
        asyncio.create_task(setting.gateway.submit(setting.submission(f"did:a:{n}")))
        for n in range(1, 4)
    ]
    await asyncio.sleep(0)
    setting.host.answer_all()
    assert await asyncio.gather(first, *rest) == [Done()] * 4
    assert [len(batch) for batch in setting.host.batches] == [1, 3]


async def test_an_idle_edge_sends_at_once() -> None:
    setting = Setting()
    assert await setting.gateway.submit(setting.submission("did:a:0")) == Done()
    assert await setting.gateway.submit(setting.submission("did:a:1")) == Done()
    assert [len(batch) for batch in setting.host.batches] == [1, 1]


async def test_what_can_linger_leaves_with_the_next_command_or_soon_alone() -> None:
    setting = Setting()

    def lingering(did: str) -> asyncio.Task[Reply]:
        submission = setting.submission(did)
        return asyncio.create_task(setting.gateway.submit(submission, can_linger=True))

    waits = lingering("did:a:0")
    await asyncio.sleep(0)
    assert setting.host.batches == []
    assert await setting.gateway.submit(setting.submission("did:a:1")) == Done()
    assert await waits == Done()
    assert [len(batch) for batch in setting.host.batches] == [2]
    assert await lingering("did:a:2") == Done()
    assert [len(batch) for batch in setting.host.batches] == [2, 1]


async def test_nothing_lingers_in_a_gateway_that_is_drained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox, "_LINGER_S", 60)
    setting = Setting()
    waits = asyncio.create_task(
        setting.gateway.submit(setting.submission("did:a:0"), can_linger=True)
    )
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await setting.gateway.drained()
    assert waits.done()
    assert await waits == Done()


async def test_a_batch_is_bounded_by_items_and_by_bytes() -> None:
    setting = Setting()
    many = [setting.gateway.submit(setting.submission(f"did:a:{n}")) for n in range(6)]
    await asyncio.gather(*many)
    assert [len(batch) for batch in setting.host.batches] == [4, 2]
    heavy = [setting.gateway.submit(setting.submission(f"did:a:{n}"), 600) for n in range(2)]
    await asyncio.gather(*heavy)
    assert [len(batch) for batch in setting.host.batches[2:]] == [1, 1]


async def test_a_failed_call_leaves_the_outcome_unknown_for_all_it_carried() -> None:
    setting = Setting()
    setting.host.fails = HostUnavailable
    replies = await asyncio.gather(
        *[setting.gateway.submit(setting.submission(f"did:a:{n}")) for n in range(3)]
    )
    assert replies == [Refused(Refusal.TEMPORARILY_UNAVAILABLE)] * 3
    setting.host.fails = None
    assert await setting.gateway.submit(setting.submission("did:a:0")) == Done()


async def test_a_full_outbox_refuses_instead_of_growing() -> None:
    setting = Setting()
    setting.host.hold()
    running = [
        asyncio.create_task(setting.gateway.submit(setting.submission(f"did:a:{n}")))
        for n in range(30)
    ]
    await setting.host.called.wait()
    setting.host.answer_all()
    replies = await asyncio.gather(*running)
    assert Refused(Refusal.TEMPORARILY_UNAVAILABLE) in replies
    assert sum(len(batch) for batch in setting.host.batches) == replies.count(Done())


async def test_across_hosts_the_nonce_is_claimed_before_the_effect() -> None:
    setting = Setting(hosts=2)
    sender, target = sender_and_target(setting)
    assert await setting.gateway.submit(setting.submission(target, sender=sender)) == Done()
    ((claiming,),) = setting.hosts["host-0"].batches
    ((acting,),) = setting.hosts["host-1"].batches
    assert claiming.claim is not None
    assert claiming.command is None
    assert acting.claim is None
    assert acting.command == CheckRegistered()


async def test_across_hosts_a_refused_nonce_has_no_effect() -> None:
    setting = Setting(hosts=2)
    setting.hosts["host-0"] = RecordingHost(lambda _: Refused(Refusal.DUPLICATE_NONCE))
    sender, target = sender_and_target(setting)
    reply = await setting.gateway.submit(setting.submission(target, sender=sender))
    assert reply == Refused(Refusal.DUPLICATE_NONCE)
    assert setting.hosts["host-1"].batches == []


async def test_across_hosts_a_command_is_charged_once_and_its_nonce_has_neither_size_nor_cost() -> (
    None
):
    setting = Setting(hosts=2)
    claiming, acting = setting.hosts["host-0"], setting.hosts["host-1"]
    claiming.hold()
    sender, target = sender_and_target(setting)
    submission = setting.submission(target, sender=sender)
    large = msgspec.structs.replace(submission, cost=500, charge=7)
    running = [
        asyncio.create_task(setting.gateway.submit(large, LIMITS.batch_bytes_max, can_linger=True))
        for _ in range(2)
    ]
    for _ in range(3):
        await asyncio.sleep(0)
    ((claims, _),) = claiming.held
    assert [(claim.cost, claim.charge) for claim in claims] == [(1, 7)] * 2
    claiming.answer_all()
    assert await asyncio.gather(*running) == [Done()] * 2
    assert [(acts.cost, acts.charge) for (acts,) in acting.batches] == [(500, PAID)] * 2


async def test_pushes_come_with_the_answer_and_a_new_incarnation_is_reported_once() -> None:
    setting = Setting()
    push = Push("did:a:0", ContractsUpdated())
    setting.host.pushes = [push]
    await setting.gateway.submit(setting.submission("did:a:0"))
    assert setting.pushed == [push]
    assert setting.restarted == []
    setting.host.incarnation_name = "second"
    await setting.gateway.submit(setting.submission("did:a:0"))
    await setting.gateway.submit(setting.submission("did:a:0"))
    assert setting.restarted == ["host-0"]
    setting.gateway.forget("host-0")
    setting.host.incarnation_name = "of another host with this name"
    await setting.gateway.submit(setting.submission("did:a:0"))
    assert setting.restarted == ["host-0"]


async def test_drained_waits_for_every_command_taken() -> None:
    setting = Setting()
    setting.host.hold()
    running = asyncio.create_task(setting.gateway.submit(setting.submission("did:a:0")))
    await setting.host.called.wait()
    draining = asyncio.create_task(setting.gateway.drained())
    await asyncio.sleep(0)
    assert not draining.done()
    setting.host.answer_all()
    await asyncio.gather(running, draining)


async def test_beyond_the_bound_idle_outboxes_of_hosts_that_ended_are_closed_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateway, "_OUTBOXES_MAX", 4)
    living, busy, idle, new = (
        dedicated_host_name(f"did:a:{name}", "node") for name in ("living", "busy", "idle", "new")
    )
    setting = Setting(1, Routes(Placement(shards=16, hosts=1)))
    routes = setting.gateway.routes
    names = ("host-0", living, busy, idle, new)
    setting.hosts |= {name: RecordingHost() for name in names}
    dedicated = {identity_of_host(name)[0]: PartitionOwner(name, "own-1") for name in names[1:]}
    routes.update(
        PlacementTable(1, {}, {"host-0": "node"}, {**dedicated}, {living: "node", new: "node"})
    )

    def submitted(host: str) -> asyncio.Task[Reply]:
        did = identity_of_host(host)[0]
        return asyncio.create_task(setting.gateway.submit(Submission(did, did, b"")))

    setting.gateway.port("host-0")
    await submitted(living)
    await submitted(idle)
    setting.hosts[busy].hold()
    running = submitted(busy)
    await setting.hosts[busy].called.wait()
    assert not any(host.is_cut for host in setting.hosts.values())
    await submitted(new)
    # An edge that connects anew to a host that lives loses its sessions there.
    assert [name for name, host in setting.hosts.items() if host.is_cut] == [idle]
    assert len(setting.gateway._outboxes) == 4
    setting.hosts[busy].answer_all()
    assert await running == Done()


async def test_the_first_registration_is_one_line_of_the_log_and_a_refused_one_is_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "http_edge.dispatch.gateway")
    setting = Setting()
    refused = Refused(Refusal.TEMPORARILY_UNAVAILABLE)
    setting.hosts["host-0"] = RecordingHost(
        lambda submission: refused if submission.target_did == "did:a:0" else Done()
    )

    def register(number: int) -> Submission:
        submission = setting.submission(f"did:a:{number}")
        return msgspec.structs.replace(submission, command=GrantMediation())

    await setting.gateway.submit(setting.submission("did:a:1"))
    for number in range(3):
        await setting.gateway.submit(register(number))
    (line,) = caplog.records
    assert line.getMessage() == "first registration since the start"
    assert vars(line)["did"] == "did:a:1"


async def test_commands_that_wait_for_a_call_are_counted() -> None:
    setting = Setting()
    setting.host.hold()
    running = [
        asyncio.create_task(setting.gateway.submit(setting.submission(f"did:a:{n}")))
        for n in range(6)
    ]
    await setting.host.called.wait()
    assert setting.gateway.waiting_items == 6 - LIMITS.batch_items_max
    setting.host.answer_all()
    await asyncio.gather(*running)
    assert setting.gateway.waiting_items == 0


async def test_reads_of_all_together_are_bounded_at_once() -> None:
    setting = Setting()
    library = setting.host
    library.page = msgspec.msgpack.encode(SavedEventsPage([], 0))
    library.hold()
    dids = [f"did:a:{number}" for number in range(LIMITS.reads_in_flight_max + 1)]
    reads = [
        asyncio.create_task(setting.gateway.read(Read(did, Page(0, 1), PublicEventsFilter())))
        for did in dids
    ]
    for _ in range(3):
        await asyncio.sleep(0)
    assert library.reading == dids[:-1]
    library.answer_all()
    assert await asyncio.gather(*reads) == [memoryview(library.page)] * len(dids)
    assert library.reading == dids


def read_of(setting: Setting, did: str) -> asyncio.Task[object]:
    """A read of an identity's public events, which takes no turn of its owner."""
    read = Read(did, Page(0, 1), PublicEventsFilter())
    return asyncio.create_task(setting.gateway.read(read))


async def test_reads_at_several_hosts_are_bounded_together() -> None:
    setting = Setting(hosts=2)
    first, second = setting.hosts.values()
    for host in (first, second):
        host.page = msgspec.msgpack.encode(SavedEventsPage([], 0))
        host.hold()
    dids = sender_and_target(setting)
    reads = [read_of(setting, did) for did in (*dids, *dids)]
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(first.reading + second.reading) == LIMITS.reads_in_flight_max
    first.answer_all()
    second.answer_all()
    assert await asyncio.gather(*reads) == [memoryview(first.page)] * 4


async def test_what_a_reader_owes_when_its_turn_comes_is_not_read() -> None:
    setting = Setting()
    library = setting.host
    library.page = msgspec.msgpack.encode(SavedEventsPage([], 0))
    library.hold()
    owes = False
    reads = [
        asyncio.create_task(
            setting.gateway.read(
                Read(f"did:a:{number}", Page(0, 1), SavedEventsFilter()), is_owing=lambda: owes
            )
        )
        for number in range(LIMITS.reads_in_flight_max + 1)
    ]
    for _ in range(3):
        await asyncio.sleep(0)
    owes = True
    library.answer_all()
    read, *refused = await asyncio.gather(*reads)
    assert read == memoryview(library.page)
    assert refused == [Refused(Refusal.RATE_LIMITED)] * LIMITS.reads_in_flight_max
    assert library.reading == ["did:a:0"]


async def test_a_page_that_a_host_does_not_give_is_refused() -> None:
    setting = Setting()
    read = Read("did:a:0", Page(0, 1), SavedEventsFilter())
    setting.host.page = PAGE_TOO_LARGE
    assert await setting.gateway.read(read) == Refused(Refusal.INVALID_COMMAND)
    setting.host.page = b""
    assert await setting.gateway.read(read) == Refused(Refusal.TEMPORARILY_UNAVAILABLE)
    setting.host.fails = HostUnavailable
    assert await setting.gateway.read(read) == Refused(Refusal.TEMPORARILY_UNAVAILABLE)


async def test_of_reads_of_one_history_a_bounded_number_waits_and_others_are_served() -> None:
    setting = Setting()
    library = setting.host
    library.page = msgspec.msgpack.encode(SavedEventsPage([], 0))
    library.hold()

    def read(did: str) -> asyncio.Task[object]:
        return asyncio.create_task(setting.gateway.read(Read(did, Page(0, 1), SavedEventsFilter())))

    reads = [read("did:a:1") for _ in range(gateway.READS_WAITING_MAX)]
    beyond, other = read("did:a:1"), read("did:a:2")
    assert await beyond == Refused(Refusal.RATE_LIMITED)
    library.answer_all()
    assert await asyncio.gather(*reads, other) == [library.page] * (len(reads) + 1)
    assert await read("did:a:1") == library.page


async def test_pages_of_one_history_are_read_one_after_the_other() -> None:
    setting = Setting()
    library = setting.host
    library.page = msgspec.msgpack.encode(SavedEventsPage([], 0))
    library.hold()

    def read(did: str, where: SavedEventsFilter | PublicEventsFilter) -> asyncio.Task[object]:
        return asyncio.create_task(setting.gateway.read(Read(did, Page(0, 1), where)))

    reads = [read(did, SavedEventsFilter()) for did in ("did:a:1", "did:a:1", "did:a:2")]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert library.reading == ["did:a:1"]
    library.answer_all()
    assert await asyncio.gather(*reads) == [library.page] * 3
    assert library.reading == ["did:a:1", "did:a:2", "did:a:1"]
    library.hold()
    library.reading.clear()
    public = [read("did:a:1", PublicEventsFilter()) for _ in range(2)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert library.reading == ["did:a:1", "did:a:1"]
    library.answer_all()
    await asyncio.gather(*public)
