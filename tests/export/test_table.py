"""The exported log as a table of Delta Lake: what other programs see, and who may commit to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from eventstore.log.content import with_content
from eventstore.log.event_log import EventLog
from eventstore.parquet.catalog import catalog_of
from eventstore.parquet.errors import Damage, ExportDamaged, ExportRefused, ExportUnavailable
from eventstore.parquet.files import END, SUMMARIES, TABLE_LOG, ExportPlace, open_place
from eventstore.parquet.manifest import data_path
from eventstore.parquet.schema import SCHEMA
from eventstore.parquet.versions import SUMMARY_EVERY, commit_path
from eventstore.parquet.write.exporter import ExportTimes
from eventstore.parquet.write.step import Bounds
from tests.export.samples import (
    DAY_MS,
    VERIFY,
    Growing,
    contents,
    export_all,
    exported_log,
    exporter,
    findings,
    whole_log,
)
from tests.export.test_late_exporter import before_change
from tests.log.samples import AT_MS

ALL_AT_ONCE = Bounds()


def table_of(place: ExportPlace, version: int | None = None) -> DeltaTable:
    """As any other program opens it."""
    return DeltaTable(place.table.uri, version=version, storage_options=dict(place.table.options))


def positions_in(place: ExportPlace, version: int | None = None) -> list[int]:
    rows = table_of(place, version).to_pyarrow_table(columns=["position"])
    return sorted(rows["position"].to_pylist())


def positions_of(log: EventLog) -> list[int]:
    return [row.position for row in whole_log(log)]


def test_other_programs_read_exactly_the_rows_of_the_log(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    growing = Growing(sqlite_log)
    growing.grow(8)
    export_all(sqlite_log, place)
    rows = table_of(place).to_pyarrow_table()
    assert set(rows.column_names) == {*SCHEMA.names, "date"}
    states = {r.position: with_content(r.state, r.content) for r in whole_log(sqlite_log)}
    assert dict(zip(rows["position"].to_pylist(), rows["state"].to_pylist(), strict=True)) == states


def test_a_version_stays_what_it_was_while_files_are_put_together(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    growing = Growing(sqlite_log)
    growing.grow(8)
    export_all(sqlite_log, place)
    before, rows = table_of(place), positions_of(sqlite_log)
    with closing(
        exporter(sqlite_log, place, ALL_AT_ONCE, ExportTimes(replaced_kept_s=600.0))
    ) as export:
        assert export.compact(files_min=2) > 0
        version = catalog_of(place, VERIFY).version
        growing.grow(4)
        assert export.step()
    assert sorted(before.to_pyarrow_table()["position"].to_pylist()) == rows
    assert version is not None
    assert positions_in(place, before.version()) == rows
    assert positions_in(place, version.version) == rows
    assert positions_in(place) == positions_of(sqlite_log)
    assert len(table_of(place).file_uris()) == 2


def test_statistics_let_programs_leave_files_out(sqlite_log: EventLog, place: ExportPlace) -> None:
    Growing(sqlite_log).grow(8)
    export_all(sqlite_log, place)
    files = pa.table(table_of(place).get_add_actions(flatten=True)).to_pylist()
    for file, named in zip(sorted(files, key=lambda f: f["min.position"]),
                           catalog_of(place, VERIFY).files, strict=True):  # fmt: skip
        assert (file["min.position"], file["max.position"]) == (named.first, named.last)
        assert file["num_records"] == named.rows
        rows = [r for r in whole_log(sqlite_log) if named.first <= r.position <= named.last]
        types = [row.topic.rpartition(".")[0] for row in rows]
        assert (file["min.type"], file["max.type"]) == (min(types), max(types))
        assert file["null_count.message_id"] == sum(t != "message-queued" for t in types)


def test_two_exporters_serialise_or_one_is_refused(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    growing = Growing(sqlite_log)
    growing.grow(2)
    with closing(exporter(sqlite_log, place)) as one, closing(exporter(sqlite_log, place)) as two:
        assert one.step()
        with pytest.raises(ExportRefused, match="another process exports"):
            two.step()
        growing.grow(2)
        while two.catalog.last < sqlite_log.position():  # it reads ahead, before the log grew
            two.step()
        with pytest.raises(ExportRefused, match="another process exports"):
            one.step()
        assert one.step() is None
        growing.grow(2)
        while one.catalog.last < sqlite_log.position():
            one.step()
    assert exported_log(place) == list(whole_log(sqlite_log))
    assert findings(place) == []


def test_an_idle_exporter_writes_no_mark_over_that_of_another(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    now_ms = AT_MS + DAY_MS
    Growing(sqlite_log).grow(4)
    export_all(sqlite_log, place)
    with closing(exporter(sqlite_log, place, clock=lambda: now_ms)) as idle:
        assert idle.step() is None
        with closing(exporter(sqlite_log, place, Bounds(), clock=lambda: now_ms)) as other:
            assert other.compact(files_min=2) == 1
        mark = place.read(END)
        now_ms += 60_000
        with pytest.raises(ExportRefused, match="another process exports"):
            idle.step()
    assert place.read(END) == mark


def test_in_an_object_store_one_of_two_exporters_is_refused(
    sqlite_log: EventLog, s3_uri: str
) -> None:
    place = open_place(s3_uri)
    growing = Growing(sqlite_log)
    growing.grow(2)
    with closing(exporter(sqlite_log, place)) as one, closing(exporter(sqlite_log, place)) as two:
        assert one.step()
        with pytest.raises(ExportRefused, match="another process exports"):
            two.step()
    assert positions_in(place) == positions_of(sqlite_log)
    assert findings(place) == []


def test_what_a_stopped_exporter_left_is_removed_only_behind_a_commit(
    sqlite_log: EventLog, place: ExportPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was only paused cannot commit the files that its successor has removed."""
    growing = Growing(sqlite_log)
    growing.grow(2)
    with closing(exporter(sqlite_log, place)) as paused:
        commit = DeltaTable.create_write_transaction

        def first(*arguments: Any, **more: Any) -> None:
            assert place.data_sizes()
            commit(*arguments, **more)

        def later(*arguments: Any, **more: Any) -> None:
            monkeypatch.setattr(DeltaTable, "create_write_transaction", first)
            with closing(exporter(sqlite_log, place)):
                assert not place.data_sizes()
            commit(*arguments, **more)

        monkeypatch.setattr(DeltaTable, "create_write_transaction", later)
        with pytest.raises(ExportRefused, match="another process exports"):
            paused.step()
    export_all(sqlite_log, place)
    assert positions_in(place) == positions_of(sqlite_log)
    assert findings(place) == []


