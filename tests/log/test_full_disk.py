"""What an append to a store without room says."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from eventstore.log.batch import batch_bytes
from eventstore.log.codec import encode
from eventstore.log.errors import NoRoom
from eventstore.log.event_log import EventLog
from eventstore.log.seal import GENESIS, seal
from eventstore.log.streams import partition_stream
from eventstore.stores.open_log import open_log
from eventstore.stores.recorder_log import opened
from eventstore.stores.sqlite_log import SqliteStore, open_sqlite_store
from tests.log.raw_sql import run_sql

_NO_ROOM = (
    "CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE disk_full; END'"
)
_REFUSES = "CREATE TRIGGER no_room BEFORE INSERT ON stored_events EXECUTE FUNCTION no_room()"


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


@pytest.mark.postgres
def test_a_full_disk_of_postgresql_is_named_with_what_it_did_not_take(postgres_url: str) -> None:
    with closing(open_log(postgres_url)) as log:
        run_sql(postgres_url, _NO_ROOM)
        run_sql(postgres_url, _REFUSES)
        size_bytes, said_bytes = refused_bytes(log)
    assert said_bytes == size_bytes
