"""Makes the views in a connection to DuckDB."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import duckdb

from projections.views.registry import VIEWS
from projections.views.sources import span_sql, tenants_table
from projections.views.span import Span
from projections.views.view import DUCKDB, EVENTS, SPAN, TENANTS

_ALL = "all_events"


def prepare(connection: duckdb.DuckDBPyConnection, parts: Sequence[tuple[object, int]]) -> None:
    """Register the events and the functions of views in a new connection.

    ``parts`` are the rows of each database, in any form that DuckDB reads, with the last position
    that counts.
    """
    for statement in DUCKDB:
        connection.execute(statement)
    selected = []
    for number, (rows, last) in enumerate(parts):
        connection.register(f"{_ALL}_{number}", rows)
        selected.append(f"SELECT * FROM {_ALL}_{number} WHERE position <= {last}")
    connection.execute(f"CREATE VIEW {_ALL} AS {' UNION ALL '.join(selected)}")


def register_views(
    connection: duckdb.DuckDBPyConnection, span: Span, tenants: Mapping[str, str]
) -> None:
    """Make the views in a prepared connection; ``tenants`` are by identity."""
    until = f"make_timestamptz(CAST({span.until_ms} AS BIGINT) * 1000)"
    connection.register(TENANTS, tenants_table(tenants))
    connection.execute(f"CREATE VIEW {SPAN} AS {span_sql(span)}")
    connection.execute(f"CREATE VIEW {EVENTS} AS SELECT * FROM {_ALL} WHERE recorded_at < {until}")
    for view in VIEWS:
        connection.execute(f"CREATE VIEW {view.name} AS {view.sql}")
