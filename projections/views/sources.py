"""The log, the span and the tenants in forms that the engines read."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.dataset as ds

from eventstore.parquet.opening import DatabaseExport
from eventstore.parquet.schema import EVALUATED
from projections.views.span import Span
from projections.views.view import SPAN_COLUMNS, TENANT_COLUMNS


def event_rows(part: DatabaseExport, until: int) -> ds.Dataset:
    """The rows of a database up to a position, or a few more, for engines that read Arrow.

    Raises:
        ExportDamaged: a file is missing, or not the one that its manifest names.
        ExportUnavailable: a file cannot be read now.
    """
    files = part.files(0, until)
    part.hashes.check(part.place, files)
    paths = [part.place.full_path(file.path) for file in files]
    return ds.dataset(paths, schema=EVALUATED, filesystem=part.place.filesystem)


def span_sql(span: Span) -> str:
    """The one row of a span, in SQL for both engines."""
    numbers = zip(SPAN_COLUMNS, dataclasses.astuple(span), strict=True)
    return f"SELECT {', '.join(f'CAST({number} AS BIGINT) AS {name}' for name, number in numbers)}"


def tenants_table(tenants: Mapping[str, str]) -> pa.Table:
    """The operator's tenants, by identity."""
    columns = zip(TENANT_COLUMNS, (list(tenants), list(tenants.values())), strict=True)
    return pa.table(
        dict(columns), schema=pa.schema([(name, pa.string()) for name in TENANT_COLUMNS])
    )
