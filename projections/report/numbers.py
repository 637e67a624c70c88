"""The numbers of a report: rows of views that Spark computes, written as CSV and Parquet."""

from __future__ import annotations

import io
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from eventstore.parquet.files import ExportPlace
from projections.spark.tasks import results_of
from projections.views import identities, messages, pickup, refusals
from projections.views.view import View

TOP: Final = 20
"""The most rows of a number whose view may have any number of rows, by each of its orders."""
FOLDER: Final = "numbers"
_FORMULA: Final = "^[=+\\-@\t\r]"
"""The beginning of a text that a spreadsheet would take for a formula."""

Rows: TypeAlias = list[dict[str, Any]]
Hide: TypeAlias = Callable[[DataFrame], DataFrame]
"""Replaces names by pseudonyms."""


@dataclass(frozen=True)
class Number:
    """The rows of a view under a title; for a large view, the first by each of ``largest``."""

    view: View
    title: str
    largest: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the view, and of the files."""
        return self.view.name

    def rows(self, session: SparkSession) -> DataFrame:
        """Its rows, in no order; ``session`` has the views."""
        rows = session.table(self.name)
        if not self.largest:
            return rows
        ties = [_sorted_by(name) for name in self.view.order]
        largest = [rows.orderBy(F.desc(by), *ties).limit(TOP) for by in self.largest]
        return reduce(lambda one, other: one.union(other).distinct(), largest)


NUMBERS: Final = (
    Number(messages.VOLUMES, "Messages and bytes over time"),
    Number(messages.QUEUE_DEPTH, "Waiting messages over time"),
    Number(pickup.SERVICE_LEVEL, "Service level over time"),
    Number(pickup.WAITS, "From queued to picked up"),
    Number(pickup.WAIT_CLASSES, "Distribution of waits"),
    Number(pickup.DELIVERIES, "Deliveries over time"),
    Number(pickup.REDELIVERIES, "How often messages were handed out"),
    Number(pickup.REDELIVERED, "Messages handed out most often", ("deliveries",)),
    Number(pickup.ENDPOINTS, "Endpoints with most messages waiting", ("waiting",)),
    Number(identities.GROWTH, "Identities, connections, contracts and keys over time"),
    Number(identities.CHURN, "Identities that came and stayed away"),
    Number(identities.SENDERS, "Largest senders", ("messages", "bytes")),
    Number(identities.RECIPIENTS, "Largest recipients", ("messages", "bytes")),
    Number(identities.TENANT_VOLUMES, "Largest tenants", ("messages", "bytes")),
    Number(refusals.OVER_TIME, "Refusals over time"),
    Number(refusals.ACCEPTANCE, "Refusals beside accepted messages"),
    Number(refusals.BY_KIND, "What was refused most", ("refusals",)),
    Number(refusals.REFUSED_SENDERS, "Who was refused most", ("refusals",)),
)


def compute(session: SparkSession, hide: Hide) -> Generator[tuple[Number, pa.Table], None, None]:
    """Compute each number with its sorted rows, in order of completion; all tables are bounded.

    ``session`` has the views. A caller that reads no further closes this, which ends the rest.
    """

    def make(number: Number) -> tuple[Number, pa.Table]:
        return number, sort(number, hide(number.rows(session)).toArrow())

    return results_of(session, [partial(make, number) for number in NUMBERS])


def sort(number: Number, table: pa.Table) -> pa.Table:
    """The rows of a number in its order."""
    keys = [
        (name.removeprefix("-"), "descending" if name.startswith("-") else "ascending")
        for name in number.view.order
    ]
    return table.sort_by(keys)


def write(place: ExportPlace, number: Number, table: pa.Table) -> None:
    """Write one number; its columns are described in the Parquet file."""
    described = pa.schema(
        [
            pa.field(field.name, field.type, metadata={"about": number.view.columns[field.name]})
            for field in table.schema
        ]
    )
    parquet, text = io.BytesIO(), io.BytesIO()
    pq.write_table(table.cast(described), parquet, compression="zstd")
    pyarrow.csv.write_csv(_without_formulas(table), text)
    place.write(f"{FOLDER}/{number.name}.parquet", parquet.getvalue())
    place.write(f"{FOLDER}/{number.name}.csv", text.getvalue())


def _sorted_by(name: str) -> Column:
    return F.desc(name.removeprefix("-")) if name.startswith("-") else F.asc(name)


def _without_formulas(table: pa.Table) -> pa.Table:
    """Quote texts of strangers that a spreadsheet would run as formulas."""
    for index, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            texts = table.column(index)
            quoted = pc.binary_join_element_wise("'", texts, "")
            is_formula = pc.match_substring_regex(texts, _FORMULA)
            table = table.set_column(index, field, pc.if_else(is_formula, quoted, texts))
    return table
