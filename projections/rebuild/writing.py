"""Which part of a table is written anew, and how Spark writes it.

The rows of a table are shared out among buckets by their stream, so that what happened to few
identities changes few files: those of their buckets are written anew, the others stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's users know

from projections.generations.delta_table import BUCKET
from projections.tables.projection import Projection

BUCKETS_MAX: Final = 256
"""Of a table; a power of two."""
EVENTS_OF_BUCKET: Final = 65_536
"""About so many events that a table is made of are shared out to one bucket."""
_STREAM: Final = "stream"
_ORDER: Final = ("partition", _STREAM, "version", "ordinal", "key")
"""The columns that tables have some of, and that together distinguish their rows."""


def buckets_for(projection: Projection, events: Mapping[str, int]) -> int:
    """Among how many buckets the rows of a table are shared out, a power of two.

    Args:
        projection: the table.
        events: how many events of each type there are.
    """
    if _STREAM not in projection.columns:
        return 1
    wanted = sum(events.get(kind, 0) for kind in projection.reads) // EVENTS_OF_BUCKET
    return min(BUCKETS_MAX, 1 << max(0, wanted).bit_length())


def slot() -> Column:
    """Which of ``BUCKETS_MAX`` parts of all streams a row belongs to."""
    first = F.conv(F.hex(F.substring(_STREAM, 1, 2)), 16, 10).cast("int")
    return first % BUCKETS_MAX


def slots_by_type(events: DataFrame) -> dict[str, set[int]]:
    """The slots of the streams that events of each type are of."""
    found: dict[str, set[int]] = {}
    for row in events.select("type", slot().alias("slot")).distinct().collect():
        found.setdefault(row["type"], set()).add(row["slot"])
    return found


def buckets_of(
    projection: Projection, buckets: int, slots: Mapping[str, Collection[int]]
) -> set[int]:
    """The buckets of a table that events in these slots can have changed."""
    if _STREAM not in projection.columns:
        return {0}
    return {each % buckets for kind in projection.reads for each in slots.get(kind, ())}


def write_rows(rows: DataFrame, buckets: int, folder: str) -> None:
    """Have Spark write rows as files in their order, those of a bucket in one task."""
    order: Sequence[str] = [name for name in _ORDER if name in rows.columns]
    bucket = slot() % buckets if buckets > 1 else F.lit(0)
    (
        rows.withColumn(BUCKET, bucket)
        .repartition(BUCKET)
        .sortWithinPartitions(BUCKET, *order)
        .write.partitionBy(BUCKET)
        .mode("error")
        .parquet(folder)
    )
