"""Claiming a partition: its epoch, its chain, and the nonces that are still in force."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from eventsourcing.persistence import StoredEvent
from typing_extensions import override

from actors.host import owned_partition as partitions
from actors.host.owned_partition import OwnedPartition
from eventstore.log.codec import decode, encode
from eventstore.log.errors import AppendConflict, CorruptRow
from eventstore.log.event_log import EventLog, Snapshot
from eventstore.log.events import IdentityRegistered
from eventstore.log.seal import GENESIS
from eventstore.log.streams import partition_stream
from tests.log.faulty_log import FaultyLog
from tests.log.raw_sql import run_sql
from tests.log.samples import save
from tests.unit.actors.given import NOW_MS

WINDOW_MS = 300_000
DAY_MS = 86_400_000
SHARD = "shard-0"
KEY = b"k" * 16


def load(log: EventLog, *, now_ms: int = NOW_MS, window_ms: int = WINDOW_MS) -> OwnedPartition:
    return partitions.load(log, SHARD, now_ms=now_ms, window_ms=window_ms)


def write(
    log: EventLog,
    by: OwnedPartition,
    *nonces: tuple[bytes, int],
    at_ms: int = NOW_MS,
    window_ms: int = WINDOW_MS,
) -> None:
    row, sealed = by.seal([], [], nonces, at_ms=at_ms, window_ms=window_ms)
    log.append([row], [sealed])


def test_the_first_owner_starts_the_chain(log: EventLog) -> None:
    first = load(log)
    assert (first.epoch, first.version, first.digest) == (1, 0, GENESIS)
    assert partitions.newest_seal(log, SHARD) is None


def test_the_next_owner_continues_it_under_the_next_epoch(log: EventLog) -> None:
    first = load(log)
    for _ in range(3):
        write(log, first)
    second = load(log)
    assert (second.epoch, second.version, second.digest) == (2, 3, first.digest)
    write(log, second)
    newest = partitions.newest_seal(log, SHARD)
    assert newest is not None
    assert (newest.epoch, newest.previous, newest.digest) == (2, first.digest, second.digest)


def test_of_two_owners_one_can_append(log: EventLog) -> None:
    one, two = load(log), load(log)
    write(log, two, (KEY, NOW_MS))
    with pytest.raises(AppendConflict):
        write(log, one)
    assert [partitions.is_sealed(log, each.place) for each in (one, two)] == [False, True]


def test_seals_are_no_older_than_those_before_them_whatever_the_clock_says(log: EventLog) -> None:
    owner = load(log)
    for at_ms in (NOW_MS, NOW_MS - DAY_MS):
        write(log, owner, at_ms=at_ms)
    write(log, load(log), at_ms=0)
    newest = partitions.newest_seal(log, SHARD)
    assert newest is not None
    assert newest.at_ms == NOW_MS


@pytest.mark.parametrize("now_ms", [0, NOW_MS - DAY_MS, NOW_MS, NOW_MS + DAY_MS])
def test_nonces_in_force_are_read_whatever_the_time_is(log: EventLog, now_ms: int) -> None:
    owner = load(log)
    write(log, owner, (KEY, NOW_MS + WINDOW_MS))
    again = load(log, now_ms=now_ms)
    assert again.nonces.holds(KEY, NOW_MS + WINDOW_MS)
    assert again.nonces.forgotten_before_ms == 0


def test_seals_of_a_clock_that_was_ahead_make_no_earlier_nonce_too_old(log: EventLog) -> None:
    owner = load(log)
    long_ago_ms = NOW_MS - 3 * WINDOW_MS
    write(log, owner, at_ms=long_ago_ms)
    write(log, owner, (KEY, NOW_MS + WINDOW_MS))
    write(log, owner, at_ms=NOW_MS + DAY_MS)
    ahead = load(log, now_ms=NOW_MS + DAY_MS)
    assert ahead.nonces.forgotten_before_ms == NOW_MS + WINDOW_MS + 1
    again = load(log)
    assert again.nonces.holds(KEY, NOW_MS)
    assert again.nonces.forgotten_before_ms == long_ago_ms + WINDOW_MS + 1


def test_a_clock_that_is_decades_behind_has_only_so_many_seals_read(
    log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "_READ_BACK_MAX", 9)
    owner = load(log)
    for back in range(20, -1, -1):
        key = back.to_bytes(16, "big")
        write(log, owner, (key, NOW_MS), at_ms=NOW_MS - back * WINDOW_MS)
    again = load(log, now_ms=0)
    assert len(again.nonces) == 3 + 9 // 2
    # Once the clock is right, no command with the right timestamp is refused for that.
    assert NOW_MS - 7 * WINDOW_MS < again.nonces.forgotten_before_ms < NOW_MS - 5 * WINDOW_MS


def test_seals_that_left_hold_no_nonce_that_a_clock_set_back_lets_in_under_a_narrower_window(
    log: EventLog, tmp_path: Path
) -> None:
    wide = load(log, window_ms=2 * WINDOW_MS)
    latest_ms = NOW_MS + 2 * WINDOW_MS
    for nonces in [[], [(KEY, latest_ms + 2 * WINDOW_MS)], []]:
        write(log, wide, *nonces, window_ms=2 * WINDOW_MS)
    write(log, load(log), at_ms=NOW_MS + DAY_MS)
    run_sql(f"sqlite:{tmp_path}/log.db", "DELETE FROM stored_events WHERE originator_version = 2")
    assert load(log, now_ms=NOW_MS + WINDOW_MS).nonces.forgotten_before_ms > latest_ms


def test_a_wider_window_keeps_the_nonces_of_a_narrow_one_longer(log: EventLog) -> None:
    owner = load(log, window_ms=10_000)
    write(log, owner, (KEY, NOW_MS + 10_000), window_ms=10_000)
    later_ms = NOW_MS + WINDOW_MS
    assert load(log).nonces.holds(KEY, later_ms)
    assert not load(log, window_ms=10_000).nonces.holds(KEY, later_ms)


def test_seals_beyond_the_window_are_not_read_and_what_they_hold_is_too_old(log: EventLog) -> None:
    owner = load(log)
    long_ago_ms = NOW_MS - 3 * WINDOW_MS
    write(log, owner, (b"o" * 16, NOW_MS), at_ms=long_ago_ms)
    write(log, owner, (KEY, NOW_MS + 1))
    assert len(load(log).nonces) == 1
    assert load(log).nonces.forgotten_before_ms == long_ago_ms + WINDOW_MS + 1


@pytest.mark.parametrize(("age_ms", "is_read"), [(2 * WINDOW_MS, True), (2 * WINDOW_MS + 1, False)])
def test_a_seal_is_read_while_a_nonce_of_it_may_be_in_force(
    log: EventLog, age_ms: int, is_read: bool
) -> None:
    owner = load(log)
    write(log, owner, (KEY, NOW_MS + WINDOW_MS), at_ms=NOW_MS - age_ms)
    write(log, owner)
    for window_ms in (WINDOW_MS, WINDOW_MS // 10):
        assert load(log, window_ms=window_ms).nonces.holds(KEY, NOW_MS + WINDOW_MS) == is_read


def _save_snapshot(log: EventLog, owner: OwnedPartition) -> list[bytes]:
    """Store so many seals that the nonces are worth a snapshot, and save it; the new nonces."""
    keys = [number.to_bytes(16, "big") for number in range(1_001)]
    rows, seals = zip(
        *[
            owner.seal([], [], [(key, NOW_MS + WINDOW_MS)], at_ms=NOW_MS, window_ms=WINDOW_MS)
            for key in keys
        ],
        strict=True,
    )
    log.append(rows, seals)
    for key in keys:
        owner.nonces.add(key, NOW_MS + WINDOW_MS)
    snapshot = owner.snapshot_if_due(WINDOW_MS)
    assert snapshot is not None
    assert owner.snapshot_if_due(WINDOW_MS) is None
    log.save_snapshots([snapshot])
    return keys


@pytest.mark.parametrize("snapshot", ["kept", "damaged", "of another type", "of another fold"])
def test_a_snapshot_of_nonces_changes_nothing_but_the_time_it_takes(
    log: EventLog, snapshot: str
) -> None:
    owner = load(log)
    keys = _save_snapshot(log, owner)
    write(log, owner, (KEY, NOW_MS + WINDOW_MS))
    saved = log.load_snapshot(owner.stream)
    assert saved is not None
    save(log, (owner.stream, _in_place_of(saved)[snapshot]))
    again = load(log)
    assert len(again.nonces) == 1_002
    assert all(again.nonces.holds(key, NOW_MS) for key in [*keys, KEY])
    assert (again.epoch, again.version, again.digest) == (2, owner.version, owner.digest)


def _in_place_of(saved: Snapshot) -> dict[str, Snapshot]:
    """What a log may have in place of a snapshot, or that itself."""
    without_nonces = msgspec.msgpack.decode(saved.state) | {"packed": {}}
    return {
        "kept": saved,
        "damaged": Snapshot(saved.version, saved.fold, b"\xc1"),
        "of another type": Snapshot(saved.version, saved.fold, b"\x80"),
        "of another fold": Snapshot(
            saved.version, saved.fold + 1, msgspec.msgpack.encode(without_nonces)
        ),
    }


def test_seals_before_a_snapshot_of_nonces_are_not_read(log: EventLog) -> None:
    class Counting(FaultyLog):
        reads = 0

        @override
        def read_stream(self, stream: UUID, **which: Any) -> Any:
            self.reads += 1
            return super().read_stream(stream, **which)

    _save_snapshot(log, load(log))
    counting = Counting(log)
    load(counting)
    assert counting.reads == 1


def test_a_snapshot_of_nonces_is_not_used_for_a_wider_window(log: EventLog) -> None:
    owner = load(log)
    keys = _save_snapshot(log, owner)
    later_ms = NOW_MS + 2 * WINDOW_MS - 1
    wide = load(log, window_ms=2 * WINDOW_MS)
    assert all(wide.nonces.holds(key, later_ms) for key in keys)
    assert wide.version == owner.version


def test_a_snapshot_of_a_clock_that_was_ahead_is_used_where_too_much_would_be_read(
    log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = load(log)
    owner.nonces.add(KEY, NOW_MS + WINDOW_MS)
    owner.nonces.sweep(NOW_MS + 2 * WINDOW_MS, WINDOW_MS)
    keys = _save_snapshot(log, owner)
    monkeypatch.setattr(partitions, "_READ_BACK_MAX", 100)
    again = load(log)
    assert again.nonces.forgotten_before_ms == owner.nonces.forgotten_before_ms
    assert all(again.nonces.holds(key, NOW_MS) for key in keys)


@pytest.mark.parametrize(("passed_ms", "is_used"), [(WINDOW_MS, True), (0, False)])
def test_a_snapshot_says_until_when_nonces_were_forgotten(
    log: EventLog, passed_ms: int, is_used: bool
) -> None:
    """A clock that was ahead swept; one that is right knows it, or reads what was forgotten."""
    owner = load(log)
    owner.nonces.add(KEY, NOW_MS + WINDOW_MS)
    owner.nonces.sweep(NOW_MS + 2 * WINDOW_MS, WINDOW_MS)
    forgotten_ms = owner.nonces.forgotten_before_ms
    assert NOW_MS < forgotten_ms <= NOW_MS + WINDOW_MS
    _save_snapshot(log, owner)
    again = load(log, now_ms=NOW_MS + passed_ms)
    assert again.nonces.forgotten_before_ms == (forgotten_ms if is_used else 0)


def test_a_partition_that_holds_anything_but_seals_is_not_claimed(log: EventLog) -> None:
    event = IdentityRegistered(at_ms=0, command=b"", did="d", expires_at_s=0, contract=b"")
    row: StoredEvent = encode(partition_stream(SHARD), 1, event)
    log.append([row], [decode(row.topic, row.state)])
    with pytest.raises(CorruptRow):
        load(log)
