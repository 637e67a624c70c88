"""Other programs read the exported table: the same rows each, while exporter and compaction run.

DuckDB reads the format with a library of its own, pandas with that of the exporter, Spark the files
of a version that the exporter's library names.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from eventstore.log.content import with_content
from eventstore.log.event_log import EventLog
from eventstore.parquet.catalog import catalog_of
from eventstore.parquet.files import ExportPlace
from eventstore.parquet.write.exporter import Exporter, ExportTimes
from eventstore.parquet.write.step import Bounds
from tests.export.samples import VERIFY, Growing, export_all, exporter, findings, whole_log

WAIT_S = 60
KEPT = ExportTimes(replaced_kept_s=600.0)
"""Who reads an older version finds its files."""
COLUMNS = ("position", "type", "identity", "message_id", "state")
Rows = list[tuple[object, ...]]
Read = Callable[[str], Rows]


@pytest.fixture
def in_duckdb() -> Iterator[Read]:
    found = find_spec("duckdb_ext")
    assert found is not None
    assert found.submodule_search_locations is not None
    (folder,) = found.submodule_search_locations
    (extension,) = Path(folder).rglob("delta.duckdb_extension")
    with duckdb.connect() as connection:
        connection.execute(f"LOAD '{extension}'")

        def read(uri: str) -> Rows:
            columns = ", ".join(COLUMNS)
            query = f"SELECT {columns} FROM delta_scan('{uri}') ORDER BY position"
            return connection.execute(query).fetchall()

        yield read


def in_pandas(uri: str) -> Rows:
    frame = DeltaTable(uri).to_pandas(columns=list(COLUMNS)).sort_values("position")
    return _rows(pa.Table.from_pandas(frame, preserve_index=False))


def _rows(table: pa.Table) -> Rows:
    return list(zip(*(table[name].to_pylist() for name in COLUMNS), strict=True))


class Beside:
    """An exporter that goes on in a thread: a transaction, a step, and small files put together."""

    def __init__(self, export: Exporter, growing: Growing) -> None:
        self._export, self._growing = export, growing
        self._stopping = threading.Event()
        self._failed: list[Exception] = []
        self._thread = threading.Thread(target=self._run)
        self.compactions = 0

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._growing.grow()
                self._export.step()
                self.compactions += self._export.compact(files_min=4) > 0
        except Exception as error:  # noqa: BLE001 - the test says it
            self._failed.append(error)

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            self._thread.join(WAIT_S)
        assert self._failed == []


def test_programs_see_whole_versions_and_each_row_once_while_the_exporter_works(
    sqlite_log: EventLog, place: ExportPlace, in_duckdb: Read
) -> None:
    growing = Growing(sqlite_log)
    growing.grow(2)
    export_all(sqlite_log, place)
    with closing(exporter(sqlite_log, place, Bounds(), KEPT)) as export:
        beside = Beside(export, growing)
        seen = 0
        with beside.running():
            while beside.compactions < 3 or seen < 10:
                assert beside._failed == []
                for read in (in_duckdb, in_pandas):
                    positions = [row[0] for row in read(place.table.uri)]
                    # Transactions have five rows, and positions of this store no gaps.
                    assert positions == list(range(1, len(positions) + 1))
                    assert len(positions) % 5 == 0
                seen += 1
    assert findings(place) == []


@pytest.mark.spark
def test_duckdb_pandas_and_spark_read_the_same_rows(
    spark: SparkSession, sqlite_log: EventLog, place: ExportPlace, in_duckdb: Read
) -> None:
    growing = Growing(sqlite_log)
    growing.grow(8)
    export_all(sqlite_log, place)
    with closing(exporter(sqlite_log, place, Bounds(), KEPT)) as export:
        uri = place.table.uri
        pinned = DeltaTable(uri)
        rows = in_duckdb(uri)
        assert rows == in_pandas(uri)
        assert [row[0] for row in rows] == [row.position for row in whole_log(sqlite_log)]
        assert [row[-1] for row in rows] == [
            with_content(row.state, row.content) for row in whole_log(sqlite_log)
        ]
        with Beside(export, growing).running():
            for _ in range(3):
                found = spark.read.parquet(*(f"file://{path}" for path in pinned.file_uris()))
                spark_rows = found.orderBy("position").select(*COLUMNS).collect()
                assert [(*row[:-1], bytes(row[-1])) for row in spark_rows] == rows
        last = catalog_of(place, VERIFY).last
    assert [row[0] for row in in_duckdb(uri)] == list(range(1, last + 1))
