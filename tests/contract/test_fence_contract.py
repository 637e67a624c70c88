"""The fence of every log: what follows from a seal that is not in the log is not stored."""

from __future__ import annotations

import pytest
from eventsourcing.persistence import StoredEvent

from eventstore.log.codec import encode
from eventstore.log.errors import AppendConflict
from eventstore.log.event_log import DueSnapshot, EventLog, SealPlace, Snapshot
from eventstore.log.events import BatchSealed
from eventstore.log.seal import GENESIS, seal
from eventstore.log.streams import partition_stream
from tests.log.raw_sql import run_sql
from tests.log.samples import AT_MS, OTHER, OWNER, removed

SHARD = partition_stream("shard-0")


def _sealed(version: int, previous: bytes, *, epoch: int = 1) -> tuple[StoredEvent, BatchSealed]:
    sealed = seal(
        [], [], partition="shard-0", epoch=epoch, at_ms=AT_MS, window_ms=1, nonces=b"",
        previous=previous,
    )  # fmt: skip
    return encode(SHARD, version, sealed), sealed


def _write(log: EventLog, version: int, previous: bytes, *, epoch: int = 1) -> bytes:
    """Append a transaction of one row; return the digest of its seal."""
    row, sealed = _sealed(version, previous, epoch=epoch)
    beside = removed([], "message")
    log.append([encode(OWNER, version, beside), row], [beside, sealed])
    return sealed.digest


@pytest.mark.parametrize("versions", [[2], [1, 3], [1, 2, 4]])
def test_a_seal_whose_predecessor_is_missing_is_a_conflict(
    log: EventLog, versions: list[int]
) -> None:
    *stored, last = versions
    digest = GENESIS
    for version in stored:
        digest = _write(log, version, digest)
    before = log.position()
    with pytest.raises(AppendConflict):
        _write(log, last, digest)
    assert log.position() == before


@pytest.mark.parametrize("lost", [2, 3])
def test_a_seal_behind_another_than_its_predecessor_is_a_conflict(
    log: EventLog, log_url: str, lost: int
) -> None:
    """As when a server has lost seals, and the next owner has claimed in their place."""
    digests = [GENESIS]
    for version in (1, 2, 3):
        digests.append(_write(log, version, digests[-1]))
    run_sql(log_url, f"DELETE FROM stored_events WHERE originator_version >= {lost}")
    claimed = digests[lost - 1]
    for version in range(lost, 4):
        claimed = _write(log, version, claimed, epoch=2)
    before = log.position()
    with pytest.raises(AppendConflict):
        _write(log, 4, digests[3])
    assert log.position() == before
    _write(log, 4, claimed, epoch=2)


@pytest.mark.parametrize(
    ("damage", "is_saved"),
    [
        ("none", True),
        ("a later seal follows", True),
        ("the rows of the stream have left", True),
        ("the seal was lost", False),
        ("another seal is in its place", False),
    ],
)
def test_a_snapshot_is_saved_only_where_its_seal_is_in_the_log(
    log: EventLog, log_url: str, damage: str, is_saved: bool
) -> None:
    first = _write(log, 1, GENESIS)
    second = _write(log, 2, first)
    due = DueSnapshot(OWNER, Snapshot(2, 1, b"state"), SealPlace(SHARD, 2, second))
    if damage == "a later seal follows":
        _write(log, 3, second)
    if damage == "the rows of the stream have left":
        run_sql(log_url, "DELETE FROM stored_events WHERE topic = 'messages-removed.2'")
    if damage in ("the seal was lost", "another seal is in its place"):
        run_sql(log_url, "DELETE FROM stored_events WHERE originator_version = 2")
    if damage == "another seal is in its place":
        _write(log, 2, first, epoch=2)
    known = DueSnapshot(OTHER, Snapshot(1, 1, b""), SealPlace(SHARD, 1, first))
    log.save_snapshots([due, known])
    assert log.load_snapshot(OWNER) == (due.snapshot if is_saved else None)
    assert log.load_snapshot(OTHER) == known.snapshot
