"""Makes the views in Spark and in DuckDB, over the rows of an export; imports neither."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from eventstore.parquet.errors import ExportUnavailable
from eventstore.parquet.opening import DatabaseExport, OpenedExport, Position
from eventstore.parquet.schema import EVALUATED
from projections.views import VIEWS
from projections.views.span import Span
from projections.views.view import DUCKDB, EVENTS, SPAN, SPAN_COLUMNS, TENANT_COLUMNS, TENANTS

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from pyspark.sql import DataFrame, SparkSession

_ALL: Final = "all_events"


def views_in_spark(
    spark: SparkSession,
    events: Callable[[SparkSession], DataFrame],
    span: Span,
    tenants: Mapping[str, str],
    *,
    computed: Callable[[str], None] | None = None,
) -> SparkSession:
    """Make a session of the same Spark with the views, whose names no other session sees.

    Args:
        spark: any session.
        events: reads the rows of the log by a session.
        span: what the views are about.
        tenants: the operator's list of tenants, by identity.
        computed: for callers that read many views: compute their bases now, have Spark keep them,
            and call this with the name of each. None computes nothing yet.
    """
    session = spark.newSession()
    parts = "spark.sql.shuffle.partitions"  # which a new session does not take over
    session.conf.set(parts, spark.conf.get(parts))
    session.conf.set("spark.sql.session.timeZone", "UTC")  # in which weeks begin, as in DuckDB
    sources = {
        # A time, and not its milliseconds: the files' statistics can answer it.
        EVENTS: events(session).where(f"recorded_at < timestamp_millis({span.until_ms})"),
        SPAN: session.sql(_span_sql(span)),
        # By Arrow: Python rows would need Python processes to read them.
        TENANTS: session.createDataFrame(_tenants_table(tenants)),
    }
    for name, rows in sources.items():
        rows.createOrReplaceTempView(name)
    for view in VIEWS:
        rows = session.sql(view.sql)
        if computed is not None and view.is_basis:
            # Not just cached: each later plan would then still include this one.
            rows = rows.localCheckpoint()
            computed(view.name)
        rows.createOrReplaceTempView(view.name)
    return session


def views_in_duckdb(
    connection: DuckDBPyConnection,
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
    connection.execute(f"CREATE VIEW {SPAN} AS {_span_sql(span)}")
    connection.register(TENANTS, _tenants_table(tenants))
    for view in VIEWS:
        connection.execute(f"CREATE VIEW {view.name} AS {view.sql}")


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


def recorded_ms(export: OpenedExport, until: Position) -> tuple[int | None, int | None]:
    """When the first and the last event up to a position were recorded, Unix milliseconds.

    None if there are no events.

    Raises:
        ExportDamaged: as ``event_rows``.
        ExportUnavailable: a file cannot be read now, or not decoded if its hash was not compared.
    """
    ends: list[int] = []
    for part, last in zip(export.parts, until, strict=True):
        wanted = ds.field("position") <= last
        try:
            for batch in event_rows(part, last).to_batches(columns=["recorded_at"], filter=wanted):
                if batch.num_rows:
                    ends += [end.value // 1000 for end in pc.min_max(batch.column(0)).values()]
        except (OSError, pa.ArrowException) as error:
            raise ExportUnavailable(part.place.address(), str(error).strip()) from error
    return min(ends, default=None), max(ends, default=None)


def _span_sql(span: Span) -> str:
    """The one row of a span, in SQL for both engines."""
    numbers = zip(SPAN_COLUMNS, dataclasses.astuple(span), strict=True)
    return f"SELECT {', '.join(f'CAST({number} AS BIGINT) AS {name}' for name, number in numbers)}"


def _tenants_table(tenants: Mapping[str, str]) -> pa.Table:
    columns = zip(TENANT_COLUMNS, (list(tenants), list(tenants.values())), strict=True)
    return pa.table(
        dict(columns), schema=pa.schema([(name, pa.string()) for name in TENANT_COLUMNS])
    )
