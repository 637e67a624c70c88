"""Makes the views in a connection to DuckDB."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import duckdb

from projections.views import VIEWS
from projections.views.sources import span_sql, tenants_table
from projections.views.span import Span
from projections.views.view import DUCKDB, EVENTS, SPAN, TENANTS

_ALL = "all_events"


def views_in_duckdb(
    connection: duckdb.DuckDBPyConnection,
    parts: Sequence[tuple[object, int]],
    span: Span,
    tenants: Mapping[str, str],
) -> None:
    """Make the views in a new connection.

    Args:
        connection: the connection.
        parts: the rows of each database, in any form that DuckDB reads, with the last position
            that counts.
        span: what the views are about.
        tenants: the operator's list of tenants, by identity.
    """
    for statement in DUCKDB:
        connection.execute(statement)
    until = f"make_timestamptz(CAST({span.until_ms} AS BIGINT) * 1000)"
    selected = []
    for number, (rows, last) in enumerate(parts):
        connection.register(f"{_ALL}_{number}", rows)
        is_before = f"position <= {last} AND recorded_at < {until}"
        selected.append(f"SELECT * FROM {_ALL}_{number} WHERE {is_before}")
    connection.execute(f"CREATE VIEW {EVENTS} AS {' UNION ALL '.join(selected)}")
    connection.execute(f"CREATE VIEW {SPAN} AS {span_sql(span)}")
    connection.register(TENANTS, tenants_table(tenants))
    for view in VIEWS:
        connection.execute(f"CREATE VIEW {view.name} AS {view.sql}")
