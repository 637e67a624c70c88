"""The views in a Spark session of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's users know

from projections.views.registry import VIEWS
from projections.views.sources import span_sql, tenants_table
from projections.views.span import Span
from projections.views.view import EVENTS, SPAN, TENANTS

_OF_ITS_OWN: Final = ("spark.sql.shuffle.partitions",)
"""What a session does not take over from another one of the same Spark by itself."""


def recorded_ms(events: DataFrame) -> tuple[int | None, int | None]:
    """When the first and the last of these events were recorded, Unix milliseconds."""
    at_ms = F.unix_millis("recorded_at")
    found = events.agg(F.min(at_ms), F.max(at_ms)).first()
    return (None, None) if found is None else (found[0], found[1])


def events_before(events: DataFrame, until_ms: int) -> DataFrame:
    """Those that were recorded before; the condition is one that the files' statistics answer."""
    return events.where(F.col("recorded_at") < F.timestamp_millis(F.lit(until_ms)))


def views_in_spark(
    spark: SparkSession,
    events: Callable[[SparkSession], DataFrame],
    span: Span,
    tenants: Mapping[str, str],
    *,
    computed: Callable[[str], None] | None = None,
) -> SparkSession:
    """A session of the same Spark that has the views, and names of its own alone.

    Args:
        spark: any session.
        events: reads the rows of the log by a session.
        span: what the views are about.
        tenants: the operator's list of them, by identity.
        computed: for who reads many of them: what they stand on is computed now and kept by Spark,
            and this is called with the name of each. None computes nothing yet.
    """
    session = spark.newSession()
    for name in _OF_ITS_OWN:
        session.conf.set(name, spark.conf.get(name))
    sources = {
        EVENTS: events_before(events(session), span.until_ms),
        SPAN: session.sql(span_sql(span)),
        # By Arrow: rows of Python would need processes of Python to read them.
        TENANTS: session.createDataFrame(tenants_table(tenants)),
    }
    for name, rows in sources.items():
        rows.createOrReplaceTempView(name)
    for view in VIEWS:
        rows = session.sql(view.sql)
        if computed is not None and view.is_basis:
            # Not merely cached: each plan would still have all of this one in it.
            rows = rows.localCheckpoint()
            computed(view.name)
        rows.createOrReplaceTempView(view.name)
    return session
