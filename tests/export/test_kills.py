"""Exporters that are killed, disks that fill up, stores that go away: at every single step."""

from __future__ import annotations

import io
import signal
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyarrow import fs

from eventstore.log.event_log import EventLog, LogRow
from eventstore.log.events import SEAL_TOPIC
from eventstore.parquet.errors import Damage, ExportUnavailable
from eventstore.parquet.files import EVENTS, TABLE_LOG, ExportPlace, open_place
from eventstore.parquet.tree import CHECKPOINT, head_in
from eventstore.parquet.verify.export import verify_export
from eventstore.parquet.versions import commit_path
from eventstore.stores.open_log import open_log
from tests.export.killed_exporter import exit_code
from tests.export.samples import (
    SIGNED_BY,
    Growing,
    catalog_of,
    contents,
    export_all,
    exported_log,
    exporter,
    findings,
    leaves_of,
    whole_log,
)
from tests.full_disk import files_up_to
from tests.log.root_by_definition import by_definition

_KILLED: Final[int | None] = -signal.SIGKILL


@pytest.mark.crash
@pytest.mark.parametrize(("what", "apart"), [("files", 7), ("table", 1)])
def test_nothing_is_missed_or_doubled_whenever_the_exporter_is_killed(
    tmp_path: Path, what: str, apart: int
) -> None:
    with closing(open_log(f"sqlite:{tmp_path}/log.db")) as log:
        growing = Growing(log)
        place = open_place(f"{tmp_path}/export")
        fatal, ended = 0, _KILLED
        while ended == _KILLED:
            # Each round kills a few steps later than the one before, and the log has grown.
            fatal += apart
            growing.grow(3)
            ended = exit_code(str(tmp_path), fatal, what)
            found = exported_log(place)
            assert found == list(whole_log(log))[: len(found)]
            _assert_published_head_is_of(log, place, found)
            if place.sizes(TABLE_LOG) and catalog_of(place).version:
                rows = DeltaTable(f"{place.root}/{EVENTS}").to_pyarrow_table(columns=["position"])
                positions = [row.position for row in found]
                assert sorted(rows["position"].to_pylist()) == positions
                # What a kill leaves is listed as such, and as nothing else.
                assert {finding.fault for finding in findings(place)} <= {Damage.STRAY}
        assert ended == 0
        assert findings(place) == []
        assert exported_log(place) == list(whole_log(log))
        export_all(log, place)
        assert catalog_of(place).strays == []
        assert [*verify_export(place, SIGNED_BY)][:-1] == []
        _assert_published_head_is_of(log, place, exported_log(place))
    assert fatal > 5 * apart


@pytest.mark.crash
def test_no_committed_version_is_missing_if_an_exporter_is_killed_that_removes_a_torn_one_late(
    tmp_path: Path,
) -> None:
    """The torn commit was removed, and its version committed, by the exporter that took over."""
    fatal, ended = 0, _KILLED
    while ended == _KILLED:
        fatal += 1
        folder = tmp_path / str(fatal)
        folder.mkdir()
        place = open_place(f"{folder}/export")
        with closing(open_log(f"sqlite:{folder}/log.db")) as log:
            growing = Growing(log)
            growing.grow(2)
            export_all(log, place)
            growing.grow(2)
            Path(place.full_path(commit_path(catalog_of(place).next_version))).touch()
            ended = exit_code(str(folder), fatal, "late")
            assert exported_log(place) == list(whole_log(log))
            assert {finding.fault for finding in findings(place)} <= {Damage.STRAY}
    assert ended == 0
    assert fatal > 2


def _assert_published_head_is_of(
    log: EventLog, place: ExportPlace, exported: Sequence[LogRow]
) -> None:
    """No head was signed of what is not in the log, or does not count in the export yet."""
    note = place.read_if_there(CHECKPOINT)
    if note is None:
        return
    head, leaves = head_in(note, SIGNED_BY), leaves_of(log)
    assert head.root == by_definition(leaves[: head.size])
    rows = [row for row in exported if row.topic == SEAL_TOPIC]
    assert head.size <= len(rows)


