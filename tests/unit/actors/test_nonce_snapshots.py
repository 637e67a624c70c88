"""A partition comes back with its nonces from a snapshot and the seals since it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from actors.host.owned_partition import OwnedPartition, load
from eventstore.log.event_log import EventLog, Snapshot
from eventstore.stores.open_log import open_log

WINDOW_MS = 300_000
NOW_MS = 1_800_000_000_000
SEALS = 1_500


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    with closing(open_log(f"sqlite:///{tmp_path}/log.db")) as opened:
        yield opened


def claim_nonces(log: EventLog, partition: OwnedPartition, *, window_ms: int = WINDOW_MS) -> int:
    """Seal one nonce after the other, saving each snapshot that is due; how many were due."""
    rows, events, saved = [], [], 0
    for number in range(SEALS):
        expires_ms = NOW_MS + window_ms
        partition.nonces.add(key(number), expires_ms)
        row, event = partition.seal(
            [], [], [(key(number), expires_ms)], at_ms=NOW_MS, window_ms=window_ms
        )
        rows.append(row)
        events.append(event)
        snapshot = partition.snapshot_if_due(window_ms)
        if snapshot is not None:
            log.append(rows, events)
            rows, events = [], []
            log.save_snapshots([(partition.stream, snapshot)])
            saved += 1
    log.append(rows, events)
    return saved


def test_a_restart_knows_the_nonces_of_the_snapshot_and_of_the_seals_since(log: EventLog) -> None:
    partition = OwnedPartition("shard-0", None, 0)
    assert claim_nonces(log, partition) == 1
    again = load(log, "shard-0", window_ms=WINDOW_MS)
    assert len(again.nonces) == SEALS
    assert all(again.nonces.holds(key(number), NOW_MS) for number in range(SEALS))
    assert (again.version, again.digest) == (partition.version, partition.digest)
    assert again.epoch == partition.epoch + 1


def test_only_the_seals_since_the_snapshot_are_read(log: EventLog) -> None:
    claim_nonces(log, OwnedPartition("shard-0", None, 0))
    whole = load(log, "shard-0", window_ms=WINDOW_MS)
    snapshot = log.load_snapshot(whole.stream)
    assert snapshot is not None
    assert 1_000 <= snapshot.version < SEALS


def test_a_wider_window_reads_all_seals_and_keeps_every_nonce_for_it(log: EventLog) -> None:
    claim_nonces(log, OwnedPartition("shard-0", None, 0))
    wider = load(log, "shard-0", window_ms=2 * WINDOW_MS)
    late_ms = NOW_MS + 2 * WINDOW_MS
    assert all(wider.nonces.holds(key(number), late_ms) for number in range(SEALS))


def test_a_snapshot_says_until_when_nonces_were_forgotten(log: EventLog) -> None:
    """A clock that was ahead swept; one that is right, and has only the snapshot, knows it."""
    partition = OwnedPartition("shard-0", None, 0)
    partition.nonces.add(b"k" * 16, NOW_MS + WINDOW_MS)
    partition.nonces.sweep(NOW_MS + 2 * WINDOW_MS, WINDOW_MS)
    assert claim_nonces(log, partition) == 1
    again = load(log, "shard-0", window_ms=WINDOW_MS)
    assert NOW_MS < again.nonces.forgotten_before_ms <= NOW_MS + WINDOW_MS
    assert again.nonces.forgotten_before_ms == partition.nonces.forgotten_before_ms


def test_without_the_snapshot_the_seals_tell_the_same(log: EventLog) -> None:
    partition = OwnedPartition("shard-0", None, 0)
    claim_nonces(log, partition)
    snapshot = log.load_snapshot(partition.stream)
    assert snapshot is not None
    unreadable = type(snapshot)(snapshot.version, snapshot.fold, b"not msgpack")
    log.save_snapshots([(partition.stream, unreadable)])
    again = load(log, "shard-0", window_ms=WINDOW_MS)
    assert all(again.nonces.holds(key(number), NOW_MS) for number in range(SEALS))


def test_a_snapshot_of_another_form_is_not_used(log: EventLog) -> None:
    partition = OwnedPartition("shard-0", None, 0)
    claim_nonces(log, partition)
    saved = log.load_snapshot(partition.stream)
    assert saved is not None
    without = msgspec.msgpack.encode({**msgspec.msgpack.decode(saved.state), "packed": {}})
    other = Snapshot(saved.version, saved.fold + 1, without)
    log.save_snapshots([(partition.stream, other)])
    again = load(log, "shard-0", window_ms=WINDOW_MS)
    assert len(again.nonces) == SEALS
