"""The check of a log with its archive: the archive has the rows that left, and the chains meet.

The archive is checked like any export (``eventstore.parquet.verify.export``): its seals form one
chain for each partition, from the first one on. The log's chains go on after the seam. The seam
names the newest seals before it, which tie the two together: the rows of the archive up to the
seam's position have to end with these seals. An archive that is the export has later rows, too, and
the log must have their seals: otherwise its end was cut off. An archive that was pruned beyond the
seam of an earlier log, from a backup, is tied to it where the pruned part ends (``meeting``).

That rows stayed as they were is only what the seam says, which the holder of the mediator's key
can sign anew. The archive has these rows under seals, so they are compared with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, takewhile
from operator import attrgetter
from typing import Final
from uuid import UUID

from msgspec.structs import replace

from actors.archive.leaving_kinds import (
    CONTRACT_ENDS,
    CONTRACTS,
    RECORDS,
    REMOVING,
    REPLACED,
    TRAFFIC,
    added_by,
    rank_of,
    removed_by,
)
from actors.archive.same_rows import is_same
from eventstore.log.codec import decode_or_none
from eventstore.log.errors import CorruptRow, NotAsSealed
from eventstore.log.event_log import LogReader, LogRow
from eventstore.log.events import (
    BatchSealed,
    IdentityErasureBegun,
    MessageExpirySet,
    topics_of,
)
from eventstore.log.faults import Fault, Head
from eventstore.log.public_key import PublicKey
from eventstore.log.row_check import RowCheck, require_types
from eventstore.log.seam import Seam, stored_seam
from eventstore.parquet.catalog import Catalog, catalog_of
from eventstore.parquet.errors import Damage
from eventstore.parquet.files import END, ExportPlace
from eventstore.parquet.manifest import Manifest, heads_of
from eventstore.parquet.rows import exported_sections, manifest_rows
from eventstore.parquet.verify.against_log import compare_end
from eventstore.parquet.verify.export import Progress, verify_export
from eventstore.parquet.verify.findings import ExportFinding, ExportSummary
from eventstore.parquet.verify.mark import VerifiedMarks
from eventstore.stores.restore import LogSection

_MAY_BE_PRUNED: Final = TRAFFIC | topics_of(BatchSealed)
"""What may leave the log, and be removed from the archive (``actors.archive.unneeded_rows``)."""
_MAY_LEAVE: Final = _MAY_BE_PRUNED | RECORDS | CONTRACT_ENDS | REPLACED
_ENDING: Final = REMOVING | REPLACED
"""The events after which others of their stream may leave."""
_WATCHED: Final = RECORDS | _ENDING | topics_of(MessageExpirySet)
_FIRST: Final = 1


def check_archive(
    log: LogReader,
    place: ExportPlace,
    seam: Seam,
    key: PublicKey,
    *,
    marks: VerifiedMarks | None,
    progress: Progress | None = None,
) -> Iterator[ExportFinding | ExportSummary]:
    """Check an archive, and that it agrees with log and seam; yield findings, then the summary.

    Rows that ``marks`` say were verified before are not read again. If all rows are read, those
    that stayed in the log are compared with them.

    Raises:
        ExportUnavailable: the archive cannot be read now.
        LogUnavailable: the log cannot be read now.
        ExportDamaged: the archive changed meanwhile.
    """
    summary: ExportSummary | None = None
    is_sound = True
    for item in verify_export(place, key, marks=marks, progress=progress):
        if isinstance(item, ExportSummary):
            summary = item
        else:
            is_sound = False
            yield item
    assert summary is not None
    if summary.position < seam.position:
        why = (
            f"it ends at position {summary.position}, but rows up to {seam.position} have"
            " left the log"
        )
        yield _finding(Damage.ENDS_EARLY, seam, why)
    elif is_sound:
        catalog = catalog_of(place, key.verify, is_whole=True)
        # The check of the log reports such a row.
        with suppress(CorruptRow, NotAsSealed):
            met = meeting(log, seam, catalog)
            if heads_at(place, catalog, met.position) != met.heads:
                why = f"its newest seals at position {met.position} are not those of the log"
                yield _finding(Fault.WRONG_SEAM, met, why)
            elif not summary.verified_before_up_to:
                yield from _rows_that_differ(log, place, catalog, seam, met.position)
    # Rows of the log that the archive lacks are no fault.
    yield from compare_end(log, summary, recorded_before_ms=0)
    yield summary


def meeting(log: LogReader, seam: Seam, catalog: Catalog) -> Seam:
    """The seam, or the end of what was pruned of the archive if that is later, as a seam there.

    It is later for a log from a backup. The newest seals there follow from the rows of the log,
    which has all behind its seam; those of a log that ends before are not those of the archive.

    Raises:
        LogUnavailable: the log cannot be read now.
        CorruptRow, NotAsSealed: it cannot be read beyond a row.
    """
    end = catalog.pruned_up_to
    if end <= seam.position:
        return seam
    rows = takewhile(lambda row: row.position <= end, log.rows_after(seam.position))
    heads = _heads_after(seam.heads, seam.position, map(_typed, rows))
    return replace(seam, position=end, heads=heads)


def _typed(row: LogRow) -> LogRow:
    require_types(row)
    return row


def heads_at(place: ExportPlace, catalog: Catalog, position: int) -> Mapping[str, Head]:
    """The newest seals in the rows of an export up to a position that the export contains.

    Only the rows of the manifest with the position are read; ``catalog`` has the heads of all.

    Raises:
        ExportDamaged, ExportUnavailable: as ``manifest_rows``.
    """
    before: Mapping[str, Head] = {}
    for statement in catalog.statements:
        manifest = statement.manifest
        if manifest.last > position:
            return _heads_within(place, manifest, before, position)
        before = heads_of(manifest.path, manifest)
    return before


def sections_to(place: ExportPlace, catalog: Catalog, seam: Seam) -> Iterator[LogSection]:
    """The rows of an archive up to the seam; the last section has the heads that the seam names.

    ``catalog`` has every manifest with its heads. Raises as ``exported_sections``.
    """
    for section in exported_sections(place, catalog, seam.position):
        if section.rows[-1].position < seam.position:
            yield section
            continue
        rows = [row for row in section.rows if row.position <= seam.position]
        yield section._replace(rows=rows, heads=seam.heads)
        return


def _heads_within(
    place: ExportPlace, manifest: Manifest, before: Mapping[str, Head], position: int
) -> Mapping[str, Head]:
    if manifest.first > position:
        return before
    rows = chain.from_iterable(manifest_rows(place, manifest))
    within = takewhile(lambda row: row.position <= position, rows)
    return _heads_after(before, manifest.first - 1, within)


def _heads_after(
    before: Mapping[str, Head], part_after: int, rows: Iterable[LogRow]
) -> Mapping[str, Head]:
    check = RowCheck(heads=before, part_after=part_after)
    for _ in check.follow(rows):
        return {}  # a seal does not fit, so these heads are no one's
    return check.heads


def _rows_that_differ(
    log: LogReader, place: ExportPlace, catalog: Catalog, seam: Seam, until: int
) -> Iterator[ExportFinding]:
    """Compare the rows up to ``until`` with the archive: one finding for each section of it.

    Rows that are in both have to be the same. Only rows that may leave are in the archive alone,
    and only rows that may be pruned in the log alone, before the pruning's end.

    Raises:
        ExportDamaged, ExportUnavailable: as ``exported_sections``.
        LogUnavailable, CorruptRow: the log cannot be read now, or not beyond a row.
    """
    left = _Left()
    rest = log.rows_after(0)
    row = next(rest, None)
    for section in exported_sections(place, catalog, until):
        last = min(section.rows[-1].position, until)
        stayed = {}
        while row is not None and row.position <= last:
            stayed[row.position] = row
            row = next(rest, None)
        archived = {row.position: row for row in section.rows if row.position <= last}
        either = {**archived, **stayed}
        wrong = [
            either[position]
            for position in sorted(either)
            if not _may_be(stayed.get(position), archived.get(position), is_pruned=section.is_rest)
        ]
        if wrong:
            yield _differ(wrong)
        for position, one in archived.items():
            left.take(one, is_in_log=position in stayed)
    lost = left.without_reason(log)
    if lost and stored_seam(log) == seam:  # otherwise they left meanwhile
        yield _differ(lost)


def _may_be(stayed: LogRow | None, archived: LogRow | None, *, is_pruned: bool) -> bool:
    """Whether a log and its archive may have these rows at one position."""
    if stayed and archived:
        return is_same(stayed, archived)
    if archived:
        return archived.version != _FIRST and archived.topic in _MAY_LEAVE
    assert stayed
    return is_pruned and stayed.version != _FIRST and stayed.topic in _MAY_BE_PRUNED


class _Left:
    """Rows that have left the log, until the row is read after which they may leave.

    A record, and the time at which a message expires, leaves only when a row has removed the
    record, and a row that a later one stands for when that is read (``leaving_kinds``); the end of
    a contract leaves only after the contract. Memory: as many as waited at one time.
    """

    def __init__(self) -> None:
        self._records: dict[bytes, dict[str, LogRow]] = {}
        """By stream, then by the id of the record."""
        self._replaced: dict[tuple[bytes, str], tuple[LogRow, float]] = {}
        """By stream and topic, each with its rank."""
        self._alone: list[LogRow] = []
        """Ends of contracts whose contract stayed."""

    def take(self, row: LogRow, *, is_in_log: bool) -> None:
        """Take the next row of the archive."""
        event = decode_or_none(row.topic, row.state) if row.topic in _WATCHED else None
        if event is None:
            return
        place = LogRow(row.position, row.stream, row.version, row.topic, b"")
        if row.topic in REPLACED:
            self._take_replaced(place, rank_of(event, row.version), is_in_log=is_in_log)
            return
        left, added = self._records.pop(row.stream, {}), added_by(event)
        gone = [left.pop(record_id, None) for record_id in (*removed_by(event), *added)]
        if row.topic in CONTRACT_ENDS and not is_in_log and None in gone:
            self._alone.append(place)
        if isinstance(event, IdentityErasureBegun):
            left = {i: one for i, one in left.items() if not _is_ended(one, row)}
        elif isinstance(event, MessageExpirySet) and not is_in_log:
            for message_id in event.message_ids:
                left.setdefault(message_id, place)
        elif not is_in_log:
            left.update(dict.fromkeys(added, place))
        if left:
            self._records[row.stream] = left

    def _take_replaced(self, row: LogRow, rank: float, *, is_in_log: bool) -> None:
        kind = row.stream, row.topic
        if kind in self._replaced:
            left, left_rank = self._replaced[kind]
            if row.version <= left.version or rank <= left_rank:
                return
            del self._replaced[kind]
        if not is_in_log:
            self._replaced[kind] = row, rank

    def without_reason(self, log: LogReader) -> Sequence[LogRow]:
        """The rows after which no such row was taken, nor follows in the log."""
        for stream in {*self._records, *(stream for stream, _ in self._replaced)}:
            for row in log.stream_rows(UUID(bytes=stream), topics=_ENDING):
                self.take(row, is_in_log=True)
        records = chain.from_iterable(left.values() for left in self._records.values())
        replaced = (row for row, _ in self._replaced.values())
        return sorted([*records, *replaced, *self._alone], key=attrgetter("position"))


def _is_ended(row: LogRow, erasure: LogRow) -> bool:
    """Whether the beginning of an erasure ended the record of a row: it ends all contracts."""
    return row.topic in CONTRACTS and row.version < erasure.version


def _differ(rows: Sequence[LogRow]) -> ExportFinding:
    first = rows[0]
    return ExportFinding(
        fault=Fault.WRONG_REST,
        path=END,
        first_position=first.position,
        last_position=first.position,
        stream=UUID(bytes=first.stream),
        version=first.version,
        explanation=(
            "log and archive differ in this row, which stays in both; up to position"
            f" {rows[-1].position} they differ in {len(rows)} rows"
        ),
    )


def _finding(fault: Damage | Fault, seam: Seam, why: str) -> ExportFinding:
    return ExportFinding(
        fault=fault, path=END, first_position=1, last_position=seam.position, explanation=why
    )
