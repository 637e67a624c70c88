"""Checks the rows of one manifest: their seals, versions and columns, and the heads after them.

The check does not need earlier rows: a manifest starts after a seal, and the one before it has the
heads. The check returns where the rows begin and end in each stream (``Streams``), to be compared
with the manifests around it (``eventstore.parquet.verify.export``).

Memory: the rows of some data files as Arrow (``in_order``), those of one page as Python objects.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, Final, NamedTuple
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

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
from eventstore.parquet.index import entries_of, sorted_entries
from eventstore.parquet.manifest import DataFile
from eventstore.parquet.rows import in_order, log_rows
from eventstore.parquet.schema import SCHEMA
from eventstore.parquet.verify.columns import Events, check_columns
from eventstore.parquet.verify.file import ReadFile, read_file
from eventstore.parquet.verify.findings import ExportFinding, file_finding
from eventstore.parquet.verify.manifests import ManifestPart

_OF_PLACE: Final = ("file", "row")
"""Columns with the number of a row's file in its manifest, and of the row in the file."""
_OF_NAMED: Final = ("position", "shard", "stream", "version", *_OF_PLACE)
PAGE_ROWS: Final = 8_192
FINDINGS_MAX: Final = 100
"""The most findings about the rows of one manifest that are reported; others are counted."""


class NumberedRows:
    """The rows of a manifest in the order of the log, numbered from 0, read a data file at a time.

    Attributes:
        paths: the files.
        findings: what is wrong with those that were read.
        is_complete: whether each of them is whole, and has rows of this schema.
        is_whole: whether each of them is the one that was signed.
        entries: the index entries of the rows, counted from the first position, as long as nothing
            is wrong, since a wrong position may be before that one; of a pruned manifest none.
        named: the columns that name a row, of all rows so far. Of a pruned manifest only those of
            the page: no seal covers earlier rows, and it may have any number.
    """

    def __init__(self, place: ExportPlace, part: ManifestPart) -> None:
        self.paths = [file.path for file in part.manifest.files]
        self.findings: list[ExportFinding] = []
        self.is_complete = self.is_whole = True
        self.entries: list[pa.UInt64Array] = []
        self.named: pa.Table = _NONE_NAMED
        self._place = place
        self._part = part
        self._rows = 0

    def __len__(self) -> int:
        """The number of rows so far."""
        return self._rows

    def pages(self) -> Iterator[tuple[pa.Table, list[LogRow]]]:
        """Yield pages of rows, as a table and as rows of the log.

        The rows of the log have their number as position, because the real ones may be wrong.

        Raises:
            ExportUnavailable: the place cannot be read now.
        """
        is_pruned = self._part.manifest.is_pruned
        for table, _ in in_order(self._part.manifest.files, self._read):
            if not self.findings and not is_pruned:
                self.entries.append(entries_of(table, self._part.manifest.first))
            for start in range(0, table.num_rows, PAGE_ROWS):
                page = table.slice(start, PAGE_ROWS)
                numbers = pa.array(range(self._rows, self._rows + page.num_rows), pa.int64())
                self._rows += page.num_rows
                named = page.select(_OF_NAMED)
                self.named = named if is_pruned else pa.concat_tables([self.named, named])
                index = page.schema.get_field_index("position")
                yield page, log_rows(page.set_column(index, "position", numbers))

    def named_at(self, numbers: Sequence[int]) -> pa.Table:
        """The columns that name rows, by their numbers."""
        before = self._rows - self.named.num_rows
        return self.named.take(pa.array([number - before for number in numbers], pa.int64()))

    def finding(self, found: Finding) -> ExportFinding:
        """Convert a finding about numbered rows to one with positions and places in files."""
        first, row = self.named_at([found.first_position, found.last_position]).to_pylist()
        assert isinstance(found.stream, UUID)
        return ExportFinding(
            fault=found.fault,
            path=self.paths[row["file"]],
            row=row["row"],
            first_position=first["position"],
            last_position=row["position"],
            shard=found.partition or row["shard"],
            stream=found.stream,
            version=found.version,
            explanation=found.explanation,
        )

    def _read(self, file: DataFile) -> pa.Table:
        try:
            found = read_file(self._place, file, self._part.described.get(file.path))
        except FileMissing:
            require_part(self._place, self._part)
            why = f"named by {self._part.manifest.path}"
            found = ReadFile(None, [file_finding(file.path, Damage.MISSING, why)], is_whole=False)
        self.findings += found.findings
        self.is_complete = self.is_complete and found.table is not None
        self.is_whole = self.is_whole and found.is_whole
        table = SCHEMA.empty_table() if found.table is None else found.table
        placed = _with_places(table, self.paths.index(file.path))
        steps = pc.pairwise_diff(placed["position"].combine_chunks())
        return placed.sort_by("position") if pc.any(pc.less_equal(steps, 0)).as_py() else placed


