"""The span and the tenants as engines take them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pyarrow as pa

from projections.views.span import Span
from projections.views.view import SPAN_COLUMNS, TENANT_COLUMNS


def span_sql(span: Span) -> str:
    """The one row of a span, as SQL of both engines."""
    numbers = zip(SPAN_COLUMNS, dataclasses.astuple(span), strict=True)
    return f"SELECT {', '.join(f'CAST({number} AS BIGINT) AS {name}' for name, number in numbers)}"


def tenants_table(tenants: Mapping[str, str]) -> pa.Table:
    """The operator's tenants, by identity."""
    columns = zip(TENANT_COLUMNS, (list(tenants), list(tenants.values())), strict=True)
    return pa.table(
        dict(columns), schema=pa.schema([(name, pa.string()) for name in TENANT_COLUMNS])
    )
