"""Rows of Spark as output: records of plain values, aligned tables, JSON.

Text from elsewhere is shown with its control characters escaped, so that it cannot drive the
terminal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import click
import msgspec
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's users know
from pyspark.sql.types import BinaryType, DataType, DateType, TimestampType

Record: TypeAlias = dict[str, Any]
_TIME: Final = "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'"


class Listing(NamedTuple):
    """The first rows of a DataFrame, and whether there are more."""

    records: list[Record]
    has_more: bool


def listed(frame: DataFrame, rows_max: int) -> Listing:
    """The first rows; times as ISO 8601 in UTC, digests as hex digits, structs without nulls."""
    plain = [_plain(F.col(f.name), f.dataType).alias(f.name) for f in frame.schema]
    rows = frame.limit(rows_max + 1).select(*plain).collect()
    return Listing([_record(row) for row in rows[:rows_max]], len(rows) > rows_max)


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document."""
    click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2))


def print_record(title: str, record: Record) -> None:
    """Print the names and values of one record, a line each."""
    width = max(map(len, record))
    click.echo(title)
    for name, value in record.items():
        click.echo(f"  {name:{width}}  {_text(value)}")


def print_listing(title: str, listing: Listing) -> None:
    """Print a table: numbers stand right, and it says whether there are more rows."""
    records = listing.records
    click.echo(f"\n{title}{'' if records else ': none'}")
    if not records:
        return
    names = list(records[0])
    lines = [names, *[[_text(record[name]) for name in names] for record in records]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rights = [any(_is_number(record[name]) for record in records) for name in names]
    for line in lines:
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, rights, strict=True)
        ]
        click.echo(("  " + "  ".join(cells)).rstrip())
    if listing.has_more:
        click.echo(f"  and more: only {len(records):,} are shown (--limit)")


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


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: object) -> str:
    match value:
        case None | "" | []:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.3f}".rstrip("0").rstrip(".")
        case list():
            return " ".join(map(_text, value))
        case dict():
            return "  ".join(f"{name} {_text(member)}" for name, member in value.items())
        case _:
            return "".join(
                c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(value)
            )
