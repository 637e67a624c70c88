"""Writes a report: its numbers, and then the page that shows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's users know

from eventstore.parquet.files import open_place
from projections.errors import USAGE, ProjectionError
from projections.report import units
from projections.report.facts import gather
from projections.report.numbers import NUMBERS, compute, plain, write
from projections.report.page import page
from projections.report.provenance import notes
from projections.report.span import Span
from projections.spark.export import ExportedLog
from projections.spark.pseudonyms import pseudonymised

PAGE: Final = "report.html"
_NOTHING: Final = Span(0, 1)
"""The span over an export without events: nothing is in it."""

STEPS: Final = len(NUMBERS) + 2
"""The messages, each number, the page."""
Progress: TypeAlias = Callable[[str], None]
"""Called after each step with the name of what comes next, or what was last written."""


class NoSuchTime(ProjectionError):
    """The time of the report ends before it begins."""

    exit_code = USAGE


class Written(msgspec.Struct, frozen=True):
    """One table of numbers that was written: its rows, and what it is."""

    name: str
    title: str
    rows: int


class Report(msgspec.Struct, frozen=True):
    """What was written. Times are ISO 8601 in UTC; ``page`` and the numbers are below ``to``."""

    to: str
    page: str
    since: str
    until: str
    numbers: list[Written]


def write_report(  # noqa: PLR0913 - two ends of a range, and who may be named
    spark: SparkSession,
    export: ExportedLog,
    target: str,
    *,
    since_ms: int | None = None,
    until_ms: int | None = None,
    key: bytes | None = None,
    progress: Progress = lambda _step: None,
) -> Report:
    """Write the report on what happened from ``since_ms`` until before ``until_ms``.

    Args:
        spark: any session; ``projections.spark.session`` opens one.
        export: see ``projections.report.provenance.open_signed_export``; without pseudonyms.
        target: folder of the report, a path or a URI; a report in it is replaced.
        since_ms: Unix milliseconds; None for the first event.
        until_ms: Unix milliseconds; None for the last event.
        key: replaces all DIDs by pseudonyms (``projections.spark.pseudonyms``).
        progress: called after each of the ``STEPS``.

    Raises:
        NoSuchTime: ``until_ms`` is not after ``since_ms``.
        ExportUnavailable: the folder cannot be written.
    """
    span = _span(spark, export, since_ms, until_ms)
    place = open_place(target)
    tables: dict[str, pa.Table] = {}

    def hide(frame: DataFrame, columns: Sequence[str]) -> DataFrame:
        return frame if key is None or not columns else pseudonymised(frame, key, columns)

    with gather(spark, export, span or _NOTHING) as facts:
        progress("numbers")
        for number, table in compute(facts, hide):
            write(place, number, table)
            tables[number.name] = table
            progress(number.name)
    text = page(span, plain(tables), notes(export, is_pseudonymised=key is not None))
    place.write(PAGE, text.encode())
    progress(PAGE)
    since, until = _ends(span)
    written = [Written(n.name, n.title, tables[n.name].num_rows) for n in NUMBERS]
    return Report(target, PAGE, since, until, written)


def _ends(span: Span | None) -> tuple[str, str]:
    if span is None:
        return "", ""
    return units.utc(span.since_ms).isoformat(), units.utc(span.until_ms).isoformat()


def _span(
    spark: SparkSession, export: ExportedLog, since_ms: int | None, until_ms: int | None
) -> Span | None:
    """The range; what is not given is where the log begins and ends. None if it is empty."""
    if since_ms is None or until_ms is None:
        at_ms = F.unix_millis("recorded_at")
        found = export.events(spark).agg(F.min(at_ms), F.max(at_ms)).first()
        first, last = found if found is not None else (None, None)
        if first is None or last is None:
            return None
        since_ms = int(first) if since_ms is None else since_ms
        until_ms = int(last) + 1 if until_ms is None else until_ms
    if until_ms <= since_ms:
        shown = [units.utc(at_ms).isoformat() for at_ms in (since_ms, until_ms)]
        raise NoSuchTime(f"the time from {shown[0]} until {shown[1]} is empty")
    return Span(since_ms, until_ms)