def _with_places(table: pa.Table, file: int) -> pa.Table:
    places = [[file] * table.num_rows, range(table.num_rows)]
    for name, values in zip(_OF_PLACE, places, strict=True):
        table = table.append_column(name, pa.array(values, pa.int32()))
    return table


_NONE_NAMED: Final = _with_places(SCHEMA.empty_table(), 0).select(_OF_NAMED)


class Streams(NamedTuple):
    """The first and last versions of a manifest's rows in each of their streams."""

    table: pa.Table
    """Columns: stream, first and last version, identity, and what names the first row."""
    paths: Sequence[str]
    """The files of the manifest."""


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
    """The leaf hashes of the seals (``eventstore.log.tree_head``); None if there are findings, or
    the manifest is pruned."""
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
    check = _PartCheck(place, part, known)
    found, left_out = check.run()
    rows = check.rows
    is_complete = rows.is_complete and len(rows) > 0
    findings = rows.findings + found
    is_known = is_complete and not findings and not part.manifest.is_pruned
    return CheckedPart(
        findings,
        left_out,
        len(rows),
        check.seals,
        check.missing,
        check.known_to,
        check.streams() if is_complete else None,
        rows.is_whole,
        check.names,
        check.nameless,
        check.leaves if is_known else None,
        sorted_entries(rows.entries) if is_known else None,
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
    """One pass over the rows of a manifest.

    Attributes:
        rows: the rows.
        names, nameless, leaves: see ``CheckedPart``.
    """

    def __init__(self, place: ExportPlace, part: ManifestPart, known: Mapping[str, Head]) -> None:
        self.rows = NumberedRows(place, part)
        self.names = NameCheck()
        self.nameless: dict[tuple[bytes, bytes], ExportFinding] = {}
        self.leaves: list[bytes] | None = []
        self._part = part
        self._check = RowCheck(known=known, heads=part.before, part_after=-1)
        self._begins: list[pa.Table] = []
        self._names: dict[bytes, str | None] = {}
        self._found: list[tuple[int, ExportFinding]] = []
        self._left_out = 0
        self._sections: list[tuple[int, str | None]] = []
        """The end of the rows of each seal, and its partition."""
        self._reached: tuple[int, LogRow] | None = None
        """The last position, and the row there."""

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
        position: int = 0 if number is None else self._named(number)["position"]
        return position

    def run(self) -> tuple[list[ExportFinding], int]:
        """Check all rows; return the findings, and the number of those left out.

        Where rows are missing and behind them, seals and versions cannot be checked.
        """
        is_pruned = self._part.manifest.is_pruned
        follow = self._follow_rest if is_pruned else self._check.follow
        for page, rows in self.rows.pages():
            events = _events_in(rows)
            self._keep(check_columns(page, rows, events))
            self._keep(self._check_identities(page, rows, events))
            self._keep(_check_contents(rows, events))
            for row in rows:
                self.names.take(row)
            for gone, row in islice(self.names.gone.items(), len(self.nameless), None):
                self.nameless[gone] = self.rows.finding(missing_name(row, gone[1]))
            if self.rows.is_complete:
                self._keep(follow(rows, events))
                self._keep(self._check_positions(page, rows))
                self._take_begins()
                if not is_pruned:
                    self._take_seals(page, rows, events)
        heads: list[ExportFinding] = []
        if self.rows.is_complete and self._reached is not None:
            if not is_pruned:
                self._keep(self._check.end())
                self._keep(self._check_shards())
            self._keep(self._check_last(*self._reached))
            heads = list(self._check_heads())
        found = sorted(self._found, key=itemgetter(0))
        return [self._with_shard(*each) for each in found] + heads, self._left_out

    def _follow_rest(self, rows: Sequence[LogRow], events: Events) -> Iterator[Finding]:
        """Check the rows that stayed after a pruning, which keeps the first row of each stream.

        No seal covers them; the signature of their files proves that they are the ones that stayed.
        """
        check = self._check
        assert check.begins is not None
        for row, event in zip(rows, events, strict=True):
            last = check.versions.get(row.stream, 0)
            if row.stream not in check.versions:
                check.begins[row.stream] = row
            # A check that knows the streams from an earlier one does not compare their beginnings.
            if row.version <= last or (not last and row.version != 1):
                why = f"stands behind version {last} of its stream"
                yield finding(Fault.VERSION_BREAK, row, why)
            check.versions[row.stream] = row.version
            if isinstance(event, BatchSealed):
                check.heads[event.partition] = Head(row.version, event.digest)
                check.seals += 1

    def streams(self) -> Streams:
        """The first and last versions of the rows in each stream."""
        begins = pa.concat_tables(self._begins)
        streams = begins["stream"].to_pylist()
        last = pa.array(map(self._check.versions.__getitem__, streams), pa.int64())
        identity = pa.array(map(self._names.get, streams), pa.string())
        table = begins.append_column("last", last).append_column("identity", identity)
        return Streams(table, self.rows.paths)

    def _take_begins(self) -> None:
        """Note the first rows of the streams that begin in a page, instead of keeping them."""
        begins = self._check.begins
        assert begins is not None
        self._begins.append(self.rows.named_at([row.position for row in begins.values()]))
        begins.clear()

    def _take_seals(self, page: pa.Table, rows: Sequence[LogRow], events: Events) -> None:
        """Note the rows that the seals of a page end, and the leaves of these seals."""
        self._sections += _sections(rows, events)
        if self.leaves is None:
            return
        seals = page.filter(pc.equal(page["type"], SEAL_TYPE))
        columns = (seals[name].to_pylist() for name in ("position", "version"))
        sealed = [event for event in events if isinstance(event, BatchSealed)]
        try:
            self.leaves += [seal_leaf(*each) for each in zip(*columns, sealed, strict=True)]
        except ValueError:
            self.leaves = None  # a finding about the row says why

    def _keep(self, findings: Iterable[Finding]) -> None:
        for found in findings:
            if len(self._found) < FINDINGS_MAX:
                self._found.append((found.last_position, self.rows.finding(found)))
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
        for end, partition in [*self._sections, (len(self.rows), None)]:
            expected.append((partition, end - start))
            start = end
        wrong = pc.not_equal(self.rows.named["shard"], shards_of(expected))
        numbers = pc.indices_nonzero(wrong)
        self._left_out += len(numbers[FINDINGS_MAX:])
        for number in numbers[:FINDINGS_MAX].to_pylist():
            why = "shard: not the partition whose seal covers the row"
            named = self._named(number)
            row = LogRow(number, named["stream"], named["version"], "", b"")
            yield finding(Fault.WRONG_COLUMN, row, why)

    def _check_positions(self, page: pa.Table, rows: Sequence[LogRow]) -> Iterator[Finding]:
        """Check that positions rise; the order in files is checked before."""
        for row, position in zip(rows, page["position"].to_pylist(), strict=True):
            if self._reached and position <= self._reached[0]:
                why = f"stands behind position {self._reached[0]} of the manifest"
                if position == self._reached[0]:
                    why = "another row of the manifest has the same position"
                yield finding(Fault.WRONG_POSITION, row, why)
            self._reached = position, row

    def _check_last(self, position: int, row: LogRow) -> Iterator[Finding]:
        if position != self._part.manifest.last:
            why = f"{self._part.manifest.path} ends with another position"
            yield finding(Fault.WRONG_POSITION, row, why)

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

    def _with_shard(self, number: int, found: ExportFinding) -> ExportFinding:
        """Let a finding name the partition whose seal follows its row."""
        index = bisect_right(self._sections, number, key=itemgetter(0))
        shard = self._sections[index][1] if index < len(self._sections) else None
        return replace(found, shard=shard or found.shard)

    def _named(self, number: int) -> dict[str, Any]:
        named: dict[str, Any] = self.rows.named_at([number]).to_pylist()[0]
        return named


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
