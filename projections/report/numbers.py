"""All numbers of a report: computed one after the other, and written as CSV and Parquet."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from eventstore.parquet.files import ExportPlace
from projections.report.facts import Facts, Number
from projections.report.identities import GROWTH, RECIPIENTS, SENDERS
from projections.report.pickup import HISTOGRAM, LATENCY, REDELIVERIES, WORST
from projections.report.refusals import KINDS, REFUSALS, REFUSED_SENDERS
from projections.report.traffic import QUEUE, VOLUME

NUMBERS: Final[Sequence[Number]] = (
    VOLUME,
    QUEUE,
    LATENCY,
    HISTOGRAM,
    GROWTH,
    SENDERS,
    RECIPIENTS,
    REFUSALS,
    KINDS,
    REFUSED_SENDERS,
    REDELIVERIES,
    WORST,
)
_AT_ONCE: Final = 2
"""Numbers that are computed at the same time: one is planned while the other one runs."""
FOLDER: Final = "numbers"
_FORMULA: Final = "^[=+\\-@\t\r]"
"""How a text begins that a spreadsheet would take for a formula."""

Rows: TypeAlias = list[dict[str, Any]]
Hide: TypeAlias = Callable[[DataFrame, Sequence[str]], DataFrame]
"""Replaces what stands in these columns by pseudonyms."""


def compute(facts: Facts, hide: Hide) -> Iterator[tuple[Number, pa.Table]]:
    """Each number with its rows, sorted, as they are done. Only bounded tables are in memory."""

    def make(number: Number) -> tuple[Number, pa.Table]:
        frame = number.make(facts).select(*number.columns)
        return number, sort(number, hide(frame, number.naming).toArrow())

    with ThreadPoolExecutor(_AT_ONCE) as workers:
        for done in as_completed([workers.submit(make, number) for number in NUMBERS]):
            yield done.result()


def sort(number: Number, table: pa.Table) -> pa.Table:
    """The rows of a number in its order."""
    keys = [
        (name.removeprefix("-"), "descending" if name.startswith("-") else "ascending")
        for name in number.order
    ]
    return table.sort_by(keys)


def write(place: ExportPlace, number: Number, table: pa.Table) -> None:
    """Write one number; its columns are described in the Parquet file."""
    described = pa.schema(
        [
            pa.field(field.name, field.type, metadata={"about": number.columns[field.name]})
            for field in table.schema
        ]
    )
    parquet, text = io.BytesIO(), io.BytesIO()
    pq.write_table(table.cast(described), parquet, compression="zstd")
    pyarrow.csv.write_csv(_without_formulas(table), text)
    place.write(f"{FOLDER}/{number.name}.parquet", parquet.getvalue())
    place.write(f"{FOLDER}/{number.name}.csv", text.getvalue())


def plain(tables: Mapping[str, pa.Table]) -> dict[str, Rows]:
    """The rows of all numbers as Python has them."""
    return {name: table.to_pylist() for name, table in tables.items()}


def _without_formulas(table: pa.Table) -> pa.Table:
    """What strangers wrote, as a spreadsheet shows it and does not run it."""
    for index, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            texts = table.column(index)
            quoted = pc.binary_join_element_wise("'", texts, "")
            is_formula = pc.match_substring_regex(texts, _FORMULA)
            table = table.set_column(index, field, pc.if_else(is_formula, quoted, texts))
    return table
