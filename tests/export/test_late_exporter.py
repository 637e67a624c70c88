"""An exporter that is paused before a change of the place, and goes on once another took over.

Its lock was lost meanwhile, so a later change is refused; here each goes on alone.
"""

from __future__ import annotations

import fcntl
import itertools
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from eventstore.log.event_log import EventLog
from eventstore.log.events import MessagesRemoved
from eventstore.log.streams import identity_stream
from eventstore.parquet.errors import Damage, ExportRefused, ExportUnavailable
from eventstore.parquet.files import END, TABLE_LOG, ExportPlace
from eventstore.parquet.tree import CHECKPOINT
from eventstore.parquet.versions import commit_path
from eventstore.parquet.write import table
from eventstore.parquet.write.step import Bounds
from tests.export.samples import (
    DAY_MS,
    Growing,
    catalog_of,
    did,
    export_all,
    exported_log,
    exporter,
    findings,
    whole_log,
)
from tests.log.samples import AT_MS, COMMAND

BOUNDS = Bounds(rows_max=5, bytes_max=1_000_000)


class Paused(Exception):
    """The process does not go on."""


def before_change(number: int, act: Callable[[], None]) -> Callable[[], None]:
    """A check of the place that acts at the change of this number, counted from 0."""
    changes = itertools.count()

    def check() -> None:
        if next(changes) == number:
            act()

    return check


@pytest.mark.parametrize("change", [1, 2, 3, 4, 5])
def test_an_exporter_that_goes_on_late_changes_no_file_of_the_one_that_took_over(
    sqlite_log: EventLog, place: ExportPlace, change: int
) -> None:
    """It stands still after the check before a change, and has read a content that is erased then.

    The changes are data, tiles, index, manifest and commit.
    """
    growing = Growing(sqlite_log)
    checks = itertools.count()

    def stand_still() -> None:
        if late_is_exporting and next(checks) == change:
            erased = MessagesRemoved(
                at_ms=AT_MS, command=COMMAND, message_ids=["message-1"], reason="acknowledged",
                versions=[2],
            )  # fmt: skip
            growing.commit({"shard-0": [(identity_stream(did(1)), erased)]})
            export_all(sqlite_log, place, BOUNDS)

    late_is_exporting = False
    with closing(exporter(sqlite_log, place.checked(stand_still), BOUNDS)) as late:
        growing.grow()
        late_is_exporting = True
        with pytest.raises((ExportRefused, ExportUnavailable)):
            late.step()
    taken_over = catalog_of(place)
    export_all(sqlite_log, place, BOUNDS)
    assert catalog_of(place).statements == taken_over.statements
    assert findings(place) == []
    assert exported_log(place) == list(whole_log(sqlite_log))


@pytest.mark.parametrize("change", [2, 3, 4])
def test_an_exporter_that_goes_on_late_removes_no_file_of_the_one_that_took_over(
    sqlite_log: EventLog, place: ExportPlace, change: int
) -> None:
    """It removes what a killed one left, which the one that takes over writes once more.

    The changes after commit and mark are the removals of index, manifest and data.
    """

    has_taken_over = False

    def die() -> None:
        raise Paused

    def take_over() -> None:
        nonlocal has_taken_over
        has_taken_over = True
        export_all(sqlite_log, place, BOUNDS)

    growing = Growing(sqlite_log)
    growing.grow(2)
    export_all(sqlite_log, place, BOUNDS)
    growing.grow(2)
    # It dies before the commit, after data, tiles, index and manifest.
    killed = place.checked(before_change(6, die))
    with closing(exporter(sqlite_log, killed, BOUNDS)) as export, pytest.raises(Paused):
        export.step()
    assert len(catalog_of(place).strays) == 3
    late = place.checked(before_change(change, take_over))
    exporter(sqlite_log, late, BOUNDS).close()
    assert has_taken_over
    assert findings(place) == []
    assert exported_log(place) == list(whole_log(sqlite_log))


