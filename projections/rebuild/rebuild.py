"""Rebuilds all tables from an export: from the first event, or from earlier tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, TypeAlias

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's users know

from projections.errors import USAGE, ProjectionError
from projections.rebuild.catalog import CatalogTable, Tables, TablesPlace
from projections.spark.export import AsOf, ExportedLog, Position, position_text
from projections.spark.pseudonyms import fingerprint
from projections.tables.projection import Projection, Step, rare_events
from projections.tables.registry import PROJECTIONS

_AT_ONCE: Final = 2
"""Tables that are written at the same time: one is planned while the other one runs."""

Progress: TypeAlias = Callable[[str, int], None]
"""Called with the name of each table that is done, and its rows."""


class RebuildRefused(ProjectionError):
    """The earlier tables cannot be continued to where this rebuild was to end."""

    exit_code = USAGE


def rebuild(
    spark: SparkSession,
    export: ExportedLog,
    target: str,
    *,
    as_of: AsOf = None,
    incremental: bool = False,
    progress: Progress = lambda _name, _rows: None,
) -> Tables:
    """Write all tables as the log stood at ``as_of``; the catalog of what was written.

    Args:
        spark: any session; ``projections.spark.session`` opens one.
        export: see ``projections.spark.export.open_export``; with a key the tables have pseudonyms.
        target: folder of the tables, a path or a URI; tables in it are replaced.
        as_of: a time, a position, or None for all that is exported.
        incremental: continue from the tables in ``target``, if there are some.
        progress: called after each table.

    Raises:
        NotExported: the export does not reach ``as_of``.
        RebuildRefused: the earlier tables are later, of another export, or of another key.
        TablesDamaged: the catalog of the earlier tables cannot be read.
    """
    place = TablesPlace(target)
    before = place.catalog()
    position = export.position(spark, as_of)
    start = before if incremental else None
    if before is not None and start is not None:
        _check_continues(start, export, position)
        if start.at == position:
            return start
    generation = before.generation + 1 if before else 1
    earlier = {table.name: table for table in start.tables} if start else {}
    step = _step(spark, export, position, start, place)

    tables = _write(step, place, generation, earlier, progress)
    result = Tables(
        mediator=export.head.mediator_did,
        public_key=export.head.public_key,
        generation=generation,
        position=sum(position),
        positions=list(position),
        at_ms=step.at_ms,
        window_ms_max=step.window_ms_max,
        pseudonyms=fingerprint(export.key),
        tables=[tables[projection.name] for projection in PROJECTIONS],
    )
    place.commit(result)
    return result


def _write(
    step: Step,
    place: TablesPlace,
    generation: int,
    earlier: Mapping[str, CatalogTable],
    progress: Progress,
) -> dict[str, CatalogTable]:
    """Every table by name; an earlier one stays where no event changed it."""

    def write(projection: Projection, kept: Step) -> CatalogTable:
        if projection.name in earlier and step.types.isdisjoint(projection.reads):
            return earlier[projection.name]
        return place.write(generation, projection, projection.rebuild(kept))

    tables: dict[str, CatalogTable] = {}
    with _keeping(step) as kept, ThreadPoolExecutor(_AT_ONCE) as writers:
        for done in as_completed([writers.submit(write, each, kept) for each in PROJECTIONS]):
            table = done.result()
            tables[table.name] = table
            progress(table.name, table.rows)
    return tables


@contextmanager
def _keeping(step: Step) -> Iterator[Step]:
    """The step with what several tables, or several passes, need kept while the block runs."""
    kept = [step.rare.persist(StorageLevel.MEMORY_AND_DISK)]

    def keep(rows: DataFrame) -> int:
        kept.append(rows.persist(StorageLevel.MEMORY_AND_DISK))
        return int(rows.count())

    try:
        yield replace(step, keep=keep)
    finally:
        for rows in kept:
            rows.unpersist()


def frames(spark: SparkSession, export: ExportedLog, as_of: AsOf = None) -> dict[str, DataFrame]:
    """All tables by name as DataFrames, for notebooks; nothing is written.

    Raises:
        NotExported: the export does not reach ``as_of``.
    """
    step = _step(spark, export, export.position(spark, as_of))
    return {projection.name: projection.rebuild(step) for projection in PROJECTIONS}


def _check_continues(start: Tables, export: ExportedLog, position: Position) -> None:
    head = export.head
    if (start.mediator, start.public_key) != (head.mediator_did, head.public_key):
        raise RebuildRefused(f"the earlier tables are of {start.mediator}: rebuild them in full")
    if start.pseudonyms != fingerprint(export.key):
        kind = "pseudonyms by another key" if start.pseudonyms else "no pseudonyms"
        kind = kind if export.key is not None else "pseudonyms"
        raise RebuildRefused(f"the earlier tables have {kind}: rebuild them in full")
    if len(start.at) != len(position):
        raise RebuildRefused(
            f"the earlier tables are of {len(start.at)} of the log's databases, the export is of"
            f" {len(position)}: rebuild them in full"
        )
    if any(before > after for before, after in zip(start.at, position, strict=True)):
        raise RebuildRefused(
            f"the earlier tables stand at position {position_text(start.at)},"
            f" after {position_text(position)}: rebuild them in full"
        )
    found = {table.name: {column.name for column in table.columns} for table in start.tables}
    if found != {projection.name: set(projection.columns) for projection in PROJECTIONS}:
        raise RebuildRefused("the earlier tables are of another release: rebuild them in full")


def _step(
    spark: SparkSession,
    export: ExportedLog,
    position: Position,
    start: Tables | None = None,
    place: TablesPlace | None = None,
) -> Step:
    after = start.at if start else export.start
    events, types = export.events(spark, after, position), export.types(after, position)
    latest = events.agg(F.max(F.unix_millis("recorded_at")), F.max("window_ms")).first()
    at_ms, window_ms_max = (value or 0 for value in latest or (0, 0))
    step = Step(
        events, rare_events(events), types, {}, at_ms, window_ms_max, databases=len(position)
    )
    if start is None or place is None:
        return step
    return replace(
        step,
        earlier={table.name: place.read(spark, table) for table in start.tables},
        at_ms=max(start.at_ms, at_ms),
        window_ms_max=max(start.window_ms_max, window_ms_max),
    )
