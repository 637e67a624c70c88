"""Snapshots are believed as they were saved, and else not at all."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from uuid import UUID

import psycopg
import pytest

from eventstore.log.event_log import Snapshot
from eventstore.stores import recorder_log
from eventstore.stores.open_log import open_log
from tests.log.samples import save

ONE, OTHER = UUID(int=1), UUID(int=2)
SAVED = Snapshot(version=3, fold=7, state=b"what was folded")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log with a snapshot of each of two streams."""
    path = tmp_path / "log.db"
    with closing(open_log(f"sqlite://{path}")) as log:
        save(log, (ONE, SAVED), (OTHER, Snapshot(4, 7, b"another")))
    return path


def change(path: Path, statement: str, *values: object) -> None:
    """Change the file as who has it in hand can."""
    with closing(sqlite3.connect(path)) as connection, connection:
        assert connection.execute(statement, values).rowcount > 0


def test_no_bit_of_a_snapshot_can_be_flipped(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        ((state,),) = connection.execute(
            "SELECT state FROM snapshots WHERE stream = ?", (ONE.bytes,)
        )
    with closing(open_log(f"sqlite://{path}")) as log:
        assert log.load_snapshot(ONE) == SAVED
        for bit in range(8 * len(state)):
            flipped = bytearray(state)
            flipped[bit // 8] ^= 1 << bit % 8
            change(
                path, "UPDATE snapshots SET state = ? WHERE stream = ?", bytes(flipped), ONE.bytes
            )
            assert log.load_snapshot(ONE) is None


@pytest.mark.parametrize("changed", ["version = version + 1", "fold = fold + 1", "state = x''"])
def test_no_column_of_a_snapshot_can_be_changed(path: Path, changed: str) -> None:
    change(path, f"UPDATE snapshots SET {changed} WHERE stream = ?", ONE.bytes)
    with closing(open_log(f"sqlite://{path}")) as log:
        assert log.load_snapshot(ONE) is None
        assert [found is None for _, found in log.snapshots()] == [True, False]


def test_no_stream_gets_the_snapshot_of_another(path: Path) -> None:
    others = "(SELECT state FROM snapshots WHERE stream = ?)"
    change(
        path,
        f"UPDATE snapshots SET version = 4, state = {others} WHERE stream = ?",
        OTHER.bytes,
        ONE.bytes,
    )
    with closing(open_log(f"sqlite://{path}")) as log:
        assert log.load_snapshot(ONE) is None


@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_snapshots_are_read_in_pages(
    path: Path, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_log, "_STATES_AT_ONCE", at_once)
    with closing(open_log(f"sqlite://{path}")) as log:
        assert list(log.snapshots()) == [(ONE, SAVED), (OTHER, Snapshot(4, 7, b"another"))]


@pytest.mark.postgres
def test_two_that_save_the_same_snapshots_wait_for_each_other_in_one_order(
    postgres_url: str,
) -> None:
    later = Snapshot(5, 7, b"later")
    lock = b"SELECT 1 FROM snapshots WHERE stream = %s FOR UPDATE"
    waiting = b"SELECT 1 FROM pg_locks WHERE NOT granted"
    with closing(open_log(postgres_url)) as log, ThreadPoolExecutor(1) as threads:
        save(log, (ONE, SAVED), (OTHER, SAVED))
        with psycopg.connect(postgres_url) as saving:
            saving.execute(lock, (ONE.bytes,))
            saved = threads.submit(save, log, (OTHER, later), (ONE, later))
            while not saving.execute(waiting).fetchone():
                saving.execute("SELECT pg_sleep(0.01)")
            saving.execute(lock, (OTHER.bytes,))
        saved.result()
        assert log.load_snapshot(ONE) == log.load_snapshot(OTHER) == later
