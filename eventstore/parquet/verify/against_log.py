"""Compares an export with the constants and the end of the log from which it was made."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from eventstore.log.codec import decode
from eventstore.log.errors import CorruptRow
from eventstore.log.event_log import LogReader
from eventstore.log.events import SEAL_TOPIC
from eventstore.log.faults import Fault
from eventstore.log.verify import heads_not_in
from eventstore.parquet.errors import Damage
from eventstore.parquet.files import END, HEAD
from eventstore.parquet.verify.findings import ExportFinding, ExportSummary, file_finding


def compare_end(
    log: LogReader, summary: ExportSummary, *, recorded_before_ms: int
) -> Iterator[ExportFinding]:
    """Yield what the export lacks at its end although the log has it, and the other way round.

    No seal covers the constants of a log: they are compared with ``export.json``, which is signed.

    Args:
        log: the log of the export.
        summary: the summary of the export's check.
        recorded_before_ms: Unix milliseconds; transactions recorded later may be missing.

    Raises:
        LogUnavailable: the log cannot be read now.
        CorruptRow: the row after the end of the export is corrupt.
    """
    yield from _other_constants(log, summary)
    for name, head in heads_not_in(log, summary.heads).items():
        yield ExportFinding(
            fault=Fault.WRONG_HEAD,
            path=END,
            shard=name,
            version=head.version,
            explanation=(
                f"the log beside the export lacks its seal {head.version}: its end was cut off, or"
                " an earlier log was put back"
            ),
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


def _other_constants(log: LogReader, summary: ExportSummary) -> Iterator[ExportFinding]:
    constants = log.settings()
    for name, said in (
        ("mediator_did", summary.mediator_did),
        ("mediator_key", summary.signed_by),
        ("shards", str(summary.shards or "")),
    ):
        found = constants.get(name, said)
        if said and found != said:
            why = f"it says {name} {said}, but the log beside it {found}: the log was changed"
            yield file_finding(HEAD, Damage.MISPLACED, why)


def _first_seal(log: LogReader, *, after: int) -> tuple[int, int] | None:
    """The position of the first seal after a position, and its time; None if there is none."""
    for row in log.rows_after(after):
        if row.topic == SEAL_TOPIC:
            try:
                return row.position, decode(row.topic, row.state).at_ms
            except CorruptRow:
                return None  # poste log verify reports the damage
    return None
