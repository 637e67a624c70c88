"""Decides which part of a table to rewrite, and has Spark write it.

The rows of a table are divided among buckets by their stream, so that events of few identities
change few files. A rebuild that continues an earlier one rewrites the buckets whose streams have
new events. Rows of streams that begin with the new events go to one more bucket
(``GenerationTable.recent``), and change no existing file. Once that bucket is a given share of the
table, or has many files, the whole table is rewritten. The rows of a stream are all in its bucket,
or all in the recent one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from projections.generations.delta_table import BUCKET
from projections.generations.generation import GenerationTable, TableFile
from projections.tables.erased import names_in, stream_named
from projections.tables.projection import Projection

BUCKETS_MAX: Final = 256
"""The most buckets of a table; a power of two."""
EVENTS_OF_BUCKET: Final = 65_536
"""About how many of a table's events go to one bucket."""
RECENT_SHARE_MAX: Final = 0.25
"""The largest recent share of a table's rows, and of its events, before a full rewrite."""
RECENT_FILES_MAX: Final = 16
_STREAM: Final = "stream"
_ORDER: Final = ("partition", _STREAM, "version", "ordinal", "key", "message_id")
"""Each table has some of these columns; together they distinguish its rows."""


class Parts(NamedTuple):
    """The parts of a table to write, and their division into files.

    Attributes:
        buckets: The number of buckets among which all rows are divided by their stream.
        written: The buckets to write.
        recent: The number of files for the rows of all other streams, in the bucket with the number
            ``buckets``.
        replaced: The files of the earlier table whose rows are read and written again; its other
            files stay.
    """

    buckets: int
    written: Collection[int]
    recent: int = 0
    replaced: Sequence[TableFile] = ()


def buckets_for(projection: Projection, events: Mapping[str, int]) -> int:
    """The number of buckets for the rows of a table, a power of two.

    Args:
        projection: the table.
        events: the number of events of each type.
    """
    if _STREAM not in projection.columns:
        return 1
    wanted = _events_of(projection, events) // EVENTS_OF_BUCKET
    return min(BUCKETS_MAX, 1 << max(0, wanted).bit_length())


def all_parts(buckets: int, replaced: Sequence[TableFile] = ()) -> Parts:
    """The parts of a table that is written as a whole."""
    return Parts(buckets, range(buckets), 0, replaced)


def parts_to_write(
    projection: Projection,
    earlier: GenerationTable,
    slots: Mapping[str, Collection[int]],
    events: Mapping[str, int],
    new_events: Mapping[str, int],
    others: Collection[int] = (),
) -> Parts:
    """The parts of a table that new events may have changed.

    Args:
        projection: the table.
        earlier: the table before these events.
        slots: ``slots_by_type`` of the new events.
        events: the number of events of each type, including the new ones.
        new_events: the number of new events of each type.
        others: slots of rows that are rewritten in any case.
    """
    wanted = max(earlier.buckets, buckets_for(projection, events))
    recent = [file for file in earlier.files if file.bucket == earlier.recent]
    recent_rows = sum(file.rows for file in recent)
    of_table = _events_of(projection, events), _events_of(projection, new_events)
    if (
        _STREAM not in projection.columns
        or recent_rows > RECENT_SHARE_MAX * earlier.rows
        or len(recent) > RECENT_FILES_MAX
        or of_table[1] > RECENT_SHARE_MAX * of_table[0]
    ):
        return all_parts(wanted, earlier.files)
    touched = buckets_of(projection, earlier.buckets, slots)
    touched |= {each % earlier.buckets for each in others}
    # An older stream may be in its bucket or in the recent one.
    read = touched | {earlier.recent} if touched else touched
    replaced = [file for file in earlier.files if file.bucket in read]
    return Parts(earlier.buckets, touched, buckets_for(projection, new_events), replaced)


def slot() -> Column:
    """The column with the slot of a row: one of ``BUCKETS_MAX`` parts of all streams."""
    first = F.conv(F.hex(F.substring(_STREAM, 1, 2)), 16, 10).cast("int")
    return first % BUCKETS_MAX


def slots_by_type(events: DataFrame) -> dict[str, set[int]]:
    """For each type of events, the slots of those of their streams that began before them."""
    begun = events.where("version = 1").select(_STREAM)
    older = events.join(begun, _STREAM, "left_anti")
    found: dict[str, set[int]] = {}
    for row in older.select("type", slot().alias("slot")).distinct().collect():
        found.setdefault(row["type"], set()).add(row["slot"])
    return found


def buckets_of(
    projection: Projection, buckets: int, slots: Mapping[str, Collection[int]]
) -> set[int]:
    """The buckets of a table that events in streams of these slots may have changed."""
    return {each % buckets for kind in projection.reads for each in slots.get(kind, ())}


def write_rows(rows: DataFrame, parts: Parts, folder: str, *, in_one_task: bool) -> None:
    """Have Spark write sorted rows as files, each bucket in one task.

    The recent bucket is written in ``Parts.recent`` tasks. ``in_one_task``: all buckets in one.
    """
    order: Sequence[str] = [name for name in _ORDER if name in rows.columns]
    bucket = slot() % parts.buckets if parts.buckets > 1 else F.lit(0)
    among: list[Column] = [F.col(BUCKET)]
    if parts.recent:
        is_written = bucket.isin(*parts.written) if parts.written else F.lit(col=False)
        bucket = F.when(is_written, bucket).otherwise(F.lit(parts.buckets))
    if parts.recent > 1:
        among.append(F.when(F.col(BUCKET) == parts.buckets, slot() % parts.recent).otherwise(0))
    rows = rows.withColumn(BUCKET, bucket)
    (
        (rows.coalesce(1) if in_one_task else rows.repartition(*among))
        .sortWithinPartitions(BUCKET, *order)
        .write.partitionBy(BUCKET)
        .mode("error")
        .parquet(folder)
    )


def _events_of(projection: Projection, events: Mapping[str, int]) -> int:
    return sum(events.get(kind, 0) for kind in projection.reads)


def slots_naming(tables: Collection[DataFrame], identities: DataFrame) -> list[set[int]]:
    """For each of these tables, the slots of the rows that name one of these identities.

    A name is known by the stream that follows from it: the log may have lost the name itself.
    """
    names = [
        rows.select(
            F.lit(number).alias("table"),
            slot().alias("slot"),
            F.explode(F.array(*names_in(rows.columns))).alias("name"),
        )
        for number, rows in enumerate(tables)
    ]
    found: list[set[int]] = [set() for _ in tables]
    gone, stream = F.broadcast(identities.select("stream")), stream_named(F.col("name"))
    # A semi-join would take one join for each table, each with a broadcast of its own.
    named = reduce(DataFrame.unionAll, names).withColumn("stream", stream).join(gone, "stream")
    for row in named.select("table", "slot").distinct().collect():
        found[row["table"]].add(row["slot"])
    return found
