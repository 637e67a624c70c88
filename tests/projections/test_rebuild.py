"""What is rebuilt from the files is what the core and the read models make of the log."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from eventstore.log.event_log import EventLog
from eventstore.stores.open_log import open_log
from projections.rebuild.catalog import CATALOG, Tables, TablesDamaged, TablesPlace
from projections.rebuild.rebuild import RebuildRefused, frames, rebuild
from projections.spark.export import NotExported, open_export
from projections.tables.registry import PROJECTIONS
from tests.histories import History, random_script
from tests.projections.exports import export_log, prefix_of, rows_of
from tests.projections.folding import Rows, fold

pytestmark = pytest.mark.spark

# No shrinking: a smaller history costs as many seconds of Spark as a large one.
PROPERTY = settings(
    derandomize=True, database=None, deadline=None, max_examples=2, phases=[Phase.generate]
)


@contextmanager
def exported(seed: int, acts: int = 400) -> Iterator[tuple[EventLog, Path]]:
    """A log with a random history, exported, and the folder of all that."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with closing(open_log(f"sqlite:{folder / 'log.db'}")) as log:
            History(log).play(random_script(seed, acts))
            export_log(log, folder / "export", rows_max=300)
            yield log, folder


def seal_before(log: EventLog, position: int) -> int:
    """The newest seal up to a position: what follows it may be without one."""
    rows = log.read_log(limit=position)
    return max(row.id for row in rows if row.topic == "batch-sealed.1" and row.id <= position)


def read(spark: SparkSession, target: Path, tables: Tables) -> dict[str, Rows]:
    """The rows of written tables, as their catalog says."""
    place = TablesPlace(str(target))
    assert place.catalog() == tables
    found = rows_of({table.name: place.read(spark, table) for table in tables.tables})
    assert {t.name: t.rows for t in tables.tables} == {n: len(rows) for n, rows in found.items()}
    return found


def folded(log: EventLog) -> dict[str, Rows]:
    """The rows of every table by the core, none for tables that nothing belongs to."""
    return {projection.name: set() for projection in PROJECTIONS} | fold(log)


@given(seed=st.integers(0, 2**32), cut=st.floats(0.2, 0.9))
@PROPERTY
def test_rebuilt_tables_are_the_fold_of_the_log(spark: SparkSession, seed: int, cut: float) -> None:
    with exported(seed) as (log, folder):
        export = open_export(str(folder / "export"))
        position, target = seal_before(log, int(log.position() * cut)), folder / "tables"
        with closing(prefix_of(log, position, folder / "prefix.db")) as prefix:
            tables = rebuild(spark, export, str(target), as_of=position)
            assert (tables.position, tables.generation) == (position, 1)
            assert read(spark, target, tables) == folded(prefix)
        expected = folded(log)
        tables = rebuild(spark, export, str(target), incremental=True)
        assert (tables.position, tables.generation) == (log.position(), 2)
        assert read(spark, target, tables) == expected
        assert rows_of(frames(spark, export)) == expected


def test_a_time_names_the_last_seal_made_until_then(spark: SparkSession) -> None:
    with exported(1, acts=60) as (_, folder):
        export = open_export(str(folder / "export"))
        seals = [
            (row.recorded_at.astimezone(UTC), row.position)
            for row in export.events(spark).where("type = 'batch-sealed'").collect()
        ]
        for at in {at for at, _ in seals}:
            expected = max(position for made, position in seals if made <= at)
            assert export.position(spark, at) == (expected,)
        assert export.position(spark, min(seals)[0] - timedelta(milliseconds=1)) == (0,)
        assert export.position(spark, datetime(9000, 1, 1, tzinfo=UTC)) == export.last


def test_what_cannot_be_continued_is_refused_and_changes_nothing(spark: SparkSession) -> None:
    with exported(2, acts=40) as (log, folder), exported(2, acts=5) as (_, other):
        export, target = open_export(str(folder / "export")), folder / "tables"
        with pytest.raises(NotExported, match=f"the export ends at {log.position()}"):
            rebuild(spark, export, str(target), as_of=log.position() + 1)
        tables = rebuild(spark, export, str(target))
        before = read(spark, target, tables)
        assert rebuild(spark, export, str(target), incremental=True) == tables
        with pytest.raises(RebuildRefused, match="after 3"):
            rebuild(spark, export, str(target), as_of=3, incremental=True)
        strange = msgspec.structs.replace(tables, mediator="did:web:other")
        (target / CATALOG).write_bytes(msgspec.json.encode(strange))
        with pytest.raises(RebuildRefused, match="did:web:other"):
            rebuild(spark, export, str(target), incremental=True)
        (target / CATALOG).write_bytes(b"{")
        with pytest.raises(TablesDamaged, match=CATALOG):
            rebuild(spark, export, str(target))
        (target / CATALOG).write_bytes(msgspec.json.encode(tables))
        assert read(spark, target, tables) == before
        # There is no event up to this position: everything is empty.
        empty = rebuild(spark, open_export(str(other / "export")), str(target), as_of=0)
        assert {table.rows for table in empty.tables} == {0}
        assert not (target / "000001").exists()
