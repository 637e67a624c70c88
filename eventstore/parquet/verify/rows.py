"""Checks the rows of one manifest: their seals, versions and columns, and the heads after them.

The check does not need earlier rows: a manifest starts after a seal, and the one before it has the
heads. The check returns where the rows begin and end in each stream (``Streams``), to be compared
with the manifests around it (``eventstore.parquet.verify.export``).

Memory: the rows of one manifest as Arrow, those of one page as Python objects.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final, NamedTuple
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from eventstore.log.codec import content_fault, decode_or_none, decode_rows
from eventstore.log.errors import CorruptRow, UnknownTopic
from eventstore.log.event_log import LogRow
from eventstore.log.events import SEAL_TOPIC, SEAL_TYPE, BatchSealed
from eventstore.log.faults import Fault, Finding, Head, finding
from eventstore.log.name_check import NameCheck, missing_name
from eventstore.log.row_check import RowCheck
from eventstore.log.streams import is_same_name
from eventstore.log.tree_head import seal_leaf
from eventstore.parquet.columns import identity_of, shards_of
from eventstore.parquet.errors import Damage, ExportUnavailable
from eventstore.parquet.files import ExportPlace, FileMissing
from eventstore.parquet.index import entries_of
from eventstore.parquet.rows import log_rows
from eventstore.parquet.verify.columns import Events, check_columns
from eventstore.parquet.verify.file import ReadFile, read_file
from eventstore.parquet.verify.findings import ExportFinding, file_finding
from eventstore.parquet.verify.manifests import ManifestPart


class NumberedRows:
    """The rows of a manifest in the order of the log, numbered from 0."""

    def __init__(self, paths: Sequence[str], tables: Sequence[pa.Table]) -> None:
        """``paths`` and ``tables`` are of the files of the manifest, in the same order."""
        self._paths = paths
        self._starts = [0, *accumulate(table.num_rows for table in tables)]
        self.table = pa.concat_tables(tables)
        self._order: pa.Array | None = None
        positions = self.table["position"].combine_chunks()
        if pc.any(pc.less_equal(pc.pairwise_diff(positions), 0)).as_py():
            self._order = pc.sort_indices(positions)
            self.table = self.table.take(self._order)

    def without_values(self) -> NumberedRows:
        """The same rows with only the columns that name a row, to send to another process."""
        named = object.__new__(NumberedRows)
        named._paths, named._starts, named._order = self._paths, self._starts, self._order
        named.table = self.table.select(["position", "shard", "stream", "version"])
        return named

    def __len__(self) -> int:
        """The number of rows."""
        count: int = self.table.num_rows
        return count

    def page(self, start: int, count: int) -> tuple[pa.Table, list[LogRow]]:
        """``count`` rows from the number ``start``, as a table and as rows of the log.

        The rows of the log have their number as position, because the real ones may be wrong.
        """
        page = self.table.slice(start, count)
        numbers = pa.array(range(start, start + page.num_rows), pa.int64())
        index = page.schema.get_field_index("position")
        return page, log_rows(page.set_column(index, "position", numbers))

    def finding(self, found: Finding, shard: str | None = None) -> ExportFinding:
        """Convert a finding about numbered rows to one with positions and places in files."""
        number = found.last_position
        index = number if self._order is None else self._order[number].as_py()
        file = bisect_right(self._starts, index) - 1
        stream = found.stream
        assert isinstance(stream, UUID)
        positions = self.table["position"]
        return ExportFinding(
            fault=found.fault,
            path=self._paths[file],
            row=index - self._starts[file],
            first_position=positions[found.first_position].as_py(),
            last_position=positions[number].as_py(),
            shard=shard or found.partition or self.table["shard"][number].as_py(),
            stream=stream,
            version=found.version,
            explanation=found.explanation,
        )


class Streams(NamedTuple):
    """The first and last versions of a manifest's rows in each of their streams."""

    table: pa.Table
    """Columns: stream, first and last version, identity, and the number of the first row."""
    rows: NumberedRows


