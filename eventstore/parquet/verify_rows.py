"""The rows of one manifest: their seals, versions and columns, and the heads after them.

The rows before are not needed: a manifest starts after a seal, and the one before has the heads.
Where its rows begin and end in each stream is handed on (``Streams``), to be compared with the
manifests around it (``eventstore.parquet.verify_streams``).

Memory: the rows of one manifest as Arrow, those of one page as Python objects.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from eventstore.codec import decode
from eventstore.errors import CorruptRow, UnknownTopic
from eventstore.events import BatchSealed
from eventstore.log import LogRow
from eventstore.parquet.columns import SEAL_TOPIC, identity_of
from eventstore.parquet.errors import Damage, ExportUnavailable
from eventstore.parquet.export_findings import ExportFinding
from eventstore.parquet.files import ExportPlace, FileMissing
from eventstore.parquet.numbered_rows import NumberedRows, Streams
from eventstore.parquet.verify_columns import check_columns
from eventstore.parquet.verify_file import ReadFile, read_file
from eventstore.parquet.verify_manifests import Part
from eventstore.row_check import Fault, Finding, Head, RowCheck, finding

PAGE_ROWS: Final = 8_192
FINDINGS_MAX: Final = 100
"""So many findings about the rows of one manifest are told, all others are counted."""


class CheckedPart(NamedTuple):
    """What the check of one manifest's rows found."""

    findings: Sequence[ExportFinding]
    left_out: int
    """Findings that were only counted."""
    rows: int
    seals: int
    missing: Mapping[str, Head]
    """Heads that were looked for and not found."""
    known_to: int
    """The position of the newest of the heads that were looked for and found, 0 for none."""
    streams: Streams | None
    """None if some of the rows cannot be read."""
    is_whole: bool
    """Every file is the one that was signed."""


def check_part(place: ExportPlace, part: Part, known: Mapping[str, Head]) -> CheckedPart:
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
            _require(place, part)
            why = f"named by {part.manifest.path}"
            findings.append(ExportFinding(fault=Damage.MISSING, path=file.path, explanation=why))
    findings += [found for _, read in files for found in read.findings]
    tables = [(path, read.table) for path, read in files if read.table is not None]
    is_complete = len(tables) == len(part.manifest.files)
    is_whole = is_complete and all(read.is_whole for _, read in files)
    if not any(table.num_rows for _, table in tables):
        return CheckedPart(findings, 0, 0, 0, known, 0, None, is_whole)
    rows = NumberedRows([path for path, _ in tables], [table for _, table in tables])
    check = _PartCheck(part, rows, known)
    found, left_out = check.run(is_complete=is_complete)
    return CheckedPart(
        findings + found,
        left_out,
        len(rows),
        check.seals,
        check.missing,
        check.known_to,
        check.streams() if is_complete else None,
        is_whole,
    )


def _require(place: ExportPlace, part: Part) -> None:
    """A file is not damaged if a compaction took it away with its manifest meanwhile."""
    try:
        place.read(part.manifest.path)
    except FileMissing:
        why = "put together with others while it was being checked; check again"
        raise ExportUnavailable(part.manifest.path, why) from None


class _PartCheck:
    """One pass over the rows of a manifest."""

    def __init__(self, part: Part, rows: NumberedRows, known: Mapping[str, Head]) -> None:
        self._part = part
        self._rows = rows
        self._check = RowCheck(known=known, heads=part.before, part_after=-1)
        self._names: dict[bytes, str | None] = {}
        self._found: list[Finding] = []
        self._left_out = 0
        self._sections: list[tuple[int, str | None]] = []
        """Where the rows of each seal end, and its partition."""

    @property
    def seals(self) -> int:
        return self._check.seals

    @property
    def missing(self) -> Mapping[str, Head]:
        return self._check.known

    @property
    def known_to(self) -> int:
        number = self._check.known_to
        position: int = 0 if number is None else self._rows.table["position"][number].as_py()
        return position

    def run(self, *, is_complete: bool) -> tuple[list[ExportFinding], int]:
        """All findings, and how many more there are.

        Between rows that are missing, seals and versions have nothing to be compared with.
        """
        for start in range(0, len(self._rows), PAGE_ROWS):
            page, rows = self._rows.page(start, PAGE_ROWS)
            self._keep(check_columns(page, rows))
            self._keep(self._check_identities(page, rows))
            if is_complete:
                self._keep(self._check.follow(rows))
                self._sections += _sections(rows)
        heads: list[ExportFinding] = []
        if is_complete:
            self._keep(self._check.end())
            self._keep(self._check_shards())
            self._keep(self._check_last())
            heads = list(self._check_heads())
        self._found.sort(key=lambda found: found.last_position)
        return [self._rows.finding(f, self._shard(f)) for f in self._found] + heads, self._left_out

    def streams(self) -> Streams:
        """Where the rows begin and end in each stream."""
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

    def _keep(self, findings: Iterable[Finding]) -> None:
        for found in findings:
            if len(self._found) < FINDINGS_MAX:
                self._found.append(found)
            else:
                self._left_out += 1

    def _check_identities(self, page: pa.Table, rows: Sequence[LogRow]) -> Iterator[Finding]:
        """Every row of a stream names the identity that the stream's first row says.

        Of a stream that began before these rows, it is taken from its first row here.
        """
        identities = page["identity"].to_pylist()
        names = self._names
        for row, identity in zip(rows, identities, strict=True):
            if row.stream not in names:
                names[row.stream] = _first_identity(row) if row.version == 1 else identity
            if names[row.stream] != identity:
                why = "identity: not the one of its stream"
                yield finding(Fault.WRONG_COLUMN, row, why)

    def _check_shards(self) -> Iterator[Finding]:
        """Every row names the partition of the seal that follows it."""
        start = 0
        expected: list[pa.Array] = []
        for end, partition in [*self._sections, (len(self._rows), None)]:
            expected.append(pa.repeat(pa.scalar(partition, pa.string()), end - start))
            start = end
        wrong = pc.not_equal(self._rows.table["shard"], pa.concat_arrays(expected))
        numbers = pc.indices_nonzero(wrong)
        self._left_out += len(numbers[FINDINGS_MAX:])
        for number in numbers[:FINDINGS_MAX].to_pylist():
            why = "shard: not the partition whose seal covers the row"
            yield finding(Fault.WRONG_COLUMN, self._row(number), why)

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


def _sections(rows: Sequence[LogRow]) -> Iterator[tuple[int, str | None]]:
    for row in rows:
        if row.topic == SEAL_TOPIC:
            partition = None
            with suppress(CorruptRow):
                event = decode(row.topic, row.state)
                partition = event.partition if isinstance(event, BatchSealed) else None
            yield row.position + 1, partition


def _first_identity(row: LogRow) -> str | None:
    try:
        return identity_of(decode(row.topic, row.state))
    except (UnknownTopic, CorruptRow):
        return None
