"""A file of SQLite with changed bytes is named as damaged, and its rows can be restored."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from eventstore.log.codec import decode
from eventstore.log.events import TOPIC_BY_TYPE, EventSaved, EventTagsUpdated
from eventstore.stores.open_log import open_log
from http_edge.server.exits import Exit
from tests.export.test_restore import Original, restore
from tests.unit.cli.conftest import Run, run

__all__ = ["run"]


@pytest.fixture
def original(tmp_path: Path) -> Original:
    return Original(tmp_path, acts=60)


def test_an_index_that_lacks_a_row_is_found_and_a_restore_from_the_rows_mends_it(
    run: Run, original: Original, tmp_path: Path
) -> None:
    damage(original, "sqlite_autoindex_stored_events_1", _other_digit)
    ran = run("log", "verify", "--log", original.dsn)
    assert (ran.code, "Every row is as it was sealed" in ran.out) == (Exit.FINDING, True)
    assert "missing from index sqlite_autoindex_stored_events_1. Its rows are whole" in ran.out

    new = tmp_path / "new"
    assert restore(run, original.data_dir / "log.db", str(new), original.keys).code == Exit.OK
    assert run("log", "verify", "--log", f"sqlite:{new / 'log.db'}").code == Exit.OK


def test_an_index_that_lacks_a_row_is_found_if_a_table_cannot_be_made_without_that_row(
    run: Run, original: Original
) -> None:
    with closing(open_log(original.dsn)) as log:
        rows = list(log.rows_after(0))
    kinds = {TOPIC_BY_TYPE[kind]: kind for kind in (EventSaved, EventTagsUpdated)}
    events = [(row, decode(row.topic, row.state)) for row in rows if row.topic in kinds]
    tagged = {event.event_id for _, event in events if isinstance(event, EventTagsUpdated)}
    row = next(r for r, e in events if isinstance(e, EventSaved) and e.event_id in tagged)

    path = original.data_dir / "log.db"
    content = bytearray(path.read_bytes())
    content[content.rindex(row.stream.hex().encode() + bytes([row.version])) + 31] ^= 1
    path.write_bytes(content)

    ran = run("log", "verify", "--log", original.dsn)
    assert ran.code == Exit.FINDING
    assert f"row {row.position} missing from index sqlite_autoindex_stored_events_1" in ran.out


@pytest.mark.parametrize("page_of", ["sqlite_schema", "stored_events"])
def test_a_page_that_cannot_be_read_is_damage_and_the_export_the_remedy(
    run: Run, original: Original, tmp_path: Path, page_of: str
) -> None:
    damage(original, page_of, lambda page: b"\xff" * len(page))
    ran = run("log", "verify", "--log", original.dsn)
    assert (ran.code, ran.out) == (Exit.UNSAFE, "")
    assert "the event log is damaged" in ran.err
    assert "from its export or a backup" in ran.err
    log, target = original.data_dir / "log.db", str(tmp_path / "new")
    ran = restore(run, log, target, original.keys)
    assert (ran.code, "Restore from the export" in ran.err) == (Exit.UNSAFE, True)
    assert restore(run, original.place, target, original.keys).code == Exit.OK


def damage(original: Original, name: str, change: Callable[[bytes], bytes]) -> None:
    """Change the root page of a table or an index in the file of a log that is closed."""
    path = original.data_dir / "log.db"
    with closing(sqlite3.connect(path)) as connection:
        found = "SELECT rootpage FROM sqlite_schema WHERE name = ?"
        (number,) = connection.execute(found, (name,)).fetchone() or (1,)
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    content = bytearray(path.read_bytes())
    page = slice((number - 1) * size, number * size)
    content[page] = change(bytes(content[page]))
    path.write_bytes(content)


def _other_digit(page: bytes) -> bytes:
    """The page with another digit in a stream: a page ends with a cell, and that with a stream."""
    at = len(page) - 20
    return page[:at] + (b"0" if page[at : at + 1] != b"0" else b"1") + page[at + 1 :]