PAGE_ROWS: Final = 8_192
FINDINGS_MAX: Final = 100
"""The most findings about the rows of one manifest that are reported; others are counted."""


class CheckedPart(NamedTuple):
    """The result of checking one manifest's rows."""

    findings: Sequence[ExportFinding]
    left_out: int
    """The number of findings that were only counted."""
    rows: int
    seals: int
    missing: Mapping[str, Head]
    """Known heads that were not found."""
    known_to: int
    """The position of the newest known head that was found, 0 for none."""
    streams: Streams | None
    """None if some of the rows cannot be read."""
    is_whole: bool
    """Whether every file is the one that was signed."""
    names: NameCheck
    """What the rows say about names that are gone; positions are row numbers."""
    nameless: Mapping[tuple[bytes, bytes], ExportFinding]
    """The findings about nameless rows, which hold unless the named identities were erased."""
    leaves: Sequence[bytes] | None
    """The leaf hashes of the seals (``eventstore.log.tree_head``); None if some rows are not those
    of the log."""
    entries: pa.UInt64Array | None
    """The index entries of the rows, counted from the first position; None as ``leaves``."""


def check_part(place: ExportPlace, part: ManifestPart, known: Mapping[str, Head]) -> CheckedPart:
    """Check the rows of one manifest.

    Args:
        place: where the export is.
        part: the manifest and the heads before it.
        known: heads that the rows must have, by partition.

    Raises:
        ExportUnavailable: the place cannot be read now.
    """
    files: list[tuple[str, ReadFile]] = []
    findings: list[ExportFinding] = []
    for file in part.manifest.files:
        try:
            files.append((file.path, read_file(place, file)))
        except FileMissing:
            require_part(place, part)
            why = f"named by {part.manifest.path}"
            findings.append(file_finding(file.path, Damage.MISSING, why))
    findings += [found for _, read in files for found in read.findings]
    tables = [(path, read.table) for path, read in files if read.table is not None]
    is_complete = len(tables) == len(part.manifest.files)
    is_whole = is_complete and all(read.is_whole for _, read in files)
    if not any(table.num_rows for _, table in tables):
        nothing = NameCheck(), dict[tuple[bytes, bytes], ExportFinding]()
        return CheckedPart(findings, 0, 0, 0, known, 0, None, is_whole, *nothing, None, None)
    rows = NumberedRows([path for path, _ in tables], [table for _, table in tables])
    check = _PartCheck(part, rows, known)
    found, left_out = check.run(is_complete=is_complete)
    is_known = is_whole and not part.manifest.is_pruned
    return CheckedPart(
        findings + found,
        left_out,
        len(rows),
        check.seals,
        check.missing,
        check.known_to,
        check.streams() if is_complete else None,
        is_whole,
        check.names,
        check.nameless(),
        check.leaves() if is_known else None,
        entries_of(rows.table, part.manifest.first) if is_known else None,
    )


def require_part(place: ExportPlace, part: ManifestPart) -> None:
    """Check that a manifest still exists, after finding one of its files missing or changed.

    Raises:
        ExportUnavailable: a compaction removed it meanwhile, so the file is not damaged.
    """
    if place.read_if_there(part.manifest.path) is None:
        why = "put together with others while it was being checked; check again"
        raise ExportUnavailable(part.manifest.path, why)


