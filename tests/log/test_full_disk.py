"""What an append, or a check, says in a store without room."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from eventstore.log.batch import batch_bytes
from eventstore.log.codec import encode
from eventstore.log.errors import LogFull, NoRoom, NotComparable
from eventstore.log.event_log import EventLog
from eventstore.log.seal import GENESIS, seal
from eventstore.log.streams import partition_stream
from eventstore.stores.open_log import open_log, open_store
from eventstore.stores.recorder_log import opened, wrong_read_models
from eventstore.stores.sqlite_log import SqliteStore, open_sqlite_store
from tests.log.raw_sql import run_sql

_NO_ROOM = (
    "CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE disk_full; END'"
)
_KIB = 1_024
_REFUSES = "CREATE TRIGGER no_room BEFORE INSERT ON stored_events EXECUTE FUNCTION no_room()"


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting a tmpfs is not permitted")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


def refused_bytes(log: EventLog) -> tuple[int, int]:
    """The size of a large batch, and that for which the store says that it has no room."""
    large = seal(
        [], [], partition="shard-0", epoch=1, at_ms=1, window_ms=1, nonces=bytes(2**17),
        previous=GENESIS,
    )  # fmt: skip
    row = encode(partition_stream("shard-0"), 1, large)
    with pytest.raises(NoRoom) as refused:
        log.append([row], [large])
    return batch_bytes([row], [large]), refused.value.size_bytes


def test_a_full_disk_of_sqlite_is_named_with_what_it_did_not_take(tmp_path: Path) -> None:
    store = open_sqlite_store(tmp_path / "log.db")
    assert isinstance(store, SqliteStore)
    with closing(opened(store)) as log:
        with store.writer.transaction() as cursor:
            ((pages,),) = cursor.execute("PRAGMA page_count").fetchall()
            cursor.execute(f"PRAGMA max_page_count = {pages}")
        size_bytes, said_bytes = refused_bytes(log)
    assert said_bytes == size_bytes > 2**17


@pytest.mark.parametrize("free_kib", [24, 40, 64, 96])
def test_a_disk_without_room_for_a_new_log_is_named(tiny_disk: Path, free_kib: int) -> None:
    """How far the making of its tables comes decides who notices: SQLite, or the library."""
    (tiny_disk / "others").write_bytes(bytes((256 - free_kib) * _KIB))
    with pytest.raises(LogFull):
        open_log(f"sqlite:{tiny_disk}/log.db")


@pytest.mark.postgres
def test_a_full_disk_of_postgresql_is_named_with_what_it_did_not_take(postgres_url: str) -> None:
    with closing(open_log(postgres_url)) as log:
        run_sql(postgres_url, _NO_ROOM)
        run_sql(postgres_url, _REFUSES)
        size_bytes, said_bytes = refused_bytes(log)
    assert said_bytes == size_bytes


@pytest.mark.postgres
def test_a_limit_of_temporary_files_leaves_the_tables_for_queries_unchecked(
    postgres_url: str,
) -> None:
    open_log(postgres_url).close()
    many = "SELECT decode(md5(i::text), 'hex'), i, i, 0, 0 FROM generate_series(1, 9000) i"
    run_sql(postgres_url, f"INSERT INTO postings {many}")
    ((name,),) = run_sql(postgres_url, "SELECT current_database()")
    # So that they are sorted, which needs such a file.
    for setting in ("enable_hashagg", "enable_incremental_sort"):
        run_sql(postgres_url, f"ALTER DATABASE {name} SET {setting} = off")
    for setting in ("work_mem", "temp_file_limit"):
        run_sql(postgres_url, f"ALTER DATABASE {name} SET {setting} = '64kB'")
    with (
        closing(open_store(postgres_url, to_read=True)) as store,
        pytest.raises(NotComparable, match="temp_file_limit"),
    ):
        wrong_read_models(store)
