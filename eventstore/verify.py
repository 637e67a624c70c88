"""Proves that a log is the one that was sealed: nothing changed, removed, added or moved.

Every transaction ends the rows of each partition with a seal (``eventstore.seal``) that chains
them to the partition's previous seal. Reading the log once in its order is enough to check
all of it.

What this cannot see: whole transactions that are missing from the end of a partition, since a
chain has no mark of its end. Compare ``Summary.heads`` with heads kept elsewhere (the exporter's
signed manifest), or pass those as ``known_heads``.

Memory: as ``eventstore.row_check``, and one page of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, TypeAlias
from uuid import UUID

import msgspec
from eventsourcing.persistence import Notification

from eventstore.codec import decode, partition_stream
from eventstore.errors import CorruptRow, UnknownTopic
from eventstore.log import EventLog, LogRow
from eventstore.row_check import Fault, Finding, Head, RowCheck, finding

__all__ = ["Fault", "Finding", "Head", "Progress", "Summary", "verify"]

PAGE_ROWS: Final = 256

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the position reached and the position where the check ends."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a check: what was read, and the head of each partition's chain."""

    position: int
    rows: int
    seals: int
    streams: int
    findings: int
    heads: dict[str, Head]


def verify(
    log: EventLog,
    *,
    known_heads: Mapping[str, Head] | None = None,
    progress: Progress | None = None,
) -> Iterator[Finding | Summary]:
    """Check the log up to its present end; the last item is the ``Summary``.

    Args:
        log: the log to read; others may append meanwhile.
        known_heads: heads by partition from an earlier check or export; each must be found.
        progress: called after each page of rows.

    Raises:
        LogUnavailable: the log cannot be read.
    """
    check = RowCheck(known=known_heads)
    end = log.position()
    reached = rows = findings = 0
    while reached < end:
        page = [row for row in log.read_log(after=reached, limit=PAGE_ROWS) if row.id <= end]
        if not page:
            break
        for item in _checked(page, check):
            findings += 1
            yield item
        rows += len(page)
        reached = page[-1].id
        if progress:
            progress(reached, end)
    for item in (*check.end(), *_missing_heads(check.known, end)):
        findings += 1
        yield item
    yield Summary(
        position=end,
        rows=rows,
        seals=check.seals,
        streams=len(check.versions),
        findings=findings,
        heads=check.heads,
    )


def _checked(page: Sequence[Notification], check: RowCheck) -> Sequence[Finding]:
    """What is wrong with the rows of a page, in the order of the rows."""
    findings: list[Finding] = []
    for notification in page:
        row = _log_row(notification)
        if not _is_well_formed(notification):
            findings.append(finding(Fault.MALFORMED_ROW, row, "a column does not hold its type"))
            check.take_malformed(row)
            continue
        try:
            decode(row.topic, row.state)
        except UnknownTopic:
            findings.append(finding(Fault.UNKNOWN_TOPIC, row, f"topic {row.topic!r}"))
        except CorruptRow as error:
            findings.append(finding(Fault.UNDECODABLE_STATE, row, str(error)))
        findings += check.follow([row])
    return sorted(findings, key=attrgetter("last_position"))


def _missing_heads(missing: Mapping[str, Head], end: int) -> Iterator[Finding]:
    for name, known in missing.items():
        yield Finding(
            fault=Fault.MISSING_HEAD,
            first_position=end,
            last_position=end,
            stream=partition_stream(name),
            version=known.version,
            partition=name,
            explanation=f"seal {known.version} with digest {known.digest.hex()} is not here",
        )


def _log_row(row: Notification) -> LogRow:
    stream: Any = row.originator_id
    key = stream.bytes if isinstance(stream, UUID) else stream
    return LogRow(row.id, key, row.originator_version, row.topic, row.state)


def _is_well_formed(row: Notification) -> bool:
    """Whether every column holds its type (SQLite columns take any) in the form we write."""
    columns = (row.originator_id, row.originator_version, row.topic, row.state)
    return tuple(map(type, columns)) == (UUID, int, str, bytes) and row.topic.isascii()