class _PartCheck:
    """One pass over the rows of a manifest."""

    def __init__(self, part: ManifestPart, rows: NumberedRows, known: Mapping[str, Head]) -> None:
        self._part = part
        self._rows = rows
        self._check = RowCheck(known=known, heads=part.before, part_after=-1)
        self.names = NameCheck()
        self._names: dict[bytes, str | None] = {}
        self._found: list[Finding] = []
        self._left_out = 0
        self._seals: list[BatchSealed] = []
        self._sections: list[tuple[int, str | None]] = []
        """The end of the rows of each seal, and its partition."""

    @property
    def seals(self) -> int:
        return self._check.seals

    @property
    def missing(self) -> Mapping[str, Head]:
        """The known heads that were not found; pruned seals cannot be compared."""
        known = self._check.known
        if not self._part.manifest.is_pruned:
            return known
        newest = self._part.heads
        return {n: h for n, h in known.items() if h.version == newest[n].version and h != newest[n]}

    @property
    def known_to(self) -> int:
        number = self._check.known_to
        position: int = 0 if number is None else self._rows.table["position"][number].as_py()
        return position

    def run(self, *, is_complete: bool) -> tuple[list[ExportFinding], int]:
        """Check all rows; return the findings, and the number of those left out.

        If rows are missing, seals and versions cannot be checked.
        """
        for start in range(0, len(self._rows), PAGE_ROWS):
            page, rows = self._rows.page(start, PAGE_ROWS)
            events = _events_in(rows)
            self._keep(check_columns(page, rows, events))
            self._keep(self._check_identities(page, rows, events))
            self._keep(_check_contents(rows, events))
            for row in rows:
                self.names.take(row)
            self._seals += [event for event in events if isinstance(event, BatchSealed)]
            if is_complete:
                is_rest = self._part.manifest.is_pruned
                follow = self._follow_rest if is_rest else self._check.follow
                self._keep(follow(rows, events))
                self._sections += _sections(rows, events)
        heads: list[ExportFinding] = []
        if is_complete:
            if not self._part.manifest.is_pruned:
                self._keep(self._check.end())
                self._keep(self._check_shards())
            self._keep(self._check_positions())
            self._keep(self._check_last())
            heads = list(self._check_heads())
        self._found.sort(key=lambda found: found.last_position)
        return [self._rows.finding(f, self._shard(f)) for f in self._found] + heads, self._left_out

    def _follow_rest(self, rows: Sequence[LogRow], events: Events) -> Iterator[Finding]:
        """Check the rows that stayed after a pruning, which keeps the first row of each stream.

        No seal covers them; the signature of their files proves that they are the ones that stayed.
        """
        check = self._check
        assert check.begins is not None
        for row, event in zip(rows, events, strict=True):
            last = check.versions.get(row.stream, 0)
            # A check that knows the streams from an earlier one does not compare their beginnings.
            if row.version <= last or (not last and row.version != 1):
                why = f"stands behind version {last} of its stream"
                yield finding(Fault.VERSION_BREAK, row, why)
            check.begins.setdefault(row.stream, row)
            check.versions[row.stream] = row.version
            if isinstance(event, BatchSealed):
                check.heads[event.partition] = Head(row.version, event.digest)
                check.seals += 1

    def nameless(self) -> dict[tuple[bytes, bytes], ExportFinding]:
        """See ``CheckedPart``."""
        return {p: self._rows.finding(missing_name(r, p[1])) for p, r in self.names.gone.items()}

    def streams(self) -> Streams:
        """The first and last versions of the rows in each stream."""
        begins = self._check.begins
        assert begins is not None
        table = pa.table(
            {
                "stream": pa.array(begins, pa.binary(16)),
                "first": pa.array([row.version for row in begins.values()], pa.int64()),
                "last": pa.array(map(self._check.versions.__getitem__, begins), pa.int64()),
                "identity": pa.array(map(self._names.get, begins), pa.string()),
                "number": pa.array([row.position for row in begins.values()], pa.int64()),
            }
        )
        return Streams(table, self._rows.without_values())

    def leaves(self) -> list[bytes] | None:
        """See ``CheckedPart``."""
        table = self._rows.table
        seals = table.filter(pc.equal(table["type"], SEAL_TYPE))
        columns = (seals[name].to_pylist() for name in ("position", "version"))
        try:
            return [seal_leaf(*each) for each in zip(*columns, self._seals, strict=True)]
        except ValueError:
            return None  # a finding about the row says why

    def _keep(self, findings: Iterable[Finding]) -> None:
        for found in findings:
            if len(self._found) < FINDINGS_MAX:
                self._found.append(found)
            else:
                self._left_out += 1

    def _check_identities(
        self, page: pa.Table, rows: Sequence[LogRow], events: Events
    ) -> Iterator[Finding]:
        """Check that every row of a stream names the identity of the stream's first row.

        For a stream that began before these rows, its first row here gives the identity.
        """
        identities = page["identity"].to_pylist()
        names = self._names
        for row, event, identity in zip(rows, events, identities, strict=True):
            if row.stream not in names:
                named = None if event is None else identity_of(event, row.stream)
                names[row.stream] = named if row.version == 1 else identity
                self.names.take_name(row, identity)
            if names[row.stream] != identity:
                self.names.take_name(row, identity)
            if not is_same_name(names[row.stream], identity):
                why = "identity: not the one of its stream"
                yield finding(Fault.WRONG_COLUMN, row, why)

    def _check_shards(self) -> Iterator[Finding]:
        """Check that every row names the partition of the seal that follows it."""
        start = 0
        expected: list[tuple[str | None, int]] = []
        for end, partition in [*self._sections, (len(self._rows), None)]:
            expected.append((partition, end - start))
            start = end
        wrong = pc.not_equal(self._rows.table["shard"], shards_of(expected))
        numbers = pc.indices_nonzero(wrong)
        self._left_out += len(numbers[FINDINGS_MAX:])
        for number in numbers[:FINDINGS_MAX].to_pylist():
            why = "shard: not the partition whose seal covers the row"
            yield finding(Fault.WRONG_COLUMN, self._row(number), why)

    def _check_positions(self) -> Iterator[Finding]:
        """Check that no two rows have the same position; the order in files is checked before."""
        steps = pc.pairwise_diff(self._rows.table["position"].combine_chunks())
        numbers = pc.indices_nonzero(pc.equal(steps, 0).fill_null(fill_value=False))
        self._left_out += len(numbers[FINDINGS_MAX:])
        for number in numbers[:FINDINGS_MAX].to_pylist():
            why = "another row of the manifest has the same position"
            yield finding(Fault.WRONG_POSITION, self._row(number), why)

    def _check_last(self) -> Iterator[Finding]:
        last = len(self._rows) - 1
        if self._rows.table["position"][last].as_py() != self._part.manifest.last:
            why = f"{self._part.manifest.path} ends with another position"
            yield finding(Fault.WRONG_POSITION, self._row(last), why)

    def _check_heads(self) -> Iterator[ExportFinding]:
        found, said = self._check.heads, self._part.heads
        names = found if self._part.before is None else {*found, *said}
        for name in sorted(names):
            if found.get(name) != said.get(name):
                version = found[name].version if name in found else 0
                yield ExportFinding(
                    fault=Fault.WRONG_HEAD,
                    path=self._part.manifest.path,
                    last_position=self._part.manifest.last,
                    shard=name,
                    explanation=f"the newest seal in its rows is {version}, it names another",
                )

    def _shard(self, found: Finding) -> str | None:
        index = bisect_right(self._sections, found.last_position, key=lambda section: section[0])
        return self._sections[index][1] if index < len(self._sections) else None

    def _row(self, number: int) -> LogRow:
        return self._rows.page(number, 1)[1][0]


def _events_in(rows: Sequence[LogRow]) -> Events:
    try:
        return decode_rows(rows)
    except (UnknownTopic, CorruptRow):
        return [decode_or_none(row.topic, row.state) for row in rows]


def _sections(rows: Sequence[LogRow], events: Events) -> Iterator[tuple[int, str | None]]:
    for row, event in zip(rows, events, strict=True):
        if row.topic == SEAL_TOPIC:
            partition = event.partition if isinstance(event, BatchSealed) else None
            yield row.position + 1, partition


def _check_contents(rows: Sequence[LogRow], events: Events) -> Iterator[Finding]:
    """Check that every content fits its row. A missing content was erased, and is no fault."""
    for row, event in zip(rows, events, strict=True):
        if (wrong := content_fault(row, event)) is not None:
            yield finding(Fault.WRONG_CONTENT, row, wrong)
