"""Tables of the page: the rows of a number as texts, in columns that people understand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from projections.report import units
from projections.report.number import Number
from projections.report.numbers import NUMBERS, Rows

_NUMBER: Final = "number"
_NAME: Final = "name"
_TIME: Final = "nowrap"
_OPEN_ROWS_MAX: Final = 30
"""Longer tables are shown when asked for."""
_NAMES: Final = {"did", "message_id", "command"}
_SHOWN: Final[Mapping[str, Sequence[str]]] = {
    "redelivered_most": (
        *("message_id", "recipient_did", "deliveries", "size_bytes", "queued_at"),
        "last_delivered_at",
    )
}
"""Columns of wide tables that fit on the page; the files have all of them."""
_UNITS: Final[Mapping[str, Callable[[Any], str]]] = {
    "bytes": units.size,
    "_s": units.duration,
}


class Column(NamedTuple):
    """The head of a column."""

    name: str
    about: str
    is_number: bool


class Cell(NamedTuple):
    """One cell: its text, its class in the page, and the whole text where it is shortened."""

    text: str
    kind: str = ""
    whole: str = ""


@dataclass(frozen=True)
class Table:
    """A table as the page shows it."""

    title: str
    caption: str
    summary: str
    columns: list[Column]
    rows: list[list[Cell]]
    is_long: bool


def table_of(name: str, rows: Rows, caption: str = "") -> Table:
    """The table of one number, with all its rows; without a caption it is shown when asked for."""
    number = {number.name: number for number in NUMBERS}[name]
    shown = _SHOWN.get(name, tuple(number.columns))
    return Table(
        title=number.title,
        caption=caption,
        summary=f"{number.title}: {units.count(len(rows))} rows",
        columns=[_column(number, column, rows) for column in shown],
        rows=[[_cell(column, row[column]) for column in shown] for row in rows],
        is_long=not caption or len(rows) > _OPEN_ROWS_MAX,
    )


def _column(number: Number, name: str, rows: Rows) -> Column:
    words = name.removesuffix("_s").removesuffix("_did").removesuffix("_bytes").replace("_", " ")
    is_number = any(isinstance(row[name], int | float) for row in rows)
    return Column(words, number.columns[name], is_number)


def _cell(column: str, value: Any) -> Cell:
    if value is None:
        return Cell(units.DASH)
    if isinstance(value, datetime):
        return Cell(units.minute(value), _TIME, units.time(value))
    if isinstance(value, int | float):
        ends = (shown for end, shown in _UNITS.items() if column.endswith(end))
        return Cell(next(ends, units.count)(value), _NUMBER)
    if column == "recipient_did":
        return Cell(units.short_did(value), _TIME, value)
    return Cell(value, _NAME if column in _NAMES else "")
