"""Below the floor of free disk only what frees some is taken; what is refused changes nothing."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import get_args

import pytest

from actors.core.commands import (
    AcknowledgeMessages,
    ClaimedKey,
    Command,
    Page,
    QueryMessages,
    QueueMessage,
    SaveContract,
    UpdateKeylist,
)
from actors.core.decide import RULES, adds
from actors.core.limits import HostLimits
from actors.core.refusals import Refusal
from actors.core.replies import Done, MessageAccepted, MessagesPage, Refused, Reply
from actors.host.disk_floor import DiskFloor, DiskSpace, disk_of, unknown_disk
from actors.host.host import Host
from eventstore.log.event_log import EventLog
from tests.unit.actors.given import HandClock, contract, registration, run, submission

ME, FRIEND = "did:x:me", "did:x:friend"
FLOOR, TOTAL = 1_000, 1_000_000
SHORT = Refused(Refusal.INSUFFICIENT_STORAGE)
TAKEN = {
    "CheckRegistered",
    "QueryContractRequests",
    "AcknowledgeContractRequests",
    "QueryContracts",
    "QueryMessages",
    "AcknowledgeMessages",
    "QuerySavedEvents",
    "DeletePublicEvents",
    "QueryConnection",
    "FindAccount",
    "UnnameSpeaker",
    "EndAccount",
    "EraseIdentity",
    "CheckKeys",
    "QueryKeylist",
    "ReleaseKey",
    "FindKeyOwner",
    "DeliverMessages",
    "RemoveMessages",
    "QueryQueue",
    "QueryPushDevice",
    "StartLive",
    "EndLive",
    "ReleaseLeases",
    "PurgeQueue",
    "ExpireRecords",
    "SeeAgent",
    "OpenSession",
    "Listen",
    "CloseSession",
    "CountRefusals",
    "DedicateIdentity",
    "ReleaseIdentity",
}


class Disk:
    """A disk whose free bytes a test says."""

    def __init__(self) -> None:
        self.free_bytes = TOTAL
        self.looks = 0

    def __call__(self) -> DiskSpace:
        self.looks += 1
        return DiskSpace(self.free_bytes, TOTAL)


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def owner(log: EventLog, disk: Disk, clock: HandClock) -> Host:
    """A host of me and a friend, who may write to me."""
    ids = itertools.count(1)
    limits = HostLimits(free_bytes_min=FLOOR)
    made = Host(
        "host-0",
        log,
        limits,
        secret=b"secret",
        clock=clock,
        new_id=lambda: f"id-{next(ids)}",
        measure_disk=disk,
    )
    made.ownership.assign(["shard-0", "shard-1"])
    first: list[Command] = [
        registration(ME),
        SaveContract(contract(FRIEND, ME)),
        QueueMessage(FRIEND, b"first"),
    ]
    run(made, *[submission(ME, command) for command in first])
    return made


def is_short(floor: DiskFloor, disk: Disk, free_bytes: int, now_ms: int) -> bool:
    disk.free_bytes = free_bytes
    return floor.look(now_ms)


def test_the_floor_is_left_with_room_to_spare_and_looked_at_once_a_second(disk: Disk) -> None:
    floor = DiskFloor(disk, FLOOR)
    assert not is_short(floor, disk, FLOOR, 0)
    assert not is_short(floor, disk, FLOOR - 1, 999)
    assert disk.looks == 1
    assert is_short(floor, disk, FLOOR - 1, 1_000)
    assert is_short(floor, disk, FLOOR, 2_000)
    assert is_short(floor, disk, FLOOR + FLOOR // 8 - 1, 3_000)
    assert not is_short(floor, disk, FLOOR + FLOOR // 8, 4_000)
    assert not is_short(floor, disk, FLOOR, 5_000)


def test_a_small_disk_has_a_lower_floor_and_an_unknown_one_none(disk: Disk) -> None:
    small = DiskFloor(disk, 10 * TOTAL)
    assert not is_short(small, disk, TOTAL // 10, 0)
    assert is_short(small, disk, TOTAL // 10 - 1, 1_000)
    assert not DiskFloor(unknown_disk, FLOOR).look(0)
    off = DiskFloor(disk, 0)
    assert not is_short(off, disk, 0, 0)


def test_the_disk_of_a_folder_is_the_one_that_it_is_on(tmp_path: Path) -> None:
    found, known = disk_of(tmp_path)(), shutil.disk_usage(tmp_path)
    assert found is not None
    assert found.total_bytes == known.total
    assert disk_of(tmp_path / "missing")() is None


def test_every_command_adds_or_is_taken_on_a_short_disk() -> None:
    assert {kind.__name__ for kind in get_args(Command)} - TAKEN == {
        kind.__name__ for kind, rule in RULES.items() if rule.adds
    }
    assert adds(UpdateKeylist([ClaimedKey("key", 1)], []))
    assert not adds(UpdateKeylist([], ["key"]))


def answer(by: Host, command: Command, nonce: str | None = None) -> Reply:
    (reply,) = run(by, submission(ME, command, nonce=nonce))
    return reply


def test_what_is_refused_for_the_disk_changes_nothing_and_may_be_sent_again(
    owner: Host, log: EventLog, disk: Disk, clock: HandClock
) -> None:
    disk.free_bytes, clock.now_ms = FLOOR - 1, clock.now_ms + 1_000
    position = log.position()
    assert answer(owner, QueueMessage(FRIEND, b"second"), "one") == SHORT
    assert answer(owner, registration(ME), "two") == SHORT
    assert log.position() == position
    disk.free_bytes, clock.now_ms = TOTAL, clock.now_ms + 1_000
    assert isinstance(answer(owner, QueueMessage(FRIEND, b"second"), "one"), MessageAccepted)


def test_a_short_disk_takes_what_frees_some(owner: Host, disk: Disk, clock: HandClock) -> None:
    disk.free_bytes, clock.now_ms = 0, clock.now_ms + 1_000
    page = answer(owner, QueryMessages(Page(0, 10)))
    assert isinstance(page, MessagesPage)
    (waiting,) = page.messages
    assert answer(owner, AcknowledgeMessages([waiting.message_id])) == Done()
    assert owner.snapshot_stats().short_of_disk


def test_junk_adds_nothing_to_a_short_disk(
    owner: Host, log: EventLog, disk: Disk, clock: HandClock
) -> None:
    disk.free_bytes, clock.now_ms = 0, clock.now_ms + 1_000
    position = log.position()
    junk = submission(ME, None, nonce="junk", refusal=Refusal.INVALID_SIGNATURE)
    assert run(owner, junk) == [Refused(Refusal.INVALID_SIGNATURE)]
    assert log.position() == position
