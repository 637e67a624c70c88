"""``audit``: answers questions about an exported log with Spark.

``poste audit`` has the options and shows the answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, assert_never

import click
import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's users know
from pyspark.sql.types import DataType, TimestampType

from eventstore.log.pseudonyms import fingerprint
from eventstore.parquet.audit.answering import (
    Answer,
    OfRefusals,
    OfReplays,
    OfStuck,
    Question,
)
from eventstore.parquet.audit.records import Record
from projections.audit.messages import (
    REPLAYS,
    events_until,
    queue_refusals,
    refused_commands,
    stuck_messages,
)
from projections.spark.export import open_export
from projections.spark.program import (
    explaining,
    point_in_log,
    pseudonym_key,
    session_options,
    signer_in,
)
from projections.spark.session import open_session
from projections.tables.projection import Step

_TIME: Final = "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'"


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
