"""What stays of a pruned archive is written and read in bounded parts, however long it is."""

from __future__ import annotations

from contextlib import closing

import pyarrow as pa
import pytest
from msgspec.structs import replace

from eventstore.log.event_log import EventLog
from eventstore.parquet.files import ExportPlace
from eventstore.parquet.manifest import Manifest
from eventstore.parquet.rows import log_rows, manifest_tables, read_table
from eventstore.parquet.write.commit import write_data
from eventstore.parquet.write.step import Bounds
from tests.export.leaving import leave, plan, played
from tests.export.samples import catalog_of, export_all, exported_log, exporter, findings

BYTES_MAX = 10_000


@pytest.fixture
def rest(sqlite_log: EventLog, place: ExportPlace) -> Manifest:
    """What stays of the first part of a history, whose steps had a few kilobytes each."""
    history = played(sqlite_log)
    export_all(sqlite_log, place, Bounds(rows_max=40))
    leave(sqlite_log, place)
    with closing(
        exporter(sqlite_log, place, Bounds(rows_max=10**6, bytes_max=BYTES_MAX))
    ) as export:
        assert export.prune(history.now_ms - 400_000, plan)
    return catalog_of(place).statements[0].manifest


def test_files_of_what_stays_are_bounded_in_bytes(place: ExportPlace, rest: Manifest) -> None:
    assert rest.is_pruned
    assert len(rest.files) > 3
    assert max(file.state_bytes for file in rest.files) < 4 * BYTES_MAX
    assert findings(place) == []


def test_what_stays_is_read_a_file_at_a_time_in_the_order_of_the_log(
    place: ExportPlace, rest: Manifest
) -> None:
    read = list(manifest_tables(place, rest))
    assert [is_last for _, is_last in read] == [False] * (len(rest.files) - 1) + [True]
    most = max(file.rows for file in rest.files)
    assert max(table.num_rows for table, _ in read) <= most < rest.rows / 2
    rows = [row for table, _ in read for row in log_rows(table)]
    assert rows == exported_log(place)[: rest.rows]


def test_rows_of_days_that_interleave_are_read_in_the_order_of_the_log(
    place: ExportPlace, rest: Manifest
) -> None:
    """As around midnight, where hosts have different clocks."""
    whole = pa.concat_tables([read_table(place, file) for file in rest.files])
    days = [[0, 1, 4, 8], [2, 6], [3, 5, 7], range(9, whole.num_rows)]
    files = [write_data(place, "2023-11-14", whole.take(pa.array(day)), 99) for day in days]
    read = list(manifest_tables(place, replace(rest, files=files[::-1])))
    assert [is_last for _, is_last in read] == [False] * 3 + [True]
    assert [row for table, _ in read for row in log_rows(table)] == exported_log(place)[: rest.rows]