class _Object(io.BytesIO):
    """An object of a store, which is there whole once it is closed."""

    def __init__(self, put: Callable[[bytes], object]) -> None:
        super().__init__()
        self._put = put

    def close(self) -> None:
        if not self.closed:
            content = self.getvalue()
            super().close()
            self._put(content)


class FailingHandler(fs.FileSystemHandler):  # type: ignore[misc]  # pyarrow has no types
    """An object store in a folder, whose nth change fails, before or after it was made."""

    def __init__(self, filesystem: fs.FileSystem) -> None:
        self._filesystem = filesystem
        self.changes_left = -1
        self.fails_afterwards = False

    def _change(self, make: Any, *arguments: Any) -> Any:
        self.changes_left -= 1
        if self.changes_left == 0 and not self.fails_afterwards:
            raise OSError(5, "the store is gone")
        made = make(*arguments)
        if self.changes_left == 0:
            raise OSError(5, "the store is gone")
        return made

    def get_type_name(self) -> str:
        return "failing"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: Any) -> Any:
        return self._filesystem.get_file_info(paths)

    def get_file_info_selector(self, selector: Any) -> Any:
        return self._filesystem.get_file_info(selector)

    def create_dir(self, path: str, recursive: bool) -> None:
        self._filesystem.create_dir(path, recursive=recursive)

    def delete_dir(self, path: str) -> None:
        self._change(self._filesystem.delete_dir, path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        self._change(self._filesystem.delete_dir_contents, path)

    def delete_root_dir_contents(self) -> None:
        raise OSError(1, "not here")

    def delete_file(self, path: str) -> None:
        self._change(self._filesystem.delete_file, path)

    def move(self, src: str, dest: str) -> None:
        self._change(self._filesystem.move, src, dest)

    def copy_file(self, src: str, dest: str) -> None:
        self._change(self._filesystem.copy_file, src, dest)

    def open_input_stream(self, path: str) -> Any:
        return self._filesystem.open_input_stream(path)

    def open_input_file(self, path: str) -> Any:
        return self._filesystem.open_input_file(path)

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        return pa.PythonFile(_Object(partial(self._change, self._put, path)), mode="w")

    def _put(self, path: str, content: bytes) -> None:
        self._filesystem.create_dir(str(PurePosixPath(path).parent), recursive=True)
        with self._filesystem.open_output_stream(path) as stream:
            stream.write(content)

    def open_append_stream(self, path: str, metadata: Any) -> Any:
        raise OSError(1, "not here")


@pytest.mark.parametrize("afterwards", [False, True])
def test_an_exporter_goes_on_after_any_step_that_failed(
    sqlite_log: EventLog, tmp_path: Path, afterwards: bool
) -> None:
    handler = FailingHandler(fs.LocalFileSystem())
    handler.fails_afterwards = afterwards
    place = ExportPlace(fs.PyFileSystem(handler), str(tmp_path / "export"))
    growing = Growing(sqlite_log)
    growing.grow(2)
    with closing(exporter(sqlite_log, place)) as export:
        for fatal in range(1, 14):
            growing.grow(6)
            handler.changes_left = fatal
            with pytest.raises(ExportUnavailable, match="the store is gone"):
                _export_and_compact(export)
            found = exported_log(place)
            assert found == list(whole_log(sqlite_log))[: len(found)]
            _assert_published_head_is_of(sqlite_log, place, found)
        handler.changes_left = -1
        _export_and_compact(export)
    assert exported_log(place) == list(whole_log(sqlite_log))
    assert catalog_of(place).strays == []
    assert [*verify_export(place, SIGNED_BY)][:-1] == []


def _export_and_compact(export: Any) -> None:
    while export.step():
        pass
    export.compact(files_min=2)
    export.sweep()


def test_a_full_disk_is_said_and_nothing_half_written_stays(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    growing = Growing(sqlite_log)
    growing.grow(2)
    export_all(sqlite_log, place)
    before = contents(place)
    growing.grow(2)
    with closing(exporter(sqlite_log, place)) as export:
        with files_up_to(1_000), pytest.raises(ExportUnavailable, match="File too large") as said:
            export.step()
        assert str(said.value).startswith("events/date=")
        assert contents(place) == before
        assert export.step()
    assert exported_log(place) == list(whole_log(sqlite_log))
