"""Writes a report: its numbers, and then the page that shows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import datetime
from typing import Final, TypeAlias

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from eventstore.log.pseudonyms import NAMING
from eventstore.parquet.files import open_place
from eventstore.parquet.opening import position_text
from projections.report import units
from projections.report.numbers import NUMBERS, compute, write
from projections.report.page import Note, page
from projections.spark.export import ExportedLog
from projections.spark.pseudonyms import pseudonymised
from projections.views import VIEWS
from projections.views.engines import recorded_ms, views_in_spark
from projections.views.span import NO_EVENTS, WITHIN_MS, Span

PAGE: Final = "report.html"
STEPS: Final = sum(view.is_basis for view in VIEWS) + len(NUMBERS) + 2
"""The ends of the log, the basis of the views, each number, and the page."""
_HIDDEN: Final = (NAMING.keys() - {"refusals"}) | {"tenant"}
"""The columns of views that name an identity or a peer; ``refusals`` is a number there."""

Progress: TypeAlias = Callable[[str], None]
"""Called after each step with the name of the next step, or of the one just written."""


class Written(msgspec.Struct, frozen=True):
    """One table of numbers that was written: its name, title and number of rows."""

    name: str
    title: str
    rows: int


class Report(msgspec.Struct, frozen=True):
    """A written report. Times are ISO 8601 in UTC; ``page`` and the numbers are below ``to``."""

    to: str
    page: str
    since: str
    until: str
    complete_until: str
    numbers: list[Written]


def write_report(  # noqa: PLR0913 - two ends of a range, and who may be named
    spark: SparkSession,
    export: ExportedLog,
    target: str,
    *,
    since_ms: int | None = None,
    until_ms: int | None = None,
    within_ms: int = WITHIN_MS,
    tenants: Mapping[str, str] | None = None,
    key: bytes | None = None,
    progress: Progress = lambda _step: None,
) -> Report:
    """Write the report on what happened from ``since_ms`` until before ``until_ms``.

    Args:
        spark: any session; ``projections.spark.session`` opens one.
        export: see ``projections.spark.export.open_export``; without pseudonyms.
        target: the folder of the report, a path or a URI; a report in it is replaced.
        since_ms: Unix milliseconds; None for the first event.
        until_ms: Unix milliseconds; None for the last event.
        within_ms: the wait that the service level is measured against.
        tenants: the tenant of each identity, by DID.
        key: replaces all DIDs by pseudonyms (``projections.spark.pseudonyms``).
        progress: called after each of the ``STEPS``.

    Raises:
        NoSuchTime: ``until_ms`` is not after ``since_ms``.
        ExportUnavailable: the folder cannot be written.
    """
    ends = recorded_ms(export, export.last)
    span = Span.of_log(*ends, export.complete_until_ms, since_ms, until_ms, within_ms)
    place = open_place(target)
    tables: dict[str, pa.Table] = {}

    def hide(frame: DataFrame) -> DataFrame:
        return frame if key is None else pseudonymised(frame, key, _HIDDEN)

    progress("messages")
    session = views_in_spark(
        spark, export.events, span or NO_EVENTS, tenants or {}, computed=progress
    )
    with closing(compute(session, hide)) as computed:
        for number, table in computed:
            write(place, number, table)
            tables[number.name] = table
            progress(number.name)
    rows = {name: table.to_pylist() for name, table in tables.items()}
    text = page(span, rows, notes(export, is_pseudonymised=key is not None))
    place.write(PAGE, text.encode())
    progress(PAGE)
    written = [Written(n.name, n.title, tables[n.name].num_rows) for n in NUMBERS]
    if span is None:
        return Report(target, PAGE, "", "", "", written)
    ends_ms = (span.since_ms, span.until_ms, span.complete_ms)
    since, until, complete = (units.utc(at_ms).isoformat() for at_ms in ends_ms)
    return Report(target, PAGE, since, until, complete, written)


def notes(export: ExportedLog, *, is_pseudonymised: bool) -> list[Note]:
    """The lines about an export: its mediator, its extent, and how far it was checked."""
    catalogs = [part.catalog for part in export.parts]
    manifests = sum(len(catalog.statements) for catalog in catalogs)
    rows = sum(catalog.rows for catalog in catalogs)
    until_ms = export.complete_until_ms
    return [
        Note("Mediator", export.head.mediator_did),
        Note(
            "Log",
            f"exported up to position {position_text(export.last)}, {units.count(rows)} rows"
            if rows
            else "no rows are exported yet",
        ),
        Note(
            "Complete until",
            "not known: the export does not say"
            if until_ms is None
            else f"{_seconds(units.utc(until_ms))} UTC; what was recorded later may be missing",
        ),
        Note(
            "Signatures",
            f"verified: {units.count(manifests)} manifest{'' if manifests == 1 else 's'}, signed"
            f" by the key {export.head.public_key}, which has to be the mediator's",
        ),
        Note("Files", _files_said(export)),
        Note(
            "Names",
            "every DID is replaced by its keyed hash; the same key gives the same ones elsewhere"
            if is_pseudonymised
            else "as they stand in the log",
        ),
    ]


def _files_said(export: ExportedLog) -> str:
    compared = "read as they are, their hashes were not compared"
    if not any(part.hashes.is_skipped for part in export.parts):
        compared = "each compared with the SHA-256 that was signed"
    return f"{compared}; the chain of the log was not: poste verify does"


def _seconds(at: datetime) -> str:
    return at.isoformat(" ", "seconds").removesuffix("+00:00")
