"""Converts rows of Spark to records of plain values."""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's users know
from pyspark.sql.types import BinaryType, DataType, DateType, TimestampType

from eventstore.parquet.audit.records import Record

_TIME: Final = "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'"


def records(frame: DataFrame, rows_max: int) -> list[Record]:
    """The first rows; times as ISO 8601 in UTC, digests as hex digits, structs without nulls."""
    plain = [_plain(F.col(f.name), f.dataType).alias(f.name) for f in frame.schema]
    return [_record(row) for row in frame.limit(rows_max).select(*plain).collect()]


def _plain(column: Column, kind: DataType) -> Column:
    match kind:
        case TimestampType():
            return F.date_format(column, _TIME)
        case DateType():
            return column.cast("string")
        case BinaryType():
            return F.lower(F.hex(column))
        case _:
            return column


def _record(row: Row) -> Record:
    return {name: _members(value) for name, value in row.asDict().items()}


def _members(value: Any) -> Any:
    if isinstance(value, Row):
        return {name: member for name, member in value.asDict().items() if member is not None}
    return value