def test_a_table_that_an_exporter_makes_late_is_refused(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    Growing(sqlite_log).grow()
    late = place.checked(before_change(1, lambda: export_all(sqlite_log, place, BOUNDS)))
    with pytest.raises(ExportRefused, match="another process exports"):
        exporter(sqlite_log, late, BOUNDS)
    assert findings(place) == []
    assert exported_log(place) == list(whole_log(sqlite_log))


def test_a_torn_commit_that_an_exporter_removes_late_is_not_the_one_that_was_made_since(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    growing = Growing(sqlite_log)
    growing.grow(2)
    export_all(sqlite_log, place, BOUNDS)
    torn = Path(place.full_path(commit_path(catalog_of(place).next_version)))
    torn.touch()

    def take_over() -> None:
        growing.grow(2)
        export_all(sqlite_log, place, BOUNDS)
        assert torn.stat().st_size

    exporter(sqlite_log, place.checked(before_change(0, take_over)), BOUNDS).close()
    assert findings(place) == []
    assert exported_log(place) == list(whole_log(sqlite_log))


def test_a_file_that_replaces_a_useless_one_while_it_is_being_read_stays(
    place: ExportPlace,
) -> None:
    place.write(END, b"torn")

    def replaced(content: bytes) -> bool:
        place.remove(END)
        place.write(END, b"whole")
        return content == b"torn"

    place.remove_if(END, replaced)
    assert place.read(END) == b"whole"


def test_a_torn_commit_is_removed_on_nfs_too(
    sqlite_log: EventLog, place: ExportPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux locks a file on NFS by a range of bytes, exclusively only if it is open for writing."""
    monkeypatch.setattr(fcntl, "flock", fcntl.lockf)
    Growing(sqlite_log).grow(2)
    export_all(sqlite_log, place)
    torn = Path(place.full_path(commit_path(catalog_of(place).next_version)))
    torn.touch()
    exporter(sqlite_log, place).close()
    assert not torn.exists()


def test_drafts_that_a_kill_left_in_the_log_of_the_table_are_removed(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    Growing(sqlite_log).grow(2)
    export_all(sqlite_log, place)
    folder = Path(place.full_path(TABLE_LOG))
    for name in (f"{1:020d}.json#1", f"{1:020d}.checkpoint.parquet#2", "_last_checkpoint#1"):
        (folder / name).touch()
    assert [one.fault for one in findings(place)] == [Damage.STRAY] * 3
    exporter(sqlite_log, place).close()
    assert findings(place) == []


def test_a_torn_commit_that_another_process_is_removing_is_left_to_it(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    """It has read the torn commit, and removes it late: until then none may take its place."""
    Growing(sqlite_log).grow(2)
    export_all(sqlite_log, place)
    torn = Path(place.full_path(commit_path(catalog_of(place).next_version)))
    torn.touch()
    with torn.open() as removing:
        fcntl.flock(removing, fcntl.LOCK_EX)
        with pytest.raises(ExportUnavailable, match=torn.name):
            exporter(sqlite_log, place)
    assert torn.exists()
    export_all(sqlite_log, place)
    assert exported_log(place) == list(whole_log(sqlite_log))


def test_a_checkpoint_that_an_exporter_makes_late_does_not_pass_for_the_newest(
    sqlite_log: EventLog, place: ExportPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "SUMMARY_EVERY", 2)
    growing = Growing(sqlite_log)
    last = Path(place.full_path(f"{TABLE_LOG}/_last_checkpoint"))
    newest = b""

    def take_over() -> None:
        nonlocal newest
        assert not last.exists()
        growing.grow(4)
        export_all(sqlite_log, place, BOUNDS)
        newest = last.read_bytes()

    for _ in range(2):
        growing.grow()
        export_all(sqlite_log, place)
    growing.grow()
    late = place.checked(before_change(8, take_over))
    with closing(exporter(sqlite_log, late, BOUNDS)) as export:
        export.step()
    assert newest
    assert last.read_bytes() == newest
    growing.grow()
    export_all(sqlite_log, place, BOUNDS)
    assert findings(place) == []
    assert exported_log(place) == list(whole_log(sqlite_log))


@pytest.mark.parametrize(("change", "path"), [(7, END), (8, CHECKPOINT)])
def test_an_end_that_an_exporter_writes_late_hides_no_row_and_is_written_again(
    sqlite_log: EventLog, place: ExportPlace, change: int, path: str
) -> None:
    now_ms = AT_MS + DAY_MS
    growing = Growing(sqlite_log)
    successor = None

    def take_over() -> None:
        nonlocal successor
        growing.grow(2)
        successor = exporter(sqlite_log, place, BOUNDS, clock=lambda: now_ms)
        while successor.step():
            pass

    export_all(sqlite_log, place, BOUNDS)
    growing.grow()
    late = place.checked(before_change(change, take_over))
    with closing(exporter(sqlite_log, late, BOUNDS, clock=lambda: now_ms)) as export:
        export.step()
    assert successor is not None
    with closing(successor):
        found = [(one.fault, one.path) for one in findings(place)]
        assert found == [(Damage.ROLLED_BACK, path)]
        assert exported_log(place) == list(whole_log(sqlite_log))
        now_ms += 60_000
        assert successor.step() is None
    assert findings(place) == []
