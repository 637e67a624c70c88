"""``audit``: answers questions about an exported log with Spark.

``poste audit`` has the options and shows the answers. It starts this program for questions that
read much, and with ``--master`` for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, assert_never

import click
import msgspec
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's users know
from pyspark.sql.types import BinaryType, DataType, DateType, TimestampType

from eventstore.log.pseudonyms import PREFIX, fingerprint, pseudonym_of
from eventstore.parquet.audit.answering import (
    Answer,
    OfIdentity,
    OfMessage,
    OfRefusals,
    OfReplays,
    OfStuck,
    Question,
    Subject,
)
from eventstore.parquet.audit.records import Record, whole_life
from projections.audit.identity import identity_history, identity_traffic
from projections.audit.messages import (
    REPLAYS,
    AuditPeriod,
    events_until,
    message_life,
    queue_refusals,
    refused_commands,
    stuck_messages,
)
from projections.spark.export import ExportedLog
from projections.spark.program import (
    explaining,
    open_named,
    point_in_log,
    pseudonym_key,
    session_options,
    signer_in,
)
from projections.spark.session import open_session
from projections.tables.projection import Step

_MS: Final = 1_000
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
def audit(*, question: Question, master: str | None, memory_mib: int) -> None:
    """Answer a QUESTION of poste audit, JSON, as JSON."""
    signer = None if question.public_key is None else signer_in(question.public_key)
    key = None if question.key_file is None else pseudonym_key(question.key_file)
    as_of = None if question.as_of is None else point_in_log(question.as_of)
    export = open_named(question.source, signer, key)
    position = export.position(as_of)
    with open_session(master, memory_mib=memory_mib) as spark:
        step = events_until(spark, export, position)
        at_ms = round(as_of.timestamp() * _MS) if isinstance(as_of, datetime) else step.at_ms
        name, frames = _frames(step, question.subject, at_ms, key)
        found = {what: records(rows, question.rows_max + 1) for what, rows in frames.items()}
        if isinstance(question.subject, OfMessage):
            found["events"] = whole_life([_as_proven(e, export) for e in found["events"]])
    answer = Answer(
        name=name,
        positions=list(position),
        at_ms=at_ms,
        signed_by=export.head.public_key,
        key_is_trusted=signer is not None,
        pseudonyms=fingerprint(key),
        found=found,
    )
    click.echo(msgspec.json.encode(answer))


def _as_proven(event: Record, export: ExportedLog) -> Record:
    """An event of a message, without its seal if its row is in the pruned part."""
    if event["position"] > export.pruned_to[event.get("database", 0)]:
        return event
    return event | dict.fromkeys(("seal_position", "seal_version", "seal_digest"))


def _frames(
    step: Step, subject: Subject, at_ms: int, key: bytes | None
) -> tuple[str, Mapping[str, DataFrame]]:
    """The subject's name as in the rows, and the lists that answer the question."""
    match subject:
        case OfMessage(message_id):
            return message_id, {"events": message_life(step, message_id)}
        case OfIdentity(did):
            name = did if key is None or did.startswith(PREFIX) else pseudonym_of(did, key)
            return name, {
                "history": identity_history(step, name),
                "traffic": identity_traffic(step, name),
                "refused": refused_commands(step, sender_did=name),
            }
        case OfRefusals(since=since, until=until):
            period = AuditPeriod(since, until)
            return "", {
                "refused": refused_commands(step, period),
                "queues": queue_refusals(step, period),
            }
        case OfReplays(since=since, until=until):
            rows = refused_commands(step, AuditPeriod(since, until), reasons=REPLAYS)
            return "", {"refused": rows}
        case OfStuck():
            rows = stuck_messages(
                step,
                at_ms,
                older_than_s=subject.older_than_s,
                deliveries_min=subject.deliveries_min,
                period=AuditPeriod(subject.since, subject.until),
            )
            return "", {"messages": rows}
        case _:
            assert_never(subject)


def records(frame: DataFrame, rows_max: int) -> list[Record]:
    """The first rows; times as ISO 8601 in UTC, digests as hex digits, structs without nulls."""
    plain = [_plain(F.col(f.name), f.dataType).alias(f.name) for f in frame.schema]
    return [_record(row) for row in frame.limit(rows_max).select(*plain).collect()]


def _plain(column: Column, kind: DataType) -> Column:
    match kind:
        case TimestampType():
            return F.date_format(column, _TIME)
        case DateType():
            return column.cast("string")
        case BinaryType():
            return F.lower(F.hex(column))
        case _:
            return column


def _record(row: Row) -> Record:
    return {name: _members(value) for name, value in row.asDict().items()}


def _members(value: Any) -> Any:
    if isinstance(value, Row):
        return {name: member for name, member in value.asDict().items() if member is not None}
    return value
