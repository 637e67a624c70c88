"""Compares the end of an export with the log that it was made from."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from eventstore.log.codec import decode
from eventstore.log.errors import CorruptRow
from eventstore.log.event_log import EventLog
from eventstore.log.events import SEAL_TOPIC
from eventstore.log.verify import Fault, heads_not_in
from eventstore.parquet.errors import Damage
from eventstore.parquet.files import END
from eventstore.parquet.verify.findings import ExportFinding, ExportSummary

_ROWS: Final = 1_024
_BYTES: Final = 4 * 1024 * 1024


def compare_end(
    log: EventLog, summary: ExportSummary, *, recorded_before_ms: int
) -> Iterator[ExportFinding]:
    """What the log has and the export should have, and the other way round.

    Args:
        log: the log that the export is of.
        summary: of the check of the export.
        recorded_before_ms: Unix milliseconds; a transaction that was recorded later may be missing.

    Raises:
        LogUnavailable: the log cannot be read now.
        CorruptRow: the row behind the end of the export is not one.
    """
    for name, head in heads_not_in(log, summary.heads).items():
        yield ExportFinding(
            fault=Fault.WRONG_HEAD,
            path=END,
            shard=name,
            version=head.version,
            explanation=f"the log beside the export lacks its seal {head.version}",
        )
    found = _first_seal(log, after=summary.position)
    if found is None or found[1] >= recorded_before_ms:
        return
    last, at_ms = found
    at = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")
    why = f"the log beside it goes on to position {log.position()}; what follows the export"
    yield ExportFinding(
        fault=Damage.ENDS_EARLY,
        path=END,
        first_position=summary.position + 1,
        last_position=last,
        explanation=f"{why} was recorded at {at}",
    )


def _first_seal(log: EventLog, *, after: int) -> tuple[int, int] | None:
    """The position of the first seal behind another one, and when it was recorded; None: no seal.

    The rows of one transaction can be many pages.
    """
    while page := log.read_rows(after=after, rows_max=_ROWS, bytes_max=_BYTES):
        for row in page:
            if row.topic != SEAL_TOPIC:
                continue
            try:
                return row.position, decode(row.topic, row.state).at_ms
            except CorruptRow:
                return None  # poste log verify says what is wrong there
        after = page[-1].position
    return None
