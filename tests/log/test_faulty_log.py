"""The faulty log does what its plans say, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from eventstore.log.codec import encode
from eventstore.log.errors import AppendConflict, AppendUnknown
from eventstore.stores.open_log import open_log
from tests.log.faulty_log import ConflictNext, FailNext, FaultyLog, StoredButFailed
from tests.log.samples import OWNER, message


@pytest.fixture
def log(tmp_path: Path) -> Iterator[FaultyLog]:
    with closing(FaultyLog(open_log(f"sqlite:{tmp_path / 'log.db'}"))) as faulty:
        yield faulty


def _append(log: FaultyLog, version: int) -> None:
    log.append([encode(OWNER, version, message())], [message()])


def test_a_failed_append_stores_nothing(log: FaultyLog) -> None:
    log.plan(FailNext(2))
    for _ in range(2):
        with pytest.raises(AppendUnknown):
            _append(log, 1)
    assert log.position() == 0
    _append(log, 1)
    assert log.position() == 1
    assert [stored for _, stored in log.appends] == [False, False, True]


def test_an_append_can_be_stored_and_still_fail(log: FaultyLog) -> None:
    log.plan(StoredButFailed())
    with pytest.raises(AppendUnknown):
        _append(log, 1)
    assert len(log.read_stream(OWNER)) == 1
    with pytest.raises(AppendConflict):
        _append(log, 1)


def test_a_planned_conflict_stores_nothing(log: FaultyLog) -> None:
    log.plan(ConflictNext())
    with pytest.raises(AppendConflict):
        _append(log, 1)
    assert log.position() == 0


def test_plans_are_followed_in_order(log: FaultyLog) -> None:
    log.plan(ConflictNext(), FailNext())
    log.plan(StoredButFailed())
    assert log.faults_left == 3
    for error in (AppendConflict, AppendUnknown, AppendUnknown):
        with pytest.raises(error):
            _append(log, 1)
    assert log.faults_left == 0
    assert log.position() == 1
