"""``audit``: answers questions about an exported log: refusals, replays, messages that wait long.

``poste audit`` has the options and shows the answers. Each answer depends only on the log up to one
position (``events_until``). Its rows are sorted, and none has the content of a message.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Final, assert_never

import click
import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, TimestampType

from eventstore.log.pseudonyms import fingerprint
from eventstore.parquet.audit.answering import (
    Answer,
    OfRefusals,
    OfReplays,
    OfStuck,
    Period,
    Question,
)
from eventstore.parquet.audit.records import Record
from eventstore.parquet.opening import Position
from projections.spark.export import ExportedLog, open_export
from projections.spark.program import (
    explaining,
    point_in_log,
    pseudonym_key,
    session_options,
    signer_in,
)
from projections.spark.session import open_session
from projections.tables.projection import Step
from projections.tables.queues import QUEUES

REPLAYS: Final = ("DUPLICATE_NONCE", "TIMESTAMP_OUT_OF_RANGE")
"""The reasons of refused replays: while the nonce is remembered, and later. A client with a wrong
clock is refused for the second reason, too."""
_CLOCKS_DIFFER: Final = timedelta(hours=1)
EVER: Final = Period()
_TIME: Final = "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'"


def _overlaps(period: Period, first: str, last: str) -> Column:
    """Whether the time from ``first`` to ``last``, both columns, overlaps a period."""
    inside = F.lit(col=True)
    if period.since is not None:
        inside &= F.col(last) >= F.lit(period.since)
    if period.until is not None:
        inside &= F.col(first) < F.lit(period.until)
    return inside


def events_until(spark: SparkSession, export: ExportedLog, position: Position) -> Step:
    """All events up to a position."""
    events = export.events(spark, until=position)
    types = export.types(export.start, position)
    # Each audit reads one or two types, so the rare events are not selected separately.
    return Step(events, events, frozenset(), types)


def refused_commands(
    step: Step,
    period: Period = EVER,
    *,
    reasons: Collection[str] = (),
) -> DataFrame:
    """Refused commands by protocol, command, reason and sender; most refusals first.

    Args:
        step: the events.
        period: a count is taken whole if its time overlaps the period.
        reasons: only refusals for these reasons; empty for all.
    """
    counts = step.of("refusals-counted")
    if period.since is not None:
        # Counts are recorded later, by the clock of another machine: skip older files.
        counts = counts.where(F.col("recorded_at") >= F.lit(period.since) - F.lit(_CLOCKS_DIFFER))
    rows = counts.select("edge", F.explode("refusals").alias("one")).select("edge", "one.*")
    if reasons:
        rows = rows.where(F.col("reason").isin(*reasons))
    keys = ("protocol", "command", "reason", "sender_did")
    return (
        rows.where(_overlaps(period, "first_at", "last_at"))
        .groupBy(*keys)
        .agg(
            F.sum("count").alias("count"),
            F.min("first_at").alias("first_at"),
            F.max("last_at").alias("last_at"),
            F.count_distinct("edge").alias("edges"),
        )
        .orderBy(F.col("count").desc(), *keys)
    )


def queue_refusals(step: Step, period: Period = EVER) -> DataFrame:
    """How often each queue began to refuse messages, by reason; most often first."""
    keys = ("identity", "recipient_key", "reason")
    return (
        step.of("queue-refused")
        .where(_overlaps(period, "recorded_at", "recorded_at"))
        .groupBy(*keys)
        .agg(
            F.count("*").alias("count"),
            F.min("recorded_at").alias("first_at"),
            F.max("recorded_at").alias("last_at"),
        )
        .orderBy(F.col("count").desc(), *keys)
    )


def stuck_messages(
    step: Step, at_ms: int, *, older_than_s: int, deliveries_min: int, period: Period = EVER
) -> DataFrame:
    """Messages that have waited longer than a bound, or were delivered too often; worst first.

    The worst message exceeds one of the two bounds by the largest factor.

    Args:
        step: the events.
        at_ms: the time of the audit, up to which messages have waited, Unix milliseconds.
        older_than_s: the longest usual wait, in seconds; at least 1.
        deliveries_min: the fewest unacknowledged deliveries of a stuck message; at least 1.
        period: when the messages were queued.
    """
    if period.since is not None:
        # Their later events have later times, by clocks that differ little: skip older files.
        since = F.lit(period.since) - F.lit(_CLOCKS_DIFFER)
        step = replace(step, events=step.events.where(F.col("recorded_at") >= since))
    age_s = (F.lit(at_ms) - F.unix_millis("recorded_at")) / 1_000
    over = F.greatest(F.col("age_s") / older_than_s, F.col("deliveries") / deliveries_min)
    return (
        QUEUES.rebuild(step)
        .where(_overlaps(period, "recorded_at", "recorded_at"))
        .withColumn("age_s", age_s)
        .where((F.col("age_s") > older_than_s) | (F.col("deliveries") >= deliveries_min))
        .orderBy(over.desc(), "position")
        .select(
            "message_id",
            "identity",
            F.col("recorded_at").alias("queued_at"),
            "age_s",
            "deliveries",
            "delivered_at",
            "protocol",
            "sender_did",
            "recipient_key",
            "size_bytes",
            "position",
        )
    )


def _question(text: str) -> Question:
    """Parse a question in JSON.

    Raises:
        BadParameter: the text is no question.
    """
    try:
        return msgspec.json.decode(text, type=Question)
    except msgspec.MsgspecError as error:
        raise click.BadParameter(f"{error}: use poste audit") from error


@click.command("audit")
@click.argument("question", type=_question)
@session_options
@explaining()
def audit(*, question: Question, master: str | None, memory_mib: int, skip_hashes: bool) -> None:
    """Answer a QUESTION of poste audit, JSON, as JSON."""
    signer = None if question.public_key is None else signer_in(question.public_key)
    key = None if question.key_file is None else pseudonym_key(question.key_file)
    export = open_export(question.source, signer, key, skip_hashes=skip_hashes)
    as_of = None if question.as_of is None else point_in_log(question.as_of)
    position = export.position(as_of)
    with open_session(master, memory_mib=memory_mib) as spark:
        step = events_until(spark, export, position)
        at_ms = export.at_ms(position, as_of)
        frames = _frames(step, question, at_ms)
        found = {what: records(rows, question.rows_max + 1) for what, rows in frames.items()}
    answer = Answer(
        positions=position,
        at_ms=at_ms,
        signed_by=export.head.public_key,
        key_is_trusted=signer is not None,
        pseudonyms=fingerprint(key),
        found=found,
    )
    click.echo(msgspec.json.encode(answer))


def _frames(step: Step, question: Question, at_ms: int) -> Mapping[str, DataFrame]:
    """The lists that answer the question."""
    period = question.period
    match question.subject:
        case OfRefusals():
            return {
                "refused": refused_commands(step, period),
                "queues": queue_refusals(step, period),
            }
        case OfReplays():
            return {"refused": refused_commands(step, period, reasons=REPLAYS)}
        case OfStuck(older_than_s, deliveries_min):
            rows = stuck_messages(
                step,
                at_ms,
                older_than_s=older_than_s,
                deliveries_min=deliveries_min,
                period=period,
            )
            return {"messages": rows}
        case _:
            assert_never(question.subject)


def records(frame: DataFrame, rows_max: int) -> list[Record]:
    """The first rows; times as ISO 8601 in UTC."""
    plain = [_plain(F.col(f.name), f.dataType).alias(f.name) for f in frame.schema]
    return [row.asDict() for row in frame.limit(rows_max).select(*plain).collect()]


def _plain(column: Column, kind: DataType) -> Column:
    return F.date_format(column, _TIME) if isinstance(kind, TimestampType) else column