def test_nothing_is_committed_behind_a_version_that_is_not_marked(
    sqlite_log: EventLog, place: ExportPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often the mark cannot be written, it is of the newest version or the one before."""
    growing, write = Growing(sqlite_log), ExportPlace.write

    def unmarked(self: ExportPlace, path: str, content: bytes) -> None:
        if path == END:
            raise ExportUnavailable(path, "the store is gone")
        write(self, path, content)

    for left in ([], [data_path("2030-01-01", 1, 2, "0" * 16)]):
        growing.grow()
        export_all(sqlite_log, place)
        for path in left:
            place.write(path, b"of a stopped exporter")
        with monkeypatch.context() as patch:
            patch.setattr(ExportPlace, "write", unmarked)
            for _ in range(3):
                growing.grow()
                with (
                    pytest.raises(ExportUnavailable, match="the store is gone"),
                    closing(exporter(sqlite_log, place)) as export,
                ):
                    export.step()
        assert {one.path for one in findings(place)} == {*left}
    export_all(sqlite_log, place)
    assert findings(place) == []


def test_an_old_export_is_opened_with_few_reads(
    sqlite_log: EventLog, place: ExportPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    growing = Growing(sqlite_log)
    with closing(exporter(sqlite_log, place)) as export:
        for _ in range(2 * SUMMARY_EVERY + 5):
            growing.grow()
            assert export.step()
    assert f"{TABLE_LOG}/_last_checkpoint" in place.sizes(TABLE_LOG)
    assert findings(place) == []
    reads: list[str] = []
    read = ExportPlace.read

    def counted(self: ExportPlace, path: str, bytes_max: int | None = None) -> bytes:
        reads.append(path)
        return read(self, path, bytes_max)

    monkeypatch.setattr(ExportPlace, "read", counted)
    catalog = catalog_of(place, VERIFY, is_listed=False)
    assert len(catalog.statements) == 2 * SUMMARY_EVERY + 5
    assert len(reads) <= SUMMARY_EVERY + 5
    assert sum(path.startswith(SUMMARIES) for path in reads) == 1
    whole = catalog_of(place, VERIFY, is_whole=True)
    assert whole.files == catalog.files
    assert all(statement.manifest.heads for statement in whole.statements)


def test_a_table_that_was_rolled_back_is_found(sqlite_log: EventLog, place: ExportPlace) -> None:
    growing = Growing(sqlite_log)
    growing.grow(2)
    export_all(sqlite_log, place)
    growing.grow(2)
    export_all(sqlite_log, place)
    version = table_of(place).version()
    place.remove(commit_path(version))
    with pytest.raises(ExportDamaged, match="rolled back") as said:
        catalog_of(place, VERIFY)
    assert said.value.path == commit_path(version)
    named = {(finding.fault, finding.path) for finding in findings(place)}
    assert (Damage.ROLLED_BACK, commit_path(version)) in named


def test_a_commit_that_was_edited_beside_its_signed_statement_is_refused_and_named(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    Growing(sqlite_log).grow(2)
    export_all(sqlite_log, place)
    path = commit_path(table_of(place).version())
    commit = place.read(path)
    edited = commit.replace(b'"nullCount', b'"nullcount') + b"\n"
    place.write(path, edited)
    for verify in (VERIFY, None):
        with pytest.raises(ExportDamaged) as said:
            catalog_of(place, verify)
        assert (said.value.damage, said.value.path) == (Damage.CHANGED, path)
    assert [(finding.fault, finding.path) for finding in findings(place)] == [
        (Damage.CHANGED, path)
    ]


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_mark_of_the_end_that_is_none_is_named(
    sqlite_log: EventLog, place: ExportPlace, *, is_cut: bool
) -> None:
    Growing(sqlite_log).grow(2)
    export_all(sqlite_log, place)
    mark = place.read(END)
    place.write(END, mark[:-1] if is_cut else mark.replace(b'"position":', b'"position":1'))
    with pytest.raises(ExportDamaged) as said:
        catalog_of(place, VERIFY)
    fault = Damage.BROKEN_MANIFEST if is_cut else Damage.BAD_SIGNATURE
    assert (said.value.damage, said.value.path) == (fault, END)


def test_an_export_that_is_swept_while_it_is_opened_is_opened_as_it_is_then(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    class Swept(ExportPlace):
        """A place whose manifests are replaced and removed before they are read."""

        def read_all(self, paths: Iterable[str]) -> Iterator[tuple[str, bytes]]:
            with closing(exporter(sqlite_log, place, Bounds())) as export:
                export.compact(files_min=2)
                export.sweep()
            return super().read_all(paths)

    Growing(sqlite_log).grow(8)
    export_all(sqlite_log, place)
    assert len(catalog_of(place, VERIFY).statements) > 1
    found = catalog_of(Swept(place.filesystem, place.root, table=place.table), VERIFY)
    assert len(found.statements) == 1
    assert found.last == sqlite_log.position()


def test_an_old_mark_is_found(sqlite_log: EventLog, place: ExportPlace) -> None:
    growing = Growing(sqlite_log)
    growing.grow(2)
    export_all(sqlite_log, place)
    mark = place.read(END)
    for _ in range(2):
        growing.grow(2)
        export_all(sqlite_log, place)
    place.write(END, mark)
    assert [(finding.fault, finding.path) for finding in findings(place)] == [
        (Damage.ROLLED_BACK, END)
    ]


def test_a_mark_that_a_paused_exporter_puts_back_hides_no_row_and_is_replaced(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    now_ms = AT_MS
    growing = Growing(sqlite_log)
    growing.grow(2)
    with closing(exporter(sqlite_log, place, clock=lambda: now_ms)) as export:
        for grows in (True, False):
            while export.step():
                pass
            earlier, known = place.read(END), catalog_of(place, VERIFY).complete_until_ms
            now_ms += 1_000
            growing.grow(4)
            while export.step():
                pass
            place.write(END, earlier)
            found = catalog_of(place, VERIFY)
            assert (found.last, found.complete_until_ms) == (sqlite_log.position(), known)
            if grows:
                growing.grow()
            now_ms += 60_000
            export.step()
            assert catalog_of(place, VERIFY).is_marked
            assert findings(place) == []


_LATER_READER = (
    b'{"protocol":{"minReaderVersion":3,"minWriterVersion":7,'
    b'"readerFeatures":["timestampNtz"],"writerFeatures":["timestampNtz"]}}'
)


def test_a_newest_commit_that_no_mark_names_leads_no_program_past_a_row(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    growing = Growing(sqlite_log)
    growing.grow(2)
    export_all(sqlite_log, place)
    mark = place.read(END)
    growing.grow(2)
    export_all(sqlite_log, place)
    place.write(END, mark)  # as if the exporter had been killed between the commit and the mark
    assert findings(place) == []
    path = commit_path(table_of(place).version())
    commit = place.read(path)
    last = str(sqlite_log.position()).encode()
    metadata = place.read(commit_path(0)).splitlines()
    (described,) = (line for line in metadata if line.startswith(b'{"metaData"'))
    kind = b'"name\\":\\"kind\\"'
    changes = (
        commit.replace(
            b'\\"maxValues\\": {\\"position\\": ' + last, b'\\"maxValues\\": {\\"position\\": 1'
        ),
        commit.replace(b'"partitionValues":{"date":"20', b'"partitionValues":{"date":"19'),
        b"\n".join([commit, _LATER_READER, b""]),
        *(
            b"\n".join([commit, described.replace(b'"name\\":\\"%b\\"' % name, kind), b""])
            for name in (b"type", b"state")  # with statistics, and without
        ),
        b"\n".join([commit, described.replace(b'Columns":["date"]', b'Columns":[]'), b""]),
    )
    for changed in changes:
        assert changed != commit
        place.write(path, changed)
        assert {(one.fault, one.path) for one in findings(place)} == {(Damage.BROKEN_COMMIT, path)}
    added = [line for line in commit.splitlines(keepends=True) if line.startswith(b'{"add"')]
    place.write(path, commit.replace(added[-1], b""))
    (finding,) = findings(place)
    assert finding.fault is Damage.BROKEN_COMMIT
    assert finding.path.removeprefix("events/").encode() in added[-1]
    with pytest.raises(ExportDamaged) as said:
        catalog_of(place, VERIFY)
    assert (said.value.damage, said.value.path) == (finding.fault, finding.path)
    place.write(path, commit)
    for content, fault in ((b"no file of rows", Damage.TRUNCATED), (None, Damage.MISSING)):
        place.remove(finding.path)
        if content is not None:
            place.write(finding.path, content)
        assert [(one.fault, one.path) for one in findings(place)] == [(fault, finding.path)]


def test_an_unmarked_commit_that_its_library_cannot_read_is_found(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    growing, marks = Growing(sqlite_log), list[bytes]()
    for _ in range(2):
        growing.grow(2)
        export_all(sqlite_log, place)
        marks.append(place.read(END))
    place.write(END, marks[0])
    path = commit_path(table_of(place).version())
    place.write(path, b"\n".join([place.read(path), b'{"add":{"path":7}}', b""]))
    found = [(one.fault, one.path) for one in findings(place)]
    assert found == [(Damage.BROKEN_COMMIT, TABLE_LOG)]


def test_a_commit_of_another_program_is_refused_and_named(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    Growing(sqlite_log).grow(2)
    export_all(sqlite_log, place)
    table = table_of(place)
    table.delete("position = 1")
    path = commit_path(table.version())
    with pytest.raises(ExportDamaged, match="no signed statement") as said:
        exporter(sqlite_log, place)
    assert said.value.path == path
    assert path in {finding.path for finding in findings(place)}


def test_a_commit_that_a_power_cut_left_in_pieces_is_written_again(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    growing = Growing(sqlite_log)
    export_all(sqlite_log, place)
    for length in (0, 700):
        mark = place.read(END)
        growing.grow(2)
        export_all(sqlite_log, place)
        place.write(END, mark)
        path = commit_path(table_of(place).version())
        place.write(path, place.read(path)[:length])
        export_all(sqlite_log, place)
        assert exported_log(place) == list(whole_log(sqlite_log))
        assert findings(place) == []


def test_a_torn_commit_is_removed_only_if_no_mark_names_it(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    Growing(sqlite_log).grow(2)
    export_all(sqlite_log, place)
    path = commit_path(table_of(place).version())
    place.write(path, b"")
    with pytest.raises(ExportDamaged):
        exporter(sqlite_log, place)
    assert place.read(path) == b""


def test_a_first_commit_that_a_power_cut_left_in_pieces_is_written_again(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    def cut() -> None:
        raise ExportUnavailable(END, "power cut")

    with pytest.raises(ExportUnavailable, match="power cut"):
        exporter(sqlite_log, place.checked(before_change(2, cut)))
    assert place.read_if_there(END) is None
    place.write(commit_path(0), b"")
    Growing(sqlite_log).grow()
    export_all(sqlite_log, place)
    assert exported_log(place) == list(whole_log(sqlite_log))
    assert findings(place) == []


def test_an_export_without_its_table_is_damaged(sqlite_log: EventLog, place: ExportPlace) -> None:
    Growing(sqlite_log).grow(2)
    export_all(sqlite_log, place)
    for path in contents(place):
        if path.startswith(TABLE_LOG):
            place.remove(path)
    with pytest.raises(ExportDamaged, match="the export has a table"):
        catalog_of(place, VERIFY)
    assert TABLE_LOG in {finding.path for finding in findings(place)}


@pytest.mark.parametrize("name", ["a b", "100%", "a#b?c", "ünï ☃"])
def test_a_table_may_be_in_a_folder_of_any_name(log: EventLog, tmp_path: Path, name: str) -> None:
    place = open_place(str(tmp_path / name))
    export_all(log, place)
    assert findings(place) == []


@pytest.mark.parametrize("name", ["a%20b", "a\\b", "a\tb"])
def test_but_one_that_its_library_takes_for_another_is_refused(tmp_path: Path, name: str) -> None:
    for target in (str(tmp_path / name), f"file://{tmp_path}/{quote(name)}"):
        with pytest.raises(ExportUnavailable, match="no table can be where a name has"):
            open_place(target)
