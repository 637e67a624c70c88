"""Time alone does not make an export slower to open: the table gets a checkpoint, come what may."""

from __future__ import annotations

import os
from contextlib import closing

import pytest
from deltalake import DeltaTable

from actors.host.clock import system_clock
from eventstore.log.event_log import EventLog
from eventstore.parquet.errors import ExportUnavailable
from eventstore.parquet.files import TABLE_LOG, ExportPlace
from eventstore.parquet.versions import CHECKPOINT_EVERY, SUMMARY_EVERY, commit_path, version_of
from eventstore.parquet.write.exporter import Exporter, ExportTimes
from eventstore.parquet.write.step import Bounds
from eventstore.parquet.write.table import TableWriter
from tests.export.samples import (
    SIGNER,
    Growing,
    catalog_of,
    export_all,
    exported_log,
    exporter,
    findings,
    whole_log,
)
from tests.log.samples import AT_MS


def read_one_by_one(place: ExportPlace) -> int:
    """The number of commits behind the newest checkpoint, which every reader reads."""
    paths = place.sizes(TABLE_LOG)
    names = [path.removeprefix(f"{TABLE_LOG}/") for path in paths]
    last = max(
        (int(name[:20]) for name in names if name.endswith(".checkpoint.parquet")), default=-1
    )
    return sum(version_of(path) > last for path in paths)


def version_in(export: Exporter) -> int:
    assert export.catalog.version is not None
    return export.catalog.version.version


def test_an_export_whose_steps_are_always_merged_is_opened_with_a_bounded_number_of_reads(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    """Merged by twos and fours: so few manifests are left that no summary is ever made."""
    growing, most = Growing(sqlite_log), 0
    with closing(exporter(sqlite_log, place, Bounds())) as export:
        while version_in(export) < CHECKPOINT_EVERY + 10:
            growing.grow()
            assert export.step()
            export.compact(files_min=2)
            assert export.catalog.version is not None
            assert len(export.catalog.version.since) <= SUMMARY_EVERY
            assert not export.catalog.version.summary
            most = max(most, read_one_by_one(place))
    assert most <= CHECKPOINT_EVERY
    assert exported_log(place) == list(whole_log(sqlite_log))
    assert findings(place) == []


class Listed(ExportPlace):
    """A place that notes when the log of the table was listed, and which commits were read."""

    def __init__(self, place: ExportPlace) -> None:
        super().__init__(place.filesystem, place.root)
        self.seen: list[str] = []

    def sizes(self, folder: str) -> dict[str, int]:
        if TABLE_LOG.startswith(folder):
            self.seen.append(folder)
        return super().sizes(folder)

    def read(self, path: str, bytes_max: int | None = None) -> bytes:
        if version_of(path) >= 0:
            self.seen.append(path)
        return super().read(path, bytes_max)


def test_a_step_reads_of_the_tables_log_only_what_it_wrote_however_much_is_kept(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    growing, watched = Growing(sqlite_log), Listed(place)
    with closing(exporter(sqlite_log, watched)) as export:
        for _ in range(3):
            growing.grow()
            watched.seen.clear()
            assert export.step()
            assert watched.seen == [commit_path(version_in(export))]


def test_an_old_export_without_a_checkpoint_gets_one_with_its_next_version_even_after_a_kill(
    sqlite_log: EventLog, place: ExportPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    growing = Growing(sqlite_log)
    growing.grow()
    with closing(exporter(sqlite_log, place)) as export:
        assert export.step()
        catalog = export.catalog
    writer = TableWriter(place, SIGNER, lambda: AT_MS, versions_kept_s=60)
    with monkeypatch.context() as earlier:
        earlier.setattr("eventstore.parquet.versions.CHECKPOINT_EVERY", 10**9)
        for _ in range(CHECKPOINT_EVERY + 20):
            catalog = writer.mark(writer.commit(catalog, catalog.statements))
    assert read_one_by_one(place) > CHECKPOINT_EVERY

    def killed(_table: DeltaTable) -> None:
        raise OSError("killed before the checkpoint")

    growing.grow()
    with closing(exporter(sqlite_log, place)) as export, monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_checkpoint", killed)
        with pytest.raises(ExportUnavailable, match="killed"):
            export.step()
    assert read_one_by_one(place) > CHECKPOINT_EVERY
    with closing(exporter(sqlite_log, place)):
        assert read_one_by_one(place) == 0
    assert catalog_of(place).is_marked
    assert exported_log(place) == list(whole_log(sqlite_log))
    assert findings(place) == []


def test_commits_of_versions_that_are_kept_no_longer_leave_with_the_next_checkpoint(
    sqlite_log: EventLog, place: ExportPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventstore.parquet.versions.CHECKPOINT_EVERY", 4)
    growing, old_s = Growing(sqlite_log), system_clock() / 1_000 - 2 * ExportTimes().versions_kept_s
    with closing(exporter(sqlite_log, place)) as export:
        while version_in(export) < 8:
            growing.grow()
            assert export.step()
            if version_in(export) == 5:
                for path in place.sizes(TABLE_LOG):
                    os.utime(place.full_path(path), (old_s, old_s))
    # Older ones than the checkpoint before what is kept.
    versions = sorted(
        version for path in place.sizes(TABLE_LOG) if (version := version_of(path)) > 0
    )
    assert versions == [4, 5, 6, 7, 8]
    assert exported_log(place) == list(whole_log(sqlite_log))
    assert findings(place) == []


def test_an_exporter_that_starts_reads_the_history_of_the_table_once(
    sqlite_log: EventLog, place: ExportPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    Growing(sqlite_log).grow(2)
    export_all(sqlite_log, place)
    opened: list[int | None] = []

    def counted(uri: str, *, version: int | None, storage_options: dict[str, str]) -> DeltaTable:
        opened.append(version)
        return DeltaTable(uri, version=version, storage_options=storage_options)

    monkeypatch.setattr("eventstore.parquet.table.DeltaTable", counted)
    with closing(exporter(sqlite_log, place)) as export:
        assert export.catalog.last == sqlite_log.position()
    assert len(opened) == 1
