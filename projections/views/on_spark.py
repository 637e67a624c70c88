"""Makes the views in a Spark session of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's users know

from projections.views import VIEWS
from projections.views.sources import span_sql, tenants_table
from projections.views.span import Span
from projections.views.view import EVENTS, SPAN, TENANTS

_OF_ITS_OWN: Final = ("spark.sql.shuffle.partitions",)
"""Settings that a new session does not take over from another session of the same Spark."""


def recorded_ms(events: DataFrame) -> tuple[int | None, int | None]:
    """When the first and the last of these events were recorded, Unix milliseconds."""
    at_ms = F.unix_millis("recorded_at")
    found = events.agg(F.min(at_ms), F.max(at_ms)).first()
    return (None, None) if found is None else (found[0], found[1])


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
    for name in _OF_ITS_OWN:
        session.conf.set(name, spark.conf.get(name))
    session.conf.set("spark.sql.session.timeZone", "UTC")  # in which weeks begin, as in DuckDB
    until = F.timestamp_millis(F.lit(span.until_ms))  # which the files' statistics can answer
    sources = {
        EVENTS: events(session).where(F.col("recorded_at") < until),
        SPAN: session.sql(span_sql(span)),
        # By Arrow: Python rows would need Python processes to read them.
        TENANTS: session.createDataFrame(tenants_table(tenants)),
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
