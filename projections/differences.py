"""Where two versions of tables differ, row by row, as DataFrame operations.

The rows of all tables are brought to one form, their values as one text, so that one join finds
all differences; only of rows that are not the same are the values looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's users know
from pyspark.sql.types import BinaryType

DIFFERENCE: Final = ("table", "identity", "key", "column", "live", "rebuilt")
"""The columns of a difference, all of them texts.

``key`` tells the rows of one identity apart; ``column`` is empty where the whole row is on one side
alone; ``live`` and ``rebuilt`` are null where there is none.
"""
_PLACE: Final = ("table", "identity", "key")
_MAP: Final = "map<string, string>"
_EMPTY: Final = "{}"


def rows_as_text(table: str, rows: DataFrame, identity: str, *keys: str) -> DataFrame:
    """Rows as ``table``, ``identity``, ``key`` and ``row``; the other columns are the values.

    ``identity`` is the column that says whose a row is, ``keys`` tell its rows apart; none of
    these is ever null.
    """
    values = [column for column in rows.columns if column not in (identity, *keys)]
    shown = {field.name: _shown(field.name, field.dataType) for field in rows.schema}
    return rows.select(
        F.lit(table).alias("table"),
        F.col(identity).alias("identity"),
        F.concat_ws(" ", *[shown[key] for key in keys]).alias("key"),
        # A row without values is there, too.
        F.to_json(F.struct(*[shown[name].alias(name) for name in values]))
        .alias("row") if values else F.lit(_EMPTY).alias("row"),
    )  # fmt: skip


def differences(live: Sequence[DataFrame], rebuilt: Sequence[DataFrame]) -> DataFrame:
    """The differences between the rows on both sides, all of the form of ``rows_as_text``."""
    both = (
        united(live)
        .withColumnRenamed("row", "live_row")
        .join(united(rebuilt).withColumnRenamed("row", "rebuilt_row"), list(_PLACE), "full_outer")
        .where(~F.col("live_row").eqNullSafe(F.col("rebuilt_row")))
    )
    live_values = F.from_json("live_row", _MAP)
    rebuilt_values = F.from_json("rebuilt_row", _MAP)
    names = F.array_union(F.map_keys(live_values), F.map_keys(rebuilt_values))
    is_on_both = F.col("live_row").isNotNull() & F.col("rebuilt_row").isNotNull()
    columns = F.when(is_on_both, names).otherwise(F.array(F.lit("")))
    name = F.col("column")
    side = [
        F.when(name == "", F.col(f"{side}_row")).otherwise(values[name]).alias(side)
        for side, values in (("live", live_values), ("rebuilt", rebuilt_values))
    ]
    return (
        both.withColumn("column", F.explode(columns))
        .select(*_PLACE, "column", *side)
        .where(~F.col("live").eqNullSafe(F.col("rebuilt")))
    )


def united(frames: Sequence[DataFrame]) -> DataFrame:
    """All rows of frames of the same columns."""
    return reduce(DataFrame.unionAll, frames)


def _shown(name: str, kind: object) -> Column:
    return F.lower(F.hex(name)) if isinstance(kind, BinaryType) else F.col(name)
